"""Memory limits: what containers have of the machine's memory, in one look at all its processes."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from volcano_elastic.local.kubelet import shim

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


def exceeded(limits: Mapping[int, int], shims: Mapping[int, int]) -> list[int]:
    """Which containers have more than their limit. Reads files of the kernel, for a while.

    Args:
        limits: bytes by container, which is the pid of its own shim.
        shims: the container of every shim, those of what is run inside of it too.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for pid, nearest in shim.ancestors(shims, shim.parents()).items():
        members[shims[nearest]].append(pid)
    return [
        container
        for container, limit in limits.items()
        if all(_total(members[container], *figure) > limit for figure in _FIGURES)
    ]
