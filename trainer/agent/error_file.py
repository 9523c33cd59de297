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


@dataclass(frozen=True)
class Recorded:
    message: str
    stack: str
    time: float
    """Unix seconds."""


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


def of_the_code(kind: type[BaseException]) -> bool:
    """Rather than of its surroundings, where another try may help: OSError, MemoryError, and the
    kinds of libraries' own, such as torch's for devices."""
    return kind.__module__ == "builtins" and not issubclass(kind, (OSError, MemoryError))


def read(path: str) -> Recorded | None:
    """None if there is none, or nothing that `@record` writes."""
    try:
        with open(path, "rb") as file:
            changed = os.fstat(file.fileno()).st_mtime
            data: Any = json.loads(file.read(MOST_BYTES))
        message = data["message"]
        if isinstance(message, str):
            return Recorded(message, "", changed)
        stack = (message.get("extraInfo") or {}).get("py_callstack") or ""
        return Recorded(str(message["message"]), str(stack), changed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
