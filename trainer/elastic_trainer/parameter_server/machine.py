"""Reads what this process and its machine use, from Linux' /proc."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_trainer.parameter_server.load import Usage

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage(proc: Path = PROC) -> Usage:
    """Return the use so far; 0 for what can't be read."""
    times = os.times()
    memory = _meminfo(proc)
    return Usage(
        cpu_seconds=times.user + times.system,
        memory=_resident(proc),
        machine_cpu_seconds=_busy(proc),
        machine_cpus=os.cpu_count() or 0,
        machine_memory=memory.get("MemTotal", 0),
        machine_memory_free=memory.get("MemAvailable", 0),
    )


def _resident(proc: Path) -> int:
    words = _text(proc / "self" / "statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 and words[1].isdecimal() else 0


def _busy(proc: Path) -> float:
    """Return the seconds that all CPUs have worked: user, nice, system, irq, softirq, steal."""
    words = _text(proc / "stat").partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:9]):
        return 0.0
    return sum(int(words[place]) for place in (1, 2, 3, 6, 7, 8)) / _TICKS


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in _text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0]) * 1024
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
