"""Containers as local processes, each under a shim (shim.py); nothing outlives this kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from embedded_cluster.kubelet import memory_watch, shim
from embedded_cluster.kubelet.prepared import ForkedShim, PreparedPython
from embedded_cluster.kubelet.source import StartError
from embedded_cluster.kubelet.volume import Mount

_log = logging.getLogger(__name__)

Isolation = Literal["root", "user", ""]
"""Mount and UTS namespaces as root, or in a user namespace; or neither."""

_HELD_BY: dict[Isolation, str] = {
    "root": "mount namespaces (volumes anywhere, service names in /etc/hosts)",
    "user": "mount namespaces of user namespaces (volumes anywhere, service names in /etc/hosts)",
    "": "plain processes (volumes only where they change nothing, service names replaced in the "
    "environment)",
}
# What a process may need from the machine; all else a container gets only by its own `env`.
_KEPT = ("HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PATH")
# All pods share the machine's cores: threads of OpenMP that wait busily keep other pods from them.
_SHARING = {"OMP_WAIT_POLICY": "PASSIVE"}
_PR_SET_CHILD_SUBREAPER = 36
_PROBE_SECONDS = 10.0
_MEMORY_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Command:
    """A container's command and where it runs.

    `log_start`: where in the log its output begins; `root`: an empty folder, where its root is put
    together; `limit`: bytes of memory, 0 for any.
    """

    words: Sequence[str]
    variables: dict[str, str]
    log: Path
    log_start: int = 0
    directory: str | None = None
    hostname: str = ""
    root: Path = Path()
    mounts: Sequence[Mount] = ()
    limit: int = 0


@dataclass(frozen=True, slots=True)
class End:
    code: int
    oom: bool = False


@dataclass(eq=False, slots=True)
class Process:
    """One run of one container."""

    command: Command
    shim: subprocess.Popen[bytes] | ForkedShim
    pid: int
    """Process id of its main process; 0 before it has started."""
    end: asyncio.Future[End]
    over_limit: bool = False
    follower: asyncio.Task[None] | None = None


class ProcessRuntime:
    """Starts containers' processes. Use as an async context manager, on the main thread.

    Args:
        plain: no namespaces, even where they are allowed.
        prepared: forks the containers that it takes.
    """

    def __init__(self, *, plain: bool = False, prepared: PreparedPython | None = None) -> None:
        self._plain, self._prepared = plain, prepared
        self._running: dict[int, Process] = {}
        self._watching: asyncio.Task[None] | None = None
        self.isolation: Isolation = ""

    async def __aenter__(self) -> ProcessRuntime:
        # Should somebody kill a shim, its container's processes come to us.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if not self._plain:
            self.isolation = await self._allowed()
        self._watching = asyncio.create_task(self._watch_memory())
        _log.info("containers are held by: %s", _HELD_BY[self.isolation])
        return self

    async def _allowed(self) -> Isolation:
        with tempfile.TemporaryDirectory(prefix="volcano-elastic-probe-") as folder:
            for isolation in ("root", "user"):
                self.isolation = isolation
                root, log = Path(folder, isolation), Path(folder, "log")
                root.mkdir()
                # With a mount, since that is what most of these machines' rules forbid.
                mounts = [Mount(folder, "/volcano-elastic-probe/folder", read_only=True)]
                command = Command(
                    ["true"], {"PATH": os.defpath}, log, hostname="probe", root=root, mounts=mounts
                )
                with contextlib.suppress(StartError, TimeoutError):
                    async with asyncio.timeout(_PROBE_SECONDS):
                        if (await (await self.start(command)).end).code == 0:
                            return isolation
        return ""

    async def __aexit__(self, *exception: object) -> None:
        """Ends every process, leftovers too."""
        if self._watching:
            self._watching.cancel()
        for process in list(self._running.values()):
            self.kill(process)
        ends = [process.end for process in self._running.values()]
        if ends:
            await asyncio.wait(ends, timeout=8)

    async def start(self, command: Command) -> Process:
        """Runs it in a session of its own, its output appended to its log.

        Raises:
            StartError: no such command or directory, not executable, or a mount failed.
        """
        variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
        variables |= _SHARING | command.variables
        # The interpreter's own folder first, so that `torchrun` and a shell's `python` are ours.
        own = str(Path(sys.executable).parent)
        variables["PATH"] = own + os.pathsep + variables.get("PATH", os.defpath)
        facts = {
            "output": str(command.log),
            "hostname": command.hostname,
            "root": str(command.root),
            "mounts": [asdict(mount) for mount in command.mounts],
            "command": list(command.words),
            "environment": variables,
            "directory": command.directory,
            "home": os.getcwd(),
            "isolation": self.isolation,
            "parent": os.getpid(),
        }
        with open(os.memfd_create("plan", os.MFD_CLOEXEC), "w+b") as plan:
            plan.write(json.dumps(facts).encode())
            plan.seek(0)
            child = self._start_shim(command, plan.fileno())
        loop = asyncio.get_running_loop()
        process = Process(command, child, 0, loop.create_future())
        self._running[child.pid] = process
        ready: asyncio.Future[None] = loop.create_future()
        process.follower = asyncio.create_task(self._follow(process, ready))
        try:
            await asyncio.shield(ready)
        except asyncio.CancelledError:
            self.kill(process)
            raise
        return process

    def _start_shim(self, command: Command, plan: int) -> subprocess.Popen[bytes] | ForkedShim:
        """Starts it at once, so that it is the main thread's child: its life is tied to that."""
        try:
            if self._prepared and self._prepared.takes(command.words, command.variables):
                return self._prepared.start(plan)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", shim.__file__],
                stdin=plan,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"exec: {command.words[0]!r}: {error}") from error

    async def _follow(self, process: Process, ready: asyncio.Future[None]) -> None:
        """Reads the shim's report to its end, which is the container's."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.shim.stdout
        )
        end: End | None = None
        try:
            while line := await reader.readline():
                report = json.loads(line)
                if "error" in report:
                    ready.set_exception(StartError(report["error"]))
                elif "pid" in report:
                    process.pid = report["pid"]
                    ready.set_result(None)
                else:
                    end = End(report["code"], process.over_limit)
                    break
            await asyncio.to_thread(process.shim.wait)
            if end is None:
                await self._end_orphans()
        finally:
            transport.close()
            del self._running[process.shim.pid]
            if not ready.done():
                ready.set_exception(StartError("its shim died before it had started"))
            process.end.set_result(end or End(137, process.over_limit))

    async def _end_orphans(self) -> None:
        """End processes that came to us from a shim that was killed."""
        while True:
            parents = shim.parents()
            own = {pid for pid, parent in parents.items() if parent == os.getpid()}
            strangers = own - self._running.keys()
            if self._prepared:
                strangers.discard(self._prepared.pid)
            if not strangers:
                return
            for stranger in strangers:
                for pid in {stranger, *shim.ancestors([stranger], parents)}:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for stranger in strangers:
                with contextlib.suppress(ChildProcessError):
                    await asyncio.to_thread(os.waitpid, stranger, 0)

    def terminate(self, process: Process) -> None:
        """SIGTERM to the main process only, as a real runtime does."""
        self._signal(process, signal.SIGTERM)

    def kill(self, process: Process, *, oom: bool = False) -> None:
        """SIGKILL to all of it."""
        process.over_limit = process.over_limit or oom
        self._signal(process, signal.SIGUSR1)

    def freeze(self, process: Process) -> None:
        self._signal(process, signal.SIGTSTP)

    def thaw(self, process: Process) -> None:
        self._signal(process, signal.SIGCONT)

    def _signal(self, process: Process, number: signal.Signals) -> None:
        if process.shim.returncode is None and process.shim.pid in self._running:
            process.shim.send_signal(number)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_MEMORY_LOOK_SECONDS)
            running = dict(self._running)
            limits = {
                pid: process.command.limit
                for pid, process in running.items()
                if process.command.limit and not process.over_limit
            }
            if limits:
                # Not on the loop: it takes long where there are many processes, or large ones.
                for pid in await asyncio.to_thread(memory_watch.exceeded, limits):
                    self.kill(running[pid], oom=True)
