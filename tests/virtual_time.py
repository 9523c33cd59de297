"""An event loop whose clock jumps to the next timer instead of waiting for it.

Tests of loops and delays take no time on it, and come out alike on any machine. It is for what does
no I/O: a file descriptor that nothing has happened to yet does not hold the clock.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Seconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        assert ready or timeout is not None, "nothing is left that could wake the loop"
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
    """For pytest-asyncio's fixture `event_loop_policy`."""

    def new_event_loop(self) -> Any:
        return VirtualTimeLoop()
