"""Reads what the agent's own container uses from its control group, version 1 or 2; never another
container's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_EVENTS, _CONTROL = "memory.events", "memory.oom_control"
_CPU_FOLDERS = ("cpuacct", "cpu,cpuacct")


class NotMeasuredError(RuntimeError):
    """Says which file was expected, and what was found."""


@dataclass(frozen=True)
class Usage:
    cpu_seconds: float
    """Since the group was made."""
    memory: int
    """Bytes, without file pages that the kernel would drop first: what Kubernetes calls the working
    set, and what a limit of memory is held against."""


def paths(text: str) -> dict[str, str]:
    """Return by controller the group of a process, of the lines of its `cgroup` file; version 2
    goes by the empty name."""
    found = dict[str, str]()
    for line in text.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def usage_v2(cpu_stat: str, memory_current: str, memory_stat: str) -> Usage:
    """Return the usage that the files of a group of version 2 tell.

    Raises:
        NotMeasuredError: a number is missing.
    """
    microseconds = _entry(cpu_stat, "usage_usec", "cpu.stat")
    held = _number(memory_current, "memory.current")
    return Usage(microseconds / 1e6, _in_use(held, memory_stat, "inactive_file"))


def usage_v1(cpuacct_usage: str, memory_usage: str, memory_stat: str) -> Usage:
    """Return the usage that the files of the groups of version 1 tell.

    Raises:
        NotMeasuredError: a number is missing.
    """
    nanoseconds = _number(cpuacct_usage, "cpuacct.usage")
    held = _number(memory_usage, "memory.usage_in_bytes")
    return Usage(nanoseconds / 1e9, _in_use(held, memory_stat, "total_inactive_file"))


def read(root: Path = ROOT, own: Path = OWN) -> Usage:
    """Return what this process' container uses.

    Args:
        root: where control groups are mounted.
        own: says which this process is in.

    Raises:
        NotMeasuredError: the files are not there, or say something else.
    """
    groups = paths(_text(own))
    if (root / "cgroup.controllers").exists():
        group = _folder(root, groups, "")
        names = ("cpu.stat", "memory.current", "memory.stat")
        return usage_v2(*(_text(group / name) for name in names))
    memory = _folder(root / "memory", groups, "memory")
    mounted = next((root / name for name in _CPU_FOLDERS if (root / name).is_dir()), root / "cpu")
    cpu = _folder(mounted, groups, "cpuacct")
    return usage_v1(
        _text(cpu / "cpuacct.usage"),
        _text(memory / "memory.usage_in_bytes"),
        _text(memory / "memory.stat"),
    )


def oom_kills(root: Path = ROOT, own: Path = OWN) -> int:
    """Return how many processes of this process' container the kernel has killed for memory; 0 if
    it can't tell (version 1 does since Linux 4.13).

    Args:
        root: where control groups are mounted.
        own: says which this process is in.
    """
    try:
        groups = paths(_text(own))
        if (root / "cgroup.controllers").exists():
            return _entry(_text(_folder(root, groups, "") / _EVENTS), "oom_kill", _EVENTS)
        file = _folder(root / "memory", groups, "memory") / _CONTROL
        return _entry(_text(file), "oom_kill", _CONTROL)
    except NotMeasuredError:
        return 0


def _folder(mounted: Path, groups: Mapping[str, str], controller: str) -> Path:
    """Return the group's folder. A container that has no namespace of groups is told its path on
    the machine, but has its own group mounted in the place of all."""
    below = mounted / groups.get(controller, "").lstrip("/")
    return below if below.is_dir() else mounted


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotMeasuredError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _in_use(held: int, stat: str, droppable: str) -> int:
    return max(0, held - _entry(stat, droppable, "memory.stat"))


def _entry(stat: str, name: str, file: str) -> int:
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value, f"{name} in {file}")
    raise NotMeasuredError(f"{file}: expected a line {name}, found none")


def _number(text: str, what: str) -> int:
    if not text.strip().isdecimal():
        raise NotMeasuredError(f"{what}: expected a number, found {text.strip()[:40]!r}")
    return int(text)
