"""Retry policies by name: each transient error of the control plane is met by one of these.

Waits are exponential with jitter, or what the server asks for. The reason is logged once, when it
first appears, not at each try. Two things stay what they are: the work queue's back-off, which is
a key's own, and the lease's retry period, which is part of its protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import tenacity

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Overloaded(Exception):
    """The API server answered 429: not done, come again after `seconds`."""

    def __init__(self, seconds: float, answer: bytes = b"") -> None:
        super().__init__(f"429, come again in {seconds:g} s")
        self.seconds = seconds
        self.answer = answer
        """The body."""


class Interrupted(Exception):
    """Work that should go on for ever has ended; the message says why."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """For how long, and how often, something that failed for the moment is tried again."""

    name: str
    transient: tuple[type[BaseException], ...]
    """Errors that may pass by themselves; others are raised at once."""
    tries: int | None
    """None: for ever."""
    first_wait: float
    """Seconds, at most, before the second try."""
    longest_wait: float
    """Seconds, at most, between two tries; also where the server asks for more."""

    async def call(
        self,
        operation: Callable[[], Awaitable[T]],
        *,
        what: str,
        failed: Callable[[str], None] = lambda reason: None,
        level: int = logging.WARNING,
    ) -> T:
        """Return what `operation` returns, trying again while its error is transient.

        Args:
            what: the operation, for the log.
            failed: told why a try failed, before the wait.
            level: of the line in the log.

        Raises whatever the last try raised.
        """
        logged = ""

        def before_sleep(state: tenacity.RetryCallState) -> None:
            nonlocal logged
            reason = _reason(state)
            if reason != logged:
                logged = reason
                _log.log(level, "%s: %s; trying again", what, reason)
            failed(reason)

        async def attempt() -> T:
            return await operation()  # tenacity awaits coroutine functions alone

        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(self.transient),
            stop=tenacity.stop_never
            if self.tries is None
            else tenacity.stop_after_attempt(self.tries),
            wait=self._wait,
            before_sleep=before_sleep,
            reraise=True,
        )(attempt)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Overloaded):
            return min(error.seconds, self.longest_wait)
        # At least half of the wait, so that what fails at once is no hot loop.
        most = min(self.first_wait * 2.0 ** min(state.attempt_number - 1, 30), self.longest_wait)
        return float(tenacity.wait_random(most / 2, most)(state))


def _reason(state: tenacity.RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome else None
    return str(error) or type(error).__name__


OVERLOADED = RetryPolicy("API server, 429", (Overloaded,), 4, 1.0, 5.0)
"""A request that the API server did not take for now: it says when to come again."""
UNREACHABLE = RetryPolicy("API server, no connection", (aiohttp.ClientConnectorError,), 4, 0.2, 1.0)
"""A command's question that could not be sent at all; somebody waits before the terminal."""
WATCH = RetryPolicy("watch", (Interrupted,), None, 0.15, 7.5)
"""Lists and watches, which go on as long as the process."""
WEBHOOKS = RetryPolicy("webhook certificates", (Interrupted,), None, 5.0, 30.0)
"""The leader keeps them in order; certificates last for weeks."""
COORDINATOR = RetryPolicy("coordinator", (aiohttp.ClientConnectionError,), 2, 0.2, 0.2)
"""A job's coordinator, which is asked again in ten seconds anyway."""
