"""The error file that torchrun names for each worker, in the format of torch's `@record`.

Workers write it for scripts without `@record` too; its time of change is the time of the failure,
as torch's own timestamps have whole seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "TORCHELASTIC_ERROR_FILE"
MOST_BYTES = 1 << 20
_OWN = "volcanoElastic"
_SURROUNDINGS = (
    "/gloo/",
    "Pin memory thread exited",
    "items of ancdata",
    "can't start new thread",
)
"""Texts of RuntimeErrors that come from outside the training's code."""


@dataclass(frozen=True)
class Recorded:
    message: str
    stack: str
    time: float
    """Unix seconds."""
    error: str = ""
    """Error that `own` told; empty: it told none."""
    step: int = -1


def write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Unless there is one already, or torchrun named none. Never fails."""
    path = os.environ.get(VARIABLE, "")
    if not path or os.path.exists(path):
        return
    with contextlib.suppress(Exception):
        text = f"{kind.__name__}: {error}"
        stack = "".join(traceback.format_exception(kind, error, trace))
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def own(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, step: int
) -> None:
    """Adds to what `write` or `@record` wrote that the training's own code has failed: no peer was
    its cause, and another try would most likely repeat it. Never fails.

    Args:
        step: the last that was applied in this process; -1: none.
    """
    path = os.environ.get(VARIABLE, "")
    if not path or not of_the_code(kind, str(error)):
        return
    with contextlib.suppress(Exception):
        frames = traceback.extract_tb(trace)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        found = os.stat(path)
        data = json.loads(Path(path).read_bytes())
        data[_OWN] = {"error": kind.__name__ + place, "step": step}
        Path(path).write_text(json.dumps(data))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # it is the failure's time


def of_the_code(kind: type[BaseException], text: str) -> bool:
    """Rather than of its surroundings, where another try may help: OSError, MemoryError, a pipe's
    EOFError, the kinds of libraries' own, such as torch's for devices, and what gloo says of a
    connection or a data loader of its helpers."""
    passing = (OSError, MemoryError, EOFError)
    builtin = kind.__module__ == "builtins" and not issubclass(kind, passing)
    return builtin and not (kind is RuntimeError and any(words in text for words in _SURROUNDINGS))


def read(path: str) -> Recorded | None:
    """None if there is none, or nothing that `@record` writes."""
    try:
        with open(path, "rb") as file:
            changed = os.fstat(file.fileno()).st_mtime
            data: Any = json.loads(file.read(MOST_BYTES))
        own_error = data.get(_OWN) or {}
        error, step = str(own_error.get("error", "")), int(own_error.get("step", -1))
        message = data["message"]
        if isinstance(message, str):
            return Recorded(message, "", changed, error, step)
        stack = (message.get("extraInfo") or {}).get("py_callstack") or ""
        return Recorded(str(message["message"]), str(stack), changed, error, step)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
