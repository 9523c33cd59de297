"""Waits for other ranks that end with the round.

gloo can't end a wait: one whose message is half sent, or put aside, when a connection ends is told
nothing and lasts for 30 minutes. So a thread waits in its place, and is left behind once the round
is over, with the memory that gloo may still write to.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""Between looks at whether the round is over."""
LAST_SECONDS = 1.0
"""For a wait to end by itself after its round, as most do."""


def main_thread_leaves() -> bool:
    """Return whether the main thread is in `wait_in_round`, which it leaves with its round."""
    return main_thread_in([wait_in_round.__code__])


def main_thread_in(functions: Sequence[CodeType]) -> bool:
    """Return whether the main thread is in one of the functions with this code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    # Neither hashed nor compared by content, which goes through all that a script defines.
    while frame is not None and not any(frame.f_code is one for one in functions):
        frame = frame.f_back
    return frame is not None


def wait_in_round(wait: Callable[[], T], over: Callable[[], bool], what: str) -> T:
    """Return what `wait`, called in a thread of its own, returns; raise what it raises.

    Args:
        over: tells whether the round is over, so that other ranks may never come.
        what: is waited for, for who reads the error.

    Raises:
        RuntimeError: the round was over before.
    """
    found: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(wait())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    while thread.is_alive():
        ended = over()
        thread.join(LAST_SECONDS if ended else LOOK_SECONDS)
        if ended and thread.is_alive():
            raise RuntimeError(f"the round ended in the midst of {what}")
    if errors:
        raise errors[0]
    return found[0]
