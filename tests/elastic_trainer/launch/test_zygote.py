"""A warm worker's end: which exit handlers run."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest
from elastic_trainer.launch import zygote

from tests.elastic_trainer import nursery

_SCRIPT = """
import weakref
import torch

class Mine: pass

kept = Mine()
weakref.finalize(kept, print, "mine is taken back")
library = torch.library.Library("warm_test", "DEF")
at_end = [f for f in weakref.finalize._registry if f.atexit]
print(sum(f.peek()[1].__module__ == "torch.library" for f in at_end), "libraries of torch")
"""


@pytest.mark.process
def test_it_takes_back_what_its_script_made_and_leaves_torchs_libraries(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    with (tmp_path / "log").open("wb") as log:
        worker = nursery.shared().start(["-u", str(script)], os.environ, log)
    assert worker.wait(60) == 0
    said = (tmp_path / "log").read_text().splitlines()
    assert said == ["1 libraries of torch", "mine is taken back"], "its own alone"


def test_what_a_preloaded_module_takes_back_by_any_callable_stays(tmp_path: Path) -> None:
    """A dict's own __delitem__ has no module to be asked for."""
    made = {tmp_path: "a cache's"}
    finalizer = weakref.finalize(zygote.Zygote, made.__delitem__, tmp_path)
    zygote._leave_libraries_to_the_end()
    assert finalizer.atexit
    finalizer.detach()
