"""Memory that this container may still use: one that takes more is killed without a word."""

from __future__ import annotations

from pathlib import Path

_VERSIONS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Files below the control group's folder, of versions 2 and 1; and what of it is given back."""


def free_memory(group: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return bytes, by the machine's and the container's limits as far as they can be read."""
    found = [1 << 62]
    available = _lines(proc / "meminfo").get("MemAvailable:")
    if available is not None:
        found.append(available * 1024)
    for most, used, kinds, given_back in _VERSIONS:
        try:
            limit, held = (int((group / one).read_text()) for one in (most, used))
        except (OSError, ValueError):  # the other version, or "max"
            continue
        found.append(limit - held + _lines(group / kinds).get(given_back, 0))
    return min(found)


def _lines(path: Path) -> dict[str, int]:
    """Return the numbers of a file by their names; nothing where there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
