"""The processes that belong to a container, found by a mark in their environment.

A process group doesn't hold them: torchrun starts each worker in a session of its own. The mark is
inherited by every descendant, and still found after its parent has died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

MARK = "VOLCANO_ELASTIC_LOCAL_CONTAINER"


def marked(prefix: str) -> Iterator[int]:
    """Ids of the live processes whose mark begins with `prefix`, this process excepted."""
    wanted = f"{MARK}={prefix}".encode()
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == own:
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read()
        except OSError:
            continue
        if variables.startswith(wanted) or b"\0" + wanted in variables:
            yield int(entry)


def kill_marked(prefix: str, *, seconds: float = 5.0) -> bool:
    """SIGKILL to all of them, until none is left or `seconds` passed; True if none is left."""
    deadline = time.monotonic() + seconds
    while True:
        found = list(marked(prefix))
        if not found:
            return True
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
