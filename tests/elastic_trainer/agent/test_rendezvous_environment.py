"""Torchrun's process adds nothing to its environment once other threads may read it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.endpoint import free_endpoint

pytestmark = pytest.mark.process

CREATE = """
import os
from torch.distributed.elastic.rendezvous import RendezvousParameters
from elastic_trainer.agent.agent import Agent
from elastic_trainer.rendezvous.handler import create

start, names = Agent.start, set()

def noted(agent):
    names.update(os.environ)
    return start(agent)

Agent.start = noted
handler = create(RendezvousParameters("volcano-elastic", "127.0.0.1:PORT", "run", 1, 1))
print(sorted(set(os.environ) - names))
try:
    handler._agent.join = lambda _: exit("as if dismissed")
    handler.next_rendezvous()
finally:
    print(sorted(set(os.environ) - names), os.environ["VOLCANO_ELASTIC_ROUND"])
"""


def test_no_variable_is_added_once_other_threads_may_read_them() -> None:
    """glibc moves the table for a new name: a thread that reads it then is a segmentation fault."""
    script = CREATE.replace("PORT", str(free_endpoint()))
    environment = {**os.environ, "VOLCANO_ELASTIC_POD_INDEX": "1", "VOLCANO_ELASTIC_WARM": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["[]", "[] 0"], done.stdout + done.stderr
