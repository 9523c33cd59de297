"""What a container says at its end: its termination message."""

from __future__ import annotations

from pathlib import Path

from volcano_elastic.kube.resource import Object

PATH = "/dev/termination-log"
_FILE_BYTES = 4096
# Of the log, where it stands in for the message.
_LOG_BYTES, _LOG_LINES = 2048, 80


def message(container: Object, code: int, file: Path, log: Path, log_start: int) -> str:
    """From its file, or where its policy is FallbackToLogsOnError, from the end of its log.

    Args:
        log_start: where in `log` this run began.
    """
    text = _tail(file, 0, _FILE_BYTES, from_start=True)
    if text or code == 0:
        return text
    if container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        return ""
    lines = _tail(log, log_start, _LOG_BYTES).splitlines(keepends=True)
    return "".join(lines[-_LOG_LINES:])


def _tail(path: Path, start: int, limit: int, *, from_start: bool = False) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(start if from_start else max(start, size - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""
