"""Answers that several viewers ask for: worked out once, however many ask, and good for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

_MOST = 256


@dataclass(slots=True)
class _Answer:
    task: asyncio.Task[bytes]
    asked: float


class AnswerCache:
    """Answers by what was asked.

    Args:
        seconds: for which an answer is good.
        at_once: most that are worked out at the same time; others wait.
    """

    def __init__(self, seconds: float, at_once: int, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._free = asyncio.Semaphore(at_once)
        self._answers: dict[Hashable, _Answer] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer that is good now, or have it worked out. What `work` raises is raised
        to all who wait for it, and not kept."""
        now = self._clock()
        for old in [k for k, a in self._answers.items() if self._over(a, now)]:
            del self._answers[old]
        found = self._answers.get(key)
        if found is None:
            while len(self._answers) >= _MOST:
                del self._answers[next(iter(self._answers))]
            found = self._answers[key] = _Answer(asyncio.create_task(self._work(work)), now)
        # A viewer who goes away takes nothing from the others.
        return await asyncio.shield(found.task)

    def _over(self, answer: _Answer, now: float) -> bool:
        if not answer.task.done():
            return False
        failed = answer.task.cancelled() or answer.task.exception() is not None
        return failed or now - answer.asked > self._seconds

    async def _work(self, work: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self._free:
            return await work()

    async def close(self) -> None:
        """Ends what is being worked out."""
        tasks = [answer.task for answer in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
