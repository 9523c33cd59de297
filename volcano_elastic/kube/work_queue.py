"""Keys waiting for work: each at most once, delays and back-off per key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable


class WorkQueue:
    """A key added while it is worked on is worked on again afterwards, never concurrently.

    Args:
        base, cap: seconds; the first delay after a failure, and the longest.
        on_take: told for how many seconds a key was ready before it was taken.
    """

    def __init__(
        self,
        *,
        base: float = 0.05,
        cap: float = 30.0,
        on_take: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._base, self._cap, self._on_take = base, cap, on_take
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: dict[str, float] = {}
        """Since when."""
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._resting: dict[str, asyncio.TimerHandle] = {}
        """A key that rests counts as worked on."""
        self._failures: dict[str, int] = {}
        self._random = random.Random()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: str) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued[key] = asyncio.get_running_loop().time()
            self._ready.put_nowait(key)

    def add_after(self, key: str, seconds: float) -> None:
        """The earliest of several delays for a key holds."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        old = self._timers.get(key)
        if old is not None:
            if old[0] <= when:
                return
            old[1].cancel()
        self._timers[key] = (when, loop.call_at(when, self._fire, key))

    def _fire(self, key: str) -> None:
        del self._timers[key]
        self.add(key)

    async def take(self) -> str:
        key = await self._ready.get()
        self._on_take(asyncio.get_running_loop().time() - self._queued.pop(key))
        self._working.add(key)
        return key

    def done(self, key: str, rest: float = 0.0) -> None:
        """The key is not worked on again for `rest` seconds, whoever adds it."""
        self._failures.pop(key, None)
        if rest > 0:
            timer = asyncio.get_running_loop().call_later(rest, self._rested, key)
            self._resting[key] = timer
        else:
            self._finish(key)

    def _rested(self, key: str) -> None:
        del self._resting[key]
        self._finish(key)

    def failed(self, key: str) -> float:
        """Works on the key again after an exponential, jittered delay; returns it in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._base * 2.0**failures, self._cap) * self._random.uniform(0.5, 1.0)
        self._finish(key)
        self.add_after(key, delay)
        return delay

    def _finish(self, key: str) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        for timer in [*(timer for _, timer in self._timers.values()), *self._resting.values()]:
            timer.cancel()
        self._timers.clear()
        self._resting.clear()
