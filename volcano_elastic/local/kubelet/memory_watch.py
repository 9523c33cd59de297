"""Memory limits: containers' processes are looked at, four times a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from volcano_elastic.local.kubelet import shim

_LOOK_SECONDS = 0.25
# Resident memory counts pages that several processes share several times, so it can only be too
# much; but it is read quickly.
_FIGURES = (("status", b"VmRSS:"), ("smaps_rollup", b"Pss:"))


def _total(pids: Iterable[int], file: str, figure: bytes) -> int:
    """Bytes."""
    total = 0
    for pid in pids:
        # Not as text: a process may call itself anything, and the kernel cuts names anywhere.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", "rb") as lines:
            total += next((int(ln.split()[1]) for ln in lines if ln.startswith(figure)), 0) * 1024
    return total


async def watch(limits: Callable[[], dict[int, int]], exceeded: Callable[[int], None]) -> None:
    """Until cancelled.

    Args:
        limits: bytes by shim, as things are.
        exceeded: told of a shim whose container has more than its limit.
    """
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if not (now := limits()):
            continue
        parents = shim.parents()
        for pid, limit in now.items():
            family = shim.descendants(pid, parents)
            if all(_total(family, *figure) > limit for figure in _FIGURES):
                exceeded(pid)
