"""A container's log: the file the kubelet writes it to."""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from embedded_cluster.apiserver.pod import is_finished
from embedded_cluster.apiserver.request import flag, number
from embedded_cluster.apiserver.status import (
    bad_request,
    forbidden_field,
    invalid_value,
    log_options_invalid,
)
from volcano_elastic.kube.resource import Object

# The kubelet names here the folder that holds `<container>.log`.
LOG_FOLDER_ANNOTATION = "local.volcano-elastic.io/log-dir"
_CHUNK = 64 * 1024
_POLL_SECONDS = 0.1
_REFUSED = {
    ("previous",): "logs of earlier runs are in the same file",
    ("sinceSeconds", "sinceTime", "timestamps"): "lines are kept without their times",
}
_LEAST = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None


def options(query: Mapping[str, str], pod: str) -> LogOptions:
    """Raises StatusError, 400 or 422, for numbers that are none, and for what is not kept."""
    numbers = {name: number(query, name) for name in _LEAST}
    causes = [
        invalid_value(name, value, f"must be at least {_LEAST[name]}")
        for name, value in numbers.items()
        if value is not None and value < _LEAST[name]
    ]
    if "stream" in query:
        causes.append(forbidden_field("stream", "may not be specified"))
    if causes:
        raise log_options_invalid(pod, causes)
    for names, why in _REFUSED.items():
        for name in names:
            if flag(query, name) and query[name]:
                raise bad_request(f"{name}: {why}; ask without it")
    return LogOptions(flag(query, "follow"), numbers["tailLines"], numbers["limitBytes"])


def file_of(pod: Object, container: str | None) -> Path:
    """Return the log file of `container`, or of the only one.

    Raises:
        StatusError: 400: no such container, which one isn't said, or it hasn't started.
    """
    name, container = pod["metadata"]["name"], container_of(pod, container)
    folder = (pod["metadata"].get("annotations") or {}).get(LOG_FOLDER_ANNOTATION)
    file = Path(folder) / f"{container}.log" if folder else None
    if file is None or not file.is_file():
        raise bad_request(
            f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
        )
    return file


def container_of(pod: Object, container: str | None) -> str:
    """The one that is meant.

    Raises:
        StatusError: 400: no such container, or which one isn't said.
    """
    name, spec = pod["metadata"]["name"], pod["spec"]
    names = [one["name"] for one in spec["containers"]]
    known = names + [one["name"] for one in spec.get("initContainers") or ()]
    if not container:
        if len(names) > 1:
            raise bad_request(
                f"a container name must be specified for pod {name}, choose one of: "
                f"[{' '.join(names)}]"
            )
        container = names[0]
    if container not in known:
        raise bad_request(f"container {container} is not valid for pod {name}")
    return container


async def read(
    file: Path, wanted: LogOptions, current: Callable[[], Object | None]
) -> AsyncIterator[bytes]:
    """The log in chunks; when following, until this run of its container, or the pod, is over.

    Args:
        file: of `file_of`.
        current: the pod as it is; None once it is gone.
    """
    first, left = None, sys.maxsize if wanted.limit_bytes is None else wanted.limit_bytes
    with file.open("rb") as log:
        if wanted.tail_lines is not None:
            log.seek(_tail_offset(log, wanted.tail_lines))
        while True:
            pod = current()
            # Asked before reading: what was written before the end is read after it.
            run, ended = _run(pod, file.stem) if pod else (first, True)
            first = run if first is None else first
            ended = ended or run != first
            while chunk := log.read(min(_CHUNK, left)):
                left -= len(chunk)
                yield chunk
            if not wanted.follow or ended or not left:
                return
            await asyncio.sleep(_POLL_SECONDS)


def _run(pod: Object, container: str) -> tuple[int, bool]:
    """The number of its present run, and whether that is over."""
    status = pod.get("status") or {}
    fields = ("containerStatuses", "initContainerStatuses")
    of = {one["name"]: one for name in fields for one in status.get(name) or ()}
    own = of.get(container, {})
    state, last = own.get("state") or {}, own.get("lastState") or {}
    over = "terminated" in state or ("waiting" in state and "terminated" in last)
    return own.get("restartCount", 0), over or is_finished(pod)


def _tail_offset(log: BinaryIO, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin."""
    end = log.seek(0, 2)
    if not end or not lines:
        return end
    with mmap.mmap(log.fileno(), end, access=mmap.ACCESS_READ) as text:
        # The newline that ends the file begins no line.
        start = end - 1
        for _ in range(lines):
            start = text.rfind(b"\n", 0, start)
            if start < 0:
                return 0
    return start + 1
