"""The stacks of a worker's threads, which its agent may have at any time.

Asked by a signal, faulthandler writes them in C: also where the main thread waits in a collective,
or some library holds the interpreter's lock. A process without that, or that the kernel keeps from
its signals, is described by what the kernel tells of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import BinaryIO

from elastic_trainer.link import error_file

SIGNAL = signal.SIGRTMIN + 13
"""One of those that nobody else is known to use."""
ANSWER_SECONDS = 2.0
"""For the stacks to be written."""
_LOOK_SECONDS = 0.05
STACK_CHARACTERS = 3800
"""Length of a worker's stacks, for a failure's record to keep them whole."""
MOST_FRAMES = 30
"""Frames of a thread."""
_STARTS_SCRIPTS = "/elastic_trainer/launch/script.py"
_MOST_BYTES = 1 << 18
_TICKS = os.sysconf("SC_CLK_TCK")
_kept: list[BinaryIO] = []
"""faulthandler writes to the descriptor of a file that it does not keep."""


def stack_path(error_path: str) -> str:
    """Return where the worker with this error file writes its stacks; empty: nowhere."""
    return os.path.join(os.path.dirname(error_path), "stack") if error_path else ""


def offer_stack() -> None:
    """Let this worker's agent take its stacks from now on, where torchrun names an error file.
    Never fails."""
    path = stack_path(os.environ.get(error_file.VARIABLE, ""))
    if not path or _kept:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _kept.append(open(path, "ab", buffering=0))  # noqa: SIM115  # until the process ends
        faulthandler.register(SIGNAL, file=_kept[0], all_threads=True)


async def take_stack(pid: int, error_path: str, seconds: float = ANSWER_SECONDS) -> str:
    """Return what process `pid` does: a line of the kernel's words, then the stacks of all threads,
    the main one first, as far as it offers them. Never fails.

    Args:
        error_path: the worker's error file.
        seconds: for it to answer.
    """
    doing = kernel_words(pid)
    path = Path(stack_path(error_path))
    if not error_path or not _offers(pid):
        return f"{doing}; it does not offer its stacks"
    try:
        before = path.stat().st_size
        os.kill(pid, SIGNAL)
        await _settled(path, before, seconds)
        with open(path, "rb") as file:
            file.seek(before)
            found = file.read(_MOST_BYTES)
    except OSError as error:
        return f"{doing}; its stacks can't be taken: {error}"
    if not found:
        return f"{doing}; it did not write its stacks within {seconds:g} s"
    return f"{doing}\n{shaped(found.decode(errors='replace'))}"


def shaped(dump: str) -> str:
    """Return what faulthandler wrote with the oldest thread, which is the main one, first, and
    without the frames that started the script: within STACK_CHARACTERS, newest frames first."""
    threads = []
    for block in reversed(dump.strip().split("\n\n")):
        lines = block.splitlines()
        own = (number for number, line in enumerate(lines) if _STARTS_SCRIPTS in line)
        threads.append("\n".join(lines[: next(own, len(lines))][: MOST_FRAMES + 1]))
    return "\n\n".join(threads)[:STACK_CHARACTERS]


async def _settled(path: Path, before: int, seconds: float) -> None:
    """Return once something new is in the file and nothing more comes; or after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    last = before
    while loop.time() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        size = path.stat().st_size
        if size == last > before:
            return
        last = size


def _offers(pid: int) -> bool:
    """Tell whether the signal would be caught: else it would end the process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def kernel_words(pid: int) -> str:
    """Return in what state a process is, and where in the kernel its main thread waits."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"process {pid} is gone"
    place = ""
    with contextlib.suppress(OSError):  # not everywhere told to everybody
        place = Path(f"/proc/{pid}/wchan").read_text().strip("\0 \n")
    return f"process {pid}, state {state}" + (f" in {place}" if place not in ("", "0") else "")


def session_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a worker and of what it has started, as its loader's processes; 0 of
    what is gone."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == pid or int(folder.name) == pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS
