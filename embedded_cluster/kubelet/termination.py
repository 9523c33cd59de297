"""Reads a container's termination message."""

from __future__ import annotations

from pathlib import Path

from volcano_elastic.kube.resource import Object

PATH = "/dev/termination-log"
VARIABLE = "VOLCANO_ELASTIC_TERMINATION_LOG"
"""Where the file is in a container without mounts, for the trainer."""
_FILE_BYTES = 4096
# Of the log, where it stands in for the message.
_LOG_BYTES, _LOG_LINES = 2048, 80


def message(container: Object, code: int, file: Path, log: Path, log_start: int) -> str:
    """From its file, or where its policy is FallbackToLogsOnError, from the end of its log.

    Args:
        log_start: where in `log` this run began.
    """
    text = _read(file, _FILE_BYTES)
    if text or code == 0 or container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        return text
    lines = _read(log, _LOG_BYTES, log_start).splitlines(keepends=True)
    return "".join(lines[-_LOG_LINES:])


def _read(path: Path, limit: int, end_of: int | None = None) -> str:
    """The first bytes; or the last ones, of what begins at `end_of`."""
    try:
        with path.open("rb") as file:
            if end_of is not None:
                file.seek(max(end_of, file.seek(0, 2) - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""
