"""Stands for torch.cuda where threads take the stream of their caller."""

from __future__ import annotations

import threading

import pytest
from elastic_trainer.ranks.stream import in_callers_stream


class Gpus:
    """The current stream of each thread, as far as one was set."""

    def __init__(self, *, used: bool) -> None:
        self.used = used
        self.stream = "the caller's"
        self.taken: dict[str, str] = {}
        """By a thread's name."""

    def is_initialized(self) -> bool:
        return self.used

    def current_stream(self) -> str:
        assert self.used, "asked, torch would initialise CUDA"
        return self.stream

    def set_stream(self, stream: str) -> None:
        self.taken[threading.current_thread().name] = stream


def stand_in(patch: pytest.MonkeyPatch) -> Gpus:
    """Return what stands for torch.cuda, for all that take their caller's stream."""
    gpus = Gpus(used=True)
    patch.setattr(in_callers_stream, "__defaults__", (gpus,))
    return gpus
