"""Memory limits where no control group holds them: processes are looked at, four times a second."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_LOOK_SECONDS = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Entry:
    """A process: its parent, and its resident memory in bytes."""

    parent: int
    resident: int


def processes() -> dict[int, Entry]:
    """Every live process of this machine, by id."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                found[int(name)] = Entry(int(fields[1]), int(fields[21]) * _PAGE)
    return found


def descendants(ancestor: int, table: dict[int, Entry]) -> set[int]:
    """Without the ancestor itself."""
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def proportional(pids: Iterable[int]) -> int:
    """Bytes in memory, pages shared by several processes shared out among them."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                line = next((line for line in file if line.startswith("Pss:")), "Pss: 0 kB")
        except OSError:
            continue
        total += int(line.split()[1]) * 1024
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
        table = processes()
        for shim, limit in now.items():
            family = descendants(shim, table)
            # Resident memory counts shared pages several times, so it can only be too much.
            if sum(table[pid].resident for pid in family) > limit and proportional(family) > limit:
                exceeded(shim)
