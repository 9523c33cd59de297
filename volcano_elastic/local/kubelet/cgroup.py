"""Where this machine lets us hold containers to their memory limits, if it does."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNIFIED = "cgroup2"
_NAME = "volcano-elastic-"


@dataclass(frozen=True, slots=True)
class MemoryCgroups:
    """A folder in which control groups with a memory limit can be made."""

    folder: Path
    unified: bool

    def plan(self, name: str, limit: int) -> dict[str, Any]:
        """What shim.py makes for a container of at most `limit` bytes."""
        if self.unified:
            # As a kubelet: the container ends as a whole, rather than going on crippled.
            settings = {"memory.max": str(limit), "memory.oom.group": "1"}
            swap = {"memory.swap.max": "0"}
        else:
            settings = {"memory.limit_in_bytes": str(limit)}
            swap = {"memory.memsw.limit_in_bytes": str(limit)}
        return {
            "directory": str(self.folder / f"{_NAME}{name}-{os.getpid()}"),
            "settings": settings,
            # There only where the kernel accounts for swap.
            "optional": swap,
            "events": "memory.events" if self.unified else "memory.oom_control",
        }


def find() -> MemoryCgroups | None:
    """The first usable one: below our own control group, or below the root of all."""
    for folder, unified in _candidates():
        with contextlib.suppress(OSError):
            if unified and not _enabled(folder):
                continue
            probe = folder / f"{_NAME}probe-{os.getpid()}"
            probe.mkdir()
            usable = (probe / ("memory.max" if unified else "memory.limit_in_bytes")).exists()
            probe.rmdir()
            if usable:
                _clear(folder)
                return MemoryCgroups(folder, unified)
    return None


def _clear(folder: Path) -> None:
    """What was left by kubelets that were killed together with their shims."""
    for old in folder.glob(f"{_NAME}*-*"):
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                old.rmdir()


def _enabled(folder: Path) -> bool:
    """Children of `folder` are held to memory limits; asked for where it is not so yet."""
    control = folder / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        # Refused where `folder` has processes of its own, as it has unless it is the root.
        control.write_text("+memory")
    return True


def _candidates() -> list[tuple[Path, bool]]:
    mounts: list[tuple[Path, bool]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mounted, kind, options, *_ = line.split()
            if kind == _UNIFIED:
                mounts.append((Path(mounted), True))
            elif kind == "cgroup" and "memory" in options.split(","):
                mounts.append((Path(mounted), False))
    own: dict[bool, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                own[True] = path
            elif "memory" in controllers.split(","):
                own[False] = path
    found = []
    for place, unified in mounts:
        below = own.get(unified, "/").strip("/")
        found += [(place / below, unified)] if below else []
        found.append((place, unified))
    return found
