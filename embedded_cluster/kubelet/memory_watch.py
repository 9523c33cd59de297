"""Memory limits: what containers have of the machine's memory, in one look at all its processes."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping

from embedded_cluster.kubelet import shim

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident(pid: int) -> int:
    """Bytes; pages that several processes share count for each of them."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    """Bytes; of shared pages a share."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        return next((int(ln.split()[1]) for ln in file if ln.startswith(b"Pss:")), 0) * 1024
    return 0


def exceeded(limits: Mapping[int, int]) -> list[int]:
    """Return the containers that have more than their limit. Reads files of the kernel, for a
    while.

    Args:
        limits: bytes by container, which is the pid of its shim.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for pid, container in shim.ancestors(limits, shim.parents()).items():
        members[container].append(pid)
    # The first can only be too much, and is read quickly: most containers need no second look.
    return [
        container
        for container, limit in limits.items()
        if all(sum(map(of, members[container])) > limit for of in (_resident, _proportional))
    ]
