"""Named policies: what passes is tried again, for so long, and said once."""

from __future__ import annotations

import logging
import time

import pytest
from elastic_trainer.retry import (
    STORAGE_SECONDS_VARIABLE,
    RetryPolicy,
    coordinator_policy,
    storage_policy,
)

POLICY = RetryPolicy("storage", 5.0, first_wait=0.01, longest_wait=0.02)


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def passes(error: BaseException) -> bool:
    return isinstance(error, OSError)


def test_what_passes_is_tried_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(*[OSError(5, "Input/output error", "step-1/state.pt")] * 3)
    assert POLICY.call(flaky, transient=passes, what="reading step-1", sleep=lambda _: None) == (
        "done"
    )
    (record,) = caplog.records
    expected = "up to 5 s, reading step-1: Input/output error (step-1/state.pt)"
    assert expected in record.getMessage()


def test_what_does_not_pass_is_raised_at_once() -> None:
    flaky = Flaky(KeyError("a"), KeyError("b"))
    with pytest.raises(KeyError, match="a"):
        POLICY.call(flaky, transient=passes)
    assert len(flaky.errors) == 1


def test_without_time_there_is_one_try() -> None:
    flaky = Flaky(OSError(5, "first"), OSError(5, "second"))
    with pytest.raises(OSError, match="first"):
        RetryPolicy("storage", 0.0, 0.1, 1.0).call(flaky, transient=passes)


def test_a_first_try_that_outlasts_the_time_given_is_followed_by_another() -> None:
    tries = []

    def answer_late() -> str:
        tries.append(1)
        if len(tries) == 1:
            time.sleep(0.01)  # as a store's client that tries for minutes by itself
            raise OSError(5, "no answer")
        return "done"

    assert RetryPolicy("storage", 0.001, 0.001, 0.001).call(answer_late, transient=passes) == "done"


def test_the_environment_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage_policy().seconds == 60
    monkeypatch.setenv(STORAGE_SECONDS_VARIABLE, "7.5")
    assert storage_policy().seconds == 7.5
    assert storage_policy(3).seconds == 3
    monkeypatch.setenv(STORAGE_SECONDS_VARIABLE, "long")
    with pytest.raises(ValueError, match="expected seconds, found 'long'"):
        storage_policy()


class Unavailable(Exception):
    """An error like gRPC's, whose own text has many lines."""

    def details(self) -> str:
        return "connection refused"


async def test_a_coordinator_is_asked_for_as_long_as_it_takes_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flaky = Flaky(*[Unavailable() for _ in range(4)])

    async def ask() -> str:
        return flaky()

    policy = coordinator_policy()
    assert await policy.call_async(ask, transient=lambda _: True, what="host:1") == "done"
    (record,) = caplog.records
    expected = "coordinator: trying again, host:1: connection refused"
    assert record.getMessage() == expected


async def test_a_coordinator_that_is_starting_is_no_warning_and_one_that_does_not_start_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def no_pause(_: float) -> None:
        """Waits are counted, not waited."""

    async def asked(tries: int, quiet_seconds: float) -> list[int]:
        flaky = Flaky(*[Unavailable() for _ in range(tries)])

        async def ask() -> str:
            return flaky()

        caplog.clear()
        policy = coordinator_policy(quiet_seconds=quiet_seconds)
        await policy.call_async(ask, transient=lambda _: True, what="host:1", sleep=no_pause)
        return [record.levelno for record in caplog.records]

    caplog.set_level(logging.DEBUG, "elastic_trainer.retry")
    assert await asked(3, 3600.0) == [logging.DEBUG]
    assert await asked(200, 1.0) == [logging.DEBUG, logging.WARNING]
