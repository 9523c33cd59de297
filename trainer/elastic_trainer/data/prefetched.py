"""Batches that loader processes have made ahead: kept for the next iteration where still right."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.seeded import IndexBatch


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """A batch whose indices a loader was given."""

    indices: IndexBatch
    at: Cursor
    """Before its step."""
    taken: list[int] | None
    """This rank's samples of the step, for the audit; None but for a step's first batch."""


class HandedBatch:
    """A batch that may have to be handed out again, unless its user has changed it meanwhile."""

    def __init__(self, drawn: DrawnBatch, batch: Any, *, keep: bool) -> None:
        self.drawn = drawn
        self._leaves: list[Any] | None = None
        self._versions: list[int] = []
        if not keep:
            return
        leaves, self._structure = tree_flatten(batch)
        if all(isinstance(leaf, torch.Tensor | int | float | str | bytes) for leaf in leaves):
            self._leaves, self._versions = leaves, _versions(leaves)

    def again(self) -> list[Any]:
        """Return the batch as it was, in a list; an empty one where it isn't any more."""
        if self._leaves is None or _versions(self._leaves) != self._versions:
            return []
        # Detached: it may have been given a gradient.
        leaves = [one.detach() if isinstance(one, torch.Tensor) else one for one in self._leaves]
        return [tree_unflatten(leaves, self._structure)]


def _versions(leaves: list[Any]) -> list[int]:
    """Return what counts the changes in place of each tensor."""
    return [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Prefetched(Iterator[Any]):
    """A loader's batches, and which of them were handed out for steps that weren't applied.

    Args:
        batches: of a loader, in the order in which it drew their indices.
        drawn: what it drew, appended by its batch sampler.
        share: what decides which samples this rank takes, such as rank and world.
        cursor: tells what has been applied.
        room: batches that are kept for being handed out again.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        drawn: deque[DrawnBatch],
        *,
        share: tuple[int, ...],
        cursor: Callable[[], Cursor],
        room: int,
    ) -> None:
        self._batches = iter(batches)
        self._drawn = drawn
        self._share = share
        self._cursor = cursor
        self._room = room
        self._handed: deque[HandedBatch] = deque()
        """Batches of steps that weren't applied yet."""
        self._again: deque[tuple[DrawnBatch, Any]] = deque()
        self._ended = False

    def __next__(self) -> Any:
        if self._again:
            drawn, batch = self._again.popleft()
        else:
            ended, self._ended = self._ended, True
            batch = next(self._batches)  # or it has ended, by its end or by an error
            self._ended = ended
            drawn = self._drawn.popleft()
        self._forget_applied()
        self._handed.append(HandedBatch(drawn, batch, keep=len(self._handed) < self._room))
        return batch

    def _forget_applied(self) -> None:
        step = self._cursor().step
        while self._handed and self._handed[0].drawn.at.step < step:
            self._handed.popleft()

    def restart(self, share: tuple[int, ...]) -> list[DrawnBatch] | None:
        """Begin again at the cursor, with what is handed out next; None where that isn't possible.

        What was handed out for a step that wasn't applied comes again, if nobody changed it; what
        wasn't handed out is still to come from the loader.
        """
        self._forget_applied()
        handed = list(self._handed)
        ahead = [
            *(one.drawn for one in handed),
            *(drawn for drawn, _ in self._again),
            *self._drawn,
        ]
        again = [(one.drawn, batch) for one in handed for batch in one.again()]
        if self._ended or share != self._share or len(again) < len(handed) or not ahead:
            return None
        if ahead[0].at != self._cursor() or ahead[0].taken is None:
            return None
        self._again.extendleft(reversed(again))
        self._handed.clear()
        return ahead
