"""Containers' processes: found whatever they call themselves, counted, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from embedded_cluster.kubelet import memory_watch, shim
from embedded_cluster.kubelet.process import Command, ProcessRuntime

pytestmark = pytest.mark.process

_NAMELESS = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\xff", 0, 0, 0)  # PR_SET_NAME
print(flush=True)
sys.stdin.read()
"""


async def test_a_process_with_a_name_that_is_no_text_is_held_to_its_limit_too() -> None:
    words = (sys.executable, "-S", "-c", _NAMELESS)
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE)
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 120)
        me = os.getpid()  # it is the only descendant
        assert memory_watch.exceeded({me: 1}) == [me]
        assert memory_watch.exceeded({me: 2**40}) == []
    finally:
        process.kill()
        await process.wait()


_WITHOUT_PARENT = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_whose_first_thread_has_ended_is_killed_too(tmp_path: Path) -> None:
    runtime, log = ProcessRuntime(plain=True), tmp_path / "log"
    async with asyncio.timeout(120):
        process = await runtime.start(
            Command([sys.executable, "-S", "-c", _WITHOUT_PARENT], {}, log)
        )
        stat = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 120
        while "up" not in log.read_text() or ") Z " not in stat.read_text():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        runtime.kill(process)
        try:
            end = await asyncio.wait_for(asyncio.shield(process.end), 120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    assert end.code == 137


def test_a_process_is_its_nearest_shims_though_its_pids_were_used_again() -> None:
    parents = {2: 1, 3: 2, 10: 3, 11: 10, 12: 11, 20: 3, 21: 20, 30: 1, 40: 41, 41: 40, 42: 41}
    assert shim.ancestors([10, 20], parents) == {11: 10, 12: 10, 21: 20}
    assert shim.ancestors([3, 20], parents) == {10: 3, 11: 3, 12: 3, 21: 20}
    assert shim.ancestors([99], parents) == {}


def test_a_look_at_memory_takes_as_many_steps_as_there_are_processes() -> None:
    """However long the line of their ancestors is."""

    class Counted(dict[int, int]):
        steps = 0

        def __getitem__(self, pid: int) -> int:
            self.steps += 1
            return super().__getitem__(pid)

    parents = Counted({pid: pid - 1 for pid in range(5000, 1, -1)})
    assert len(shim.ancestors([2], parents)) == 4998
    assert parents.steps < 5000
