"""Waits of tests for what comes about elsewhere: in another process or task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from volcano_elastic.kube.client import NotFound

PATIENCE = 120.0
"""Seconds; a busy machine needs many of them for what a quiet one does at once."""


async def eventually(
    condition: Callable[[], Awaitable[Any]], what: str, *, seconds: float = PATIENCE
) -> Any:
    """Return the condition's first true answer; a look at what isn't there yet is none.

    Raises:
        AssertionError: none came within `seconds`; it says what the last look found missing.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        missing: Exception | None = None
        try:
            if found := await condition():
                return found
        except (LookupError, NotFound) as error:
            missing = error
        if clock() > deadline:
            last = f"; the last look missed {missing!r}" if missing else ""
            raise AssertionError(f"not within {seconds:.0f} s: {what}{last}") from missing
        await asyncio.sleep(0.05)
