"""Containers as local processes: start, signal, end; nothing outlives this kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from volcano_elastic.local.kubelet.process_table import MARK, kill_marked

# What a process may need from the machine; all else a container gets only by its own `env`.
_KEPT = ("HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PATH")


class StartError(Exception):
    """The command can't be run; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Process:
    """One run of one container."""

    pid: int
    mark: str
    exit_code: asyncio.Future[int]


class ProcessRuntime:
    """Starts containers' processes. Use as an async context manager, on the main thread."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex[:12]
        self._running: dict[int, tuple[subprocess.Popen[bytes], Process]] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        # Held only so that pending clean-ups aren't collected.
        self._cleanups: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ProcessRuntime:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._start_guard()
        return self

    def _start_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "volcano_elastic.local.kubelet.guard", self._id],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    async def __aexit__(self, *exception: object) -> None:
        """Ends every process, leftovers too."""
        await asyncio.to_thread(kill_marked, self._id)
        for process in [process for _, process in self._running.values()]:
            self.kill(process)
        futures = [process.exit_code for _, process in self._running.values()]
        if futures:
            await asyncio.wait(futures, timeout=5)
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=5)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._guard.wait, 10)

    def start(
        self,
        command: list[str],
        variables: dict[str, str],
        *,
        log: Path,
        owner: str,
        directory: str | None,
    ) -> Process:
        """Runs `command` in a session of its own, its output appended to `log`.

        Args:
            owner: pod uid and container name, to find the processes by.

        Raises:
            StartError: no such command or directory, or not executable.
        """
        # Marks are found by their beginning, so one must not be the beginning of another.
        mark = f"{self._id}/{owner}/"
        full = {name: os.environ[name] for name in _KEPT if name in os.environ} | variables
        # The interpreter's own folder first, so that `torchrun` and a shell's `python` are ours.
        own = str(Path(sys.executable).parent)
        full["PATH"] = own + os.pathsep + full.get("PATH", os.defpath)
        full[MARK] = mark
        if directory is not None and not os.path.isdir(directory):
            raise StartError(f"workingDir {directory!r} does not exist on this machine")
        executable = shutil.which(command[0], path=full["PATH"])
        if executable is None:
            raise StartError(
                f"exec: {command[0]!r}: executable file not found in $PATH ({full['PATH']})"
            )
        with log.open("ab") as output:
            try:
                popen = subprocess.Popen(
                    command,
                    executable=executable,
                    env=full,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise StartError(f"exec: {command[0]!r}: {error}") from error
        process = Process(popen.pid, mark, asyncio.get_running_loop().create_future())
        self._running[popen.pid] = popen, process
        return process

    def terminate(self, process: Process) -> None:
        """SIGTERM to the main process only, as a real runtime does."""
        if process.pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

    def kill(self, process: Process) -> None:
        """SIGKILL to the main process; the rest follows when it is reaped."""
        if process.pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid, (popen, process) in list(self._running.items()):
            # Looked at before it is reaped: until then its process group's number can't be reused.
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            code = popen.wait()
            del self._running[pid]
            cleanup = asyncio.ensure_future(self._clean_up(process, code))
            self._cleanups.add(cleanup)
            cleanup.add_done_callback(self._cleanups.discard)

    async def _clean_up(self, process: Process, code: int) -> None:
        # What it left in sessions of its own; the container has ended only once they have.
        await asyncio.to_thread(kill_marked, process.mark)
        if not process.exit_code.done():
            process.exit_code.set_result(code if code >= 0 else 128 - code)
