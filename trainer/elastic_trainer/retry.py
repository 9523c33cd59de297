"""Retry policies by name: each transient error is met by one of these, everywhere alike.

A policy says for how long an operation is tried anew and how the waits between tries grow. Which
errors pass is said by whoever knows them. Waits are exponential with full jitter, so that the pods
of a job don't come back all at once. The reason is logged once, at the first failure
that was not expected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

T = TypeVar("T")

STORAGE_SECONDS_VARIABLE = "VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS"
"""For how many seconds in total a storage that can't be read or written is tried again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Says how long, and how often, something that failed for the moment is tried again."""

    name: str
    """The operation, as the log says it."""
    seconds: float
    """In total, from the first try; 0: one try; infinite: as long as it takes. A second try is made
    even where the first alone took longer, as by a store's client with patience of its own."""
    first_wait: float
    """Seconds, at most, before the second try."""
    longest_wait: float
    """Seconds, at most, between two tries."""
    quiet_seconds: float = 0.0
    """For how long failures are expected, as of a peer that is starting, and no warning."""

    def call(
        self,
        operation: Callable[[], T],
        *,
        transient: Callable[[BaseException], bool],
        what: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> T:
        """Return what `operation` returns, trying again while its error is transient.

        Args:
            transient: tells whether an error may pass by itself.
            what: the operation, for the log.
            sleep: waits so many seconds.

        Raises whatever the last try raised.
        """

        retrying = tenacity.Retrying(
            **self._rules(transient, what),
            sleep=sleep,
        )
        return retrying(operation)

    async def call_async(
        self,
        operation: Callable[[], Awaitable[T]],
        *,
        transient: Callable[[BaseException], bool],
        what: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> T:
        """Return what `operation` returns, as `call`, without blocking the event loop."""

        async def attempt() -> T:
            return await operation()  # tenacity awaits coroutine functions alone

        rules = self._rules(transient, what)
        return await tenacity.AsyncRetrying(**rules, sleep=sleep)(attempt)

    def _rules(self, transient: Callable[[BaseException], bool], what: str) -> dict[str, Any]:
        warned = False

        def say(state: tenacity.RetryCallState) -> None:
            nonlocal warned
            failing = max(state.seconds_since_start or 0.0, state.idle_for)
            late = failing >= self.quiet_seconds and not warned
            warned |= late
            if (late or state.attempt_number == 1) and state.outcome is not None:
                span = f" for up to {self.seconds:g} s" if math.isfinite(self.seconds) else ""
                log.log(
                    logging.WARNING if late else logging.DEBUG,
                    "%s: trying again%s%s: %s",
                    self.name,
                    span,
                    f", {what}" if what else "",
                    describe(state.outcome.exception()),
                )

        return {
            "retry": tenacity.retry_if_exception(transient),
            "stop": self._stop(),
            "wait": tenacity.wait_random_exponential(
                multiplier=self.first_wait, max=self.longest_wait
            ),
            "before_sleep": say,
            "reraise": True,
        }

    def _stop(self) -> tenacity.stop.stop_base:
        if self.seconds <= 0:
            return tenacity.stop_after_attempt(1)
        if math.isinf(self.seconds):
            return tenacity.stop_never
        # A last wait never goes beyond the total.
        return tenacity.stop_before_delay(self.seconds) & tenacity.stop_after_attempt(2)


def describe(error: BaseException | None) -> str:
    """An error in words: the system's where it has them, with the file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    details = getattr(error, "details", None)
    if callable(details):  # gRPC's errors have long texts of their own
        return str(details() or type(error).__name__)
    return str(error) or type(error).__name__


def storage_policy(seconds: float | None = None) -> RetryPolicy:
    """The policy for a folder or a bucket that doesn't answer, or answers with an error.

    Args:
        seconds: in total; None: what the environment says, else 60.

    Raises:
        ValueError: it is negative, or the environment doesn't hold a number.
    """
    if seconds is None:
        text = os.environ.get(STORAGE_SECONDS_VARIABLE, "") or "60"
        try:
            seconds = float(text)
        except ValueError:
            raise ValueError(
                f"{STORAGE_SECONDS_VARIABLE}: expected seconds, found {text!r}; fix or unset it"
            ) from None
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"retries for {seconds} s: expected a number of seconds, at least 0")
    return RetryPolicy("storage", seconds, first_wait=0.1, longest_wait=10.0)


def coordinator_policy(seconds: float = math.inf, quiet_seconds: float = 0.0) -> RetryPolicy:
    """The policy for a coordinator that doesn't answer: one that ended is started again within a
    second, so tries stay close together.

    Args:
        seconds: in total.
        quiet_seconds: how long it may take to start.
    """
    return RetryPolicy("coordinator", seconds, 0.1, 0.5, quiet_seconds)
