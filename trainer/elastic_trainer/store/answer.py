"""Bounds how long a storage may be silent.

A call to a hard network mount returns only once its server does. So each call is made in a thread
of its own, which is left behind where nothing moves any more. A thread that was left behind and
comes to life late ends at its next `moved()`: only the system call that it was in is done late.
What that may be is harmless: names of what is written are nobody else's, and what is given a name
that counts is whole before and replaces nothing of a later run (folder.py, ownership.py).
"""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

LOOKS = 60
"""Within the time that a storage may be silent, at least. Counted, not timed: the time that this
process is stopped is no silence."""
LOOK_SECONDS = 1.0
"""Between two looks, at most: who listens hears of bytes so often."""

T = TypeVar("T")


class SilenceError(TimeoutError):
    """Nothing came from the storage for as long as it may be silent."""


class _Call(Generic[T]):
    """A question to a storage, and how far it is."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.answer: Future[T] = Future()
        self.moves = 0
        self.bytes = 0
        self.told = 0
        """Bytes of them that the listener was told of."""
        self.left_behind = False
        self._question = question

    def make(self) -> None:
        _here.call = self
        try:
            found = self._question()
        except BaseException as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(found)


class _Here(threading.local):
    call: _Call[Any] | None = None
    """This thread's question to a storage."""


_here = _Here()


def moved(count: int = 0) -> None:
    """Note that the storage has moved `count` bytes, or done something else, of what this thread
    asks it. To be called after each system call that others follow.

    Raises:
        SilenceError: it comes too late, and nobody waits for it any more.
    """
    call = _here.call
    if call is None:
        return
    call.moves += 1
    call.bytes += count
    if call.left_behind:
        raise SilenceError(errno.ETIMEDOUT, "the answer came when nobody waited any more")


class Calls:
    """The calls to one storage.

    While one that was left behind is still under way, others wait for it: so there is one such
    thread at most.

    Args:
        patience: returns for how many seconds nothing may come; infinite: for ever.
    """

    def __init__(self, patience: Callable[[], float]) -> None:
        self._patience = patience
        self._left_behind: _Call[Any] | None = None
        self._listener: Callable[[int], None] = lambda _: None

    @property
    def stuck(self) -> bool:
        """True while a call that was left behind is still under way."""
        return self._left_behind is not None and not self._left_behind.answer.done()

    @contextmanager
    def telling(self, listener: Callable[[int], None]) -> Iterator[None]:
        """Within this, tell `listener` of the bytes that calls move; of at least one for each
        answer, be it an error, as that isn't silence either."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def call(self, question: Callable[[], T]) -> T:
        """Return what `question` returns, however long that takes while bytes move.

        Raises:
            SilenceError: nothing came for as long as it may be silent.
        """
        seconds = self._patience()
        stuck = self._left_behind
        if stuck is not None and not self._comes(stuck, seconds):
            raise SilenceError(
                errno.ETIMEDOUT,
                f"no answer for {seconds:g} s, an earlier call being still under way",
            )
        self._left_behind = None
        call = _Call(question)
        thread = threading.Thread(target=call.make, name="ask-storage", daemon=True)
        thread.start()
        if not self._comes(call, seconds):
            call.left_behind = True
            self._left_behind = call
            raise SilenceError(errno.ETIMEDOUT, f"no answer for {seconds:g} s")
        thread.join()  # what it holds it lets go of now, and not at the process's end
        self._listener(max(1, call.bytes - call.told))
        return call.answer.result()

    def _comes(self, call: _Call[Any], seconds: float) -> bool:
        """Return whether the call's answer comes; False once it was silent for so long."""
        looks = max(LOOKS, seconds / LOOK_SECONDS)
        interval = LOOK_SECONDS if math.isinf(seconds) else seconds / looks
        silent = 0
        moves = call.moves
        while not wait([call.answer], timeout=interval).done:
            silent = 0 if call.moves != moves else silent + 1
            moves = call.moves
            if silent >= looks:
                return False
            new = call.bytes - call.told
            if new and not call.left_behind:
                call.told += new
                self._listener(new)
        return True
