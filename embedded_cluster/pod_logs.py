"""The logs of all pods as one stream of lines, also of pods that appear later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class PodLogs:
    """Reads what the process kubelet writes: `<folder>/<namespace>_<pod>_<uid>/<container>.log`.

    The files, not the API, since they outlive their pods: the last lines of a pod that was
    removed are read too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, tuple[str, BinaryIO, bytes]] = {}

    def new_lines(self, *, last: bool = False) -> Iterator[str]:
        """The lines written since the last call, each after its `[pod]`.

        Args:
            last: lines without an end are given out too.
        """
        for path in sorted(self._folder.glob("*/*.log")):
            if path not in self._open:
                _, pod, _ = path.parent.name.split("_", 2)
                prefix = f"[{pod}]" if _is_only(path) else f"[{pod}/{path.stem}]"
                self._open[path] = prefix, path.open("rb"), b""
        for path, (prefix, file, pending) in self._open.items():
            *lines, rest = (pending + file.read()).split(b"\n")
            if last and rest:
                lines, rest = [*lines, rest], b""
            self._open[path] = prefix, file, rest
            for line in lines:
                yield f"{prefix} {line.decode(errors='replace')}"

    def close(self) -> None:
        for _, file, _ in self._open.values():
            file.close()


def _is_only(path: Path) -> bool:
    return len(list(path.parent.glob("*.log"))) == 1
