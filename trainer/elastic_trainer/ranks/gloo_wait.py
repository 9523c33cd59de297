"""Tells whether a collective of gloo waits for what can't come any more, which nothing ends.

gloo puts a message that the kernel doesn't take whole aside, and also one whose peer was killed a
moment before (gloo/transport/tcp/pair.cc, `sendAsyncMode`). When the connection ends it tells who
waits to receive and whose send has not begun, but nobody who waits for that message
(`signalException`): its thread sleeps for the group's time-out, 30 minutes. With gradients that
take long on the way, one of ten killed workers leaves its neighbour there, where the kernel gives
connections 208 KiB to send from, as is usual (net.core.wmem_max).

All that gloo could tell is told before it closes a connection; so who waits for a message once all
are closed waits in vain. gloo's threads tell such a wait by its time-out from that for work, which
has none. Where the kernel doesn't say what a thread waits for, none is found.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

THREAD_NAME = "pt_gloo_runloop"
"""Name of torch's threads that run gloo's collectives."""
_FUTEX = {"x86_64": "202", "aarch64": "98", "riscv64": "98"}
"""Number of the system call by which a thread waits, by machine."""
_TIME_OUT = 4
"""Word of /proc/…/syscall that is the address of the wait's time-out; 0: it has none."""

Wait = tuple[str, str]
"""Thread, and the address that it waits at."""


def message_waits(
    tasks: Path = Path("/proc/self/task"), machine: str = os.uname().machine
) -> frozenset[Wait]:
    """Return the waits for messages that gloo's threads are in.

    Args:
        tasks: the threads' folders.
        machine: the processor's kind, by which the kernel numbers its calls.
    """
    found = set()
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # it has ended, or the kernel doesn't say
            if (task / "comm").read_text().strip() != THREAD_NAME:
                continue
            words = (task / "syscall").read_text().split()  # "running", or number and arguments
            if words[0] == _FUTEX.get(machine) and int(words[_TIME_OUT], 16):
                found.add((task.name, words[1]))
    return frozenset(found)
