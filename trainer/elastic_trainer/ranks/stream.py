"""Puts a thread beside the training's own into its order on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def in_callers_stream(function: Callable[[], T], gpus: Any = torch.cuda) -> Callable[[], T]:
    """Return what a thread of its own is to call in the function's place, so that what this gives
    the GPU comes after all that the caller has given it before.

    A new thread has GPU 0 and its default stream, which doesn't wait for the streams that a script
    makes: it would copy a state that the last step is still being applied to.

    Args:
        gpus: torch.cuda, or what stands for it in a test.
    """
    if not gpus.is_initialized():
        return function
    stream = gpus.current_stream()

    def run() -> T:
        # Not a `with`: at its end the thread would have GPU 0 again, which makes a context there.
        gpus.set_stream(stream)
        return function()

    return run
