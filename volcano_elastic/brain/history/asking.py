"""Asks the history one question at a time, in a thread, and waits for no answer for ever.

answers         ─► the next question at once
fails           ─► no further question for ten times as long as that took, 1 to 60 s
gives no answer ─► likewise, and none until it has given one after all: the thread is left to itself
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.database.database import DatabaseError, RefusedError

_log = logging.getLogger(__name__)
PATIENCE_SECONDS = 20.0
"""More than a database's own time-outs."""
_REST, _LEAST_REST, _MOST_REST = 10.0, 1.0, 60.0
Answer = TypeVar("Answer")


class Asking:
    """All questions to one history.

    Args:
        lost: is called where the database has failed: it may come back without its tables, and what
            was in them.
        clock: returns seconds.
        patience: seconds that an answer may take.
    """

    def __init__(
        self,
        history: History,
        metrics: Metrics,
        lost: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._history, self._metrics, self._lost = history, metrics, lost
        self._clock, self._patience = clock, patience
        self._turn = asyncio.Lock()
        self._ready = False
        self._told = ""
        self._not_before = clock()
        self._open: asyncio.Future[object] | None = None
        """A question that was given up, and may still be asked by its thread."""

    async def ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Return the history's answer; None if the database fails, which is logged once a reason,
        or has just failed.

        Raises:
            RefusedError: it doesn't take what was to be written.
        """
        async with self._turn:
            if self._open is not None and self._open.done():
                self._open = None
            began = self._clock()
            if self._open is not None or began < self._not_before:
                return None
            try:
                if not self._ready:
                    await self._answer(self._history.migrate)
                    self._ready = True
                answer = await self._answer(question)
            except RefusedError:
                raise
            except DatabaseError as error:
                rest = _REST * (self._clock() - began)
                self._not_before = self._clock() + min(_MOST_REST, max(_LEAST_REST, rest))
                self._failed(str(error))
                return None
            self._metrics.history_up.set(1)
            if self._told:
                self._told = ""
                _log.warning("the history is back: %s", self._history.name)
            return answer

    def _failed(self, why: str) -> None:
        self._metrics.history_up.set(0)
        self._metrics.history_failures.inc()
        self._ready = False
        self._lost()
        if why != self._told:
            self._told = why
            _log.warning("no history, so no advice: %s", why)

    async def _answer(self, question: Callable[[], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        threading.Thread(
            target=_run, args=(loop, answer, question), name="history", daemon=True
        ).start()
        await asyncio.wait({answer}, timeout=self._patience)
        if not answer.done():
            self._open = answer  # type: ignore[assignment]
            # Whatever comes of it, nobody asks for it any more.
            answer.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise DatabaseError(f"{self._history.name}: no answer in {self._patience:g} s")
        return answer.result()


def _run(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Answer],
    question: Callable[[], Answer],
) -> None:
    """Runs in a thread that nobody waits for: at the program's end it may still hang."""
    try:
        found = question()
    except Exception as error:
        _tell(loop, answer.set_exception, error)
    else:
        _tell(loop, answer.set_result, found)


def _tell(loop: asyncio.AbstractEventLoop, tell: Callable[..., None], *told: object) -> None:
    def now() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            tell(*told)

    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(now)
