"""Bounds how long a storage may take to answer a question.

A call to a hard network mount returns only once its server does. So it is made in a thread of its
own, which is left behind where nothing moves any more. That is for reading alone: a thread that was
left behind and comes to life late must not write.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_LOOKS = 60
"""Within the time that a storage may be silent. Counted, not timed: the time that this process is
stopped is no silence."""

T = TypeVar("T")


class _Question(threading.local):
    """What this thread asks a storage."""

    moved: Callable[[], None] | None = None


_asked = _Question()


def moved() -> None:
    """Notes that the storage moved bytes for what this thread asks it."""
    if _asked.moved is not None:
        _asked.moved()


def answer(question: Callable[[], T], seconds: float) -> T:
    """Return what `question` returns, however long that takes while bytes move.

    Raises:
        TimeoutError: nothing came for `seconds`.
    """
    future: Future[T] = Future()
    moves = [0]

    def note() -> None:
        moves[0] += 1

    def ask() -> None:
        _asked.moved = note
        try:
            found = question()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=ask, name="ask-storage", daemon=True).start()
    seen, silent = 0, 0
    while not wait([future], timeout=seconds / _LOOKS).done:
        silent = 0 if moves[0] != seen else silent + 1
        seen = moves[0]
        if silent >= _LOOKS:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer for {seconds:g} s")
    return future.result()
