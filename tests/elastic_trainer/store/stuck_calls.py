"""Calls that no storage answers, given up without waiting for their time to be over."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pytest
from elastic_trainer.store import answer

_wait = answer.wait
_LOOK_SECONDS = 0.01


class StuckCalls:
    """While entered, a call that is stuck is looked at again at once, and any other is waited for
    however long it takes: so no machine is too slow, and no test waits for silence."""

    def __init__(self) -> None:
        self._answers = set[Future[Any]]()
        self._patch = pytest.MonkeyPatch()

    def stay(self, until: threading.Event) -> None:
        """Hold the call that this thread makes up."""
        if answer._here.call is not None:
            self._answers.add(answer._here.call.answer)
        until.wait()

    def __enter__(self) -> StuckCalls:
        self._patch.setattr(answer, "wait", self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patch.undo()

    def _look(self, futures: list[Future[Any]], timeout: float) -> Any:
        while True:
            stuck = self._answers.issuperset(futures)
            found = _wait(futures, timeout=0 if stuck else _LOOK_SECONDS)
            if stuck or found.done:
                return found
