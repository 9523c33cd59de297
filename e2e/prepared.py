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

from e2e import real_groups

_FORKED = ("torch.distributed.run", "elastic_trainer.parameter_server")
_IMPORTED = ("elastic_trainer.agent.agent", "elastic_trainer.parameter_server.server")

for _name in (*PRELOADED, "torch.distributed.run", *_IMPORTED):
    importlib.import_module(_name)


def takes(words: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether a container is forked: one of torchrun or a parameter server, unless its
    interpreter has more to look at than what every pod is told."""
    own = {name for name in variables if name.startswith("PYTHON")} - {"PYTHONUNBUFFERED"}
    python, *module = real_groups.command_in(words)[:3]
    ours = python in ("python", sys.executable)
    return ours and module[:1] == ["-m"] and module[-1] in _FORKED and not own


def run(words: Sequence[str]) -> int:
    """Do what the command does; return its exit code."""
    command = real_groups.command_in(words)
    if command is not words:
        real_groups.enter(words)
    return run_as_main(["-u", *command[1:]])
