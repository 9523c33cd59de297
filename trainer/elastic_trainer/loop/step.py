"""The `with loop.step():` of ElasticLoop: what happens around each batch's training."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_trainer.loop.loop import ElasticLoop

log = logging.getLogger(__name__)


class Step:
    """The `with` of one batch; a class, since a generator would cost each step more."""

    def __init__(self, loop: ElasticLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._synchronization = self._loop._begin_batch()
        self._synchronization.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        loop = self._loop
        loop._guard.in_body = False
        self._synchronization.__exit__(kind, error, trace)
        if error is not None:
            return self._is_undone(error)
        try:
            loop._push()
            if loop.data.last:
                loop._member.confirm()
        except RuntimeError as broken:
            if self._is_undone(broken):
                return True
            raise
        if loop._member.failed and self._is_undone(RuntimeError("a peer's connection failed")):
            return True  # the body may have passed over an error, and lack others' gradients
        try:
            loop._end_batch()
        except RuntimeError as broken:
            if loop._make is not None and self._is_undone(broken):  # in its `apply`
                return True
            raise
        return False

    def _is_undone(self, error: BaseException) -> bool:
        """Return whether a lost peer was the reason, so that the step is done again."""
        loop = self._loop
        if not isinstance(error, RuntimeError):
            return False
        if not loop._member.peer_lost(loop.link):
            if loop.link.agent and loop.world > 1 and loop._member.forsaken:
                error.add_note(
                    "a peer that is not lost has left this round: its loop may have ended at "
                    "another step, by stop() or break, which all ranks have to do at the same one"
                )
            return False
        log.info("step %d is done again: %s", self._loop.steps + 1, error)
        self._loop._undo_step()
        return True
