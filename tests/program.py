"""Starts a cluster's programs as forks of a process that has imported what they are made of.

What begins cold: the command line's programs (tests/embedded_cluster/test_local_up.py, tests/cli,
tests/documents), and another version's (e2e/test_upgrade.py).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from elastic_trainer.launch.zygote import ZygoteProcess

from embedded_cluster import component
from tests.elastic_trainer import nursery

_IMPORTED = (
    "e2e.prepared",
    "embedded_cluster.apiserver.server",
    "embedded_cluster.kubelet.kubelet",
    "embedded_cluster.scheduler.scheduler",
    "volcano_elastic.operator.controller",
    "volcano_elastic.operator.planning",
)
_POLL_SECONDS = 0.02


@functools.cache
def _nursery() -> nursery.Nursery:
    found = nursery.Nursery(_IMPORTED, within=nursery.shared())
    atexit.register(found.close)
    return found


def start(
    command: Sequence[str], variables: Mapping[str, str], output: IO[bytes]
) -> component.Child:
    """Start a command; one that isn't `python -m MODULE` begins cold. It dies with this process."""
    if list(command[:2]) != [sys.executable, "-m"]:
        return component.start(command, variables, output)
    return fork(command[1:], variables, output)


def fork(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    output: IO[Any],
    errors: IO[Any] | None = None,
) -> ZygoteProcess:
    """Start `python ARGUMENTS`; stderr goes to `output`, too, or to `errors`."""
    return _nursery().start(["-u", *arguments], variables, output, errors)


class Program:
    """A fork, with as much of asyncio.subprocess.Process as tests use."""

    def __init__(self, forked: ZygoteProcess) -> None:
        self._forked = forked
        self.pid = forked.pid

    @property
    def returncode(self) -> int | None:
        return self._forked.poll()

    async def wait(self) -> int:
        while True:
            if (code := self.returncode) is not None:
                return code
            await asyncio.sleep(_POLL_SECONDS)

    def send_signal(self, number: int) -> None:
        self._forked.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
