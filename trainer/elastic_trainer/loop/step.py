"""The `with loop.step():` of ElasticLoop: what happens around each batch's training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.stream import ElasticStream
from elastic_trainer.loop.guard import StepGuard
from elastic_trainer.loop.round_member import RoundMember

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """The parts of a loop between which its batches are trained on."""

    data: ElasticDataset | ElasticStream
    guard: StepGuard
    member: RoundMember
    begin: Callable[[], AbstractContextManager[Any]]
    """Begins a batch; returns what its passes run within."""
    push: Callable[[], None]
    """Communicates what the body has left to, the last of a batch."""
    end: Callable[[], None]
    """Ends a batch, and applies the step if it was its last."""
    undo: Callable[[], None]
    """Takes back what was begun of the step, which is done again."""
    peer_lost: Callable[[], bool]
    """Tells, after an error, whether a peer's loss was its cause."""
    forsaken: Callable[[], bool]
    """Tells whether a peer that is not lost has left the round."""
    applies_together: bool
    """Applying a step communicates, so that a lost peer may break it."""


class Step:
    """The `with` of one batch; a class, since a generator would cost each step more."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def __enter__(self) -> None:
        self._synchronization = self._around.begin()
        self._synchronization.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        around = self._around
        around.guard.in_body = False
        self._synchronization.__exit__(kind, error, trace)
        if error is not None:
            return self._is_undone(error)
        try:
            around.push()
            if around.data.last:
                around.member.confirm()
        except RuntimeError as broken:
            if self._is_undone(broken):
                return True
            raise
        if around.member.failed and self._is_undone(RuntimeError("a peer's connection failed")):
            return True  # the body may have passed over an error, and lack others' gradients
        try:
            around.end()
        except Exception as broken:
            if around.applies_together and self._is_undone(broken):
                return True
            raise
        return False

    def _is_undone(self, error: BaseException) -> bool:
        """Return whether a lost peer was the reason, so that the step is done again."""
        around = self._around
        # NCCL's collectives raise nothing, but a script may, of the numbers that a broken one left.
        if not isinstance(error, Exception if around.member.silent else RuntimeError):
            return False
        if not around.peer_lost():
            if around.forsaken():
                error.add_note(
                    "a peer that is not lost has left this round: its loop may have ended at "
                    "another step, by stop() or break, which all ranks have to do at the same one"
                )
            return False
        log.info("step %d is done again: %s", around.data.steps + 1, error)
        around.undo()
        return True
