"""Imports once what pods of these tests need, in the process that forks them.

Each pod would else import torch, which takes longer than all that it does then. The demo's pods
begin cold: tests/documents and tests/demo have its whole story.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from elastic_trainer.launch.script import run_as_main
from elastic_trainer.launch.zygote import PRELOADED

_AGENT = [sys.executable, "-m", "torch.distributed.run"]

for _name in (*PRELOADED, "torch.distributed.run", "elastic_trainer.agent.agent"):
    importlib.import_module(_name)


def takes(words: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether a container is forked: one of torchrun, unless its interpreter has more to
    look at than what every pod is told."""
    own = {name for name in variables if name.startswith("PYTHON")} - {"PYTHONUNBUFFERED"}
    return list(words[: len(_AGENT)]) == _AGENT and not own


def run(words: Sequence[str]) -> int:
    """Do what the command does; return its exit code."""
    return run_as_main(["-u", *words[1:]])
