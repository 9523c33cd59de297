"""A program of a cluster on this machine: a child process that can't outlive us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ClusterError(Exception):
    """The cluster can't start, or can't go on; the message says why and what to do."""


class Child(Protocol):
    """The part of subprocess.Popen that a component needs."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int) -> None: ...


Start = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Child]
"""Starts a command with variables and output; the child dies with this process."""


def start(command: Sequence[str], variables: Mapping[str, str], output: IO[bytes]) -> Child:
    """Start it in a process of its own, and in a session: a terminal's Ctrl-C is for us alone, who
    stop the others in order."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=dying_with_us(),
        env=variables,
    )


def dying_with_us() -> Callable[[], None]:
    """Return a `preexec_fn` that has the kernel kill the child when this thread ends."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return die_with_parent


class Component:
    """A command, its output appended to a log file.

    Linux ties the child's life to the thread that starts it, so start it on the main thread.

    Args:
        start: starts its process.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, start: Start = start) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        """For the next start."""
        self._start = start
        self._process: Child | None = None

    @property
    def pid(self) -> int:
        """The process id of the latest start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        with self.log.open("ab") as output:
            variables = os.environ | {"PYTHONUNBUFFERED": "1"}
            self._process = self._start(self.command, variables, output)

    def exit_code(self) -> int | None:
        """None while it runs (or has never been started); negative for a signal."""
        return self._process.poll() if self._process else None

    def send(self, number: signal.Signals) -> None:
        if self._process and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
