"""Tells the coordinator which parts of sharded states this node's memory holds."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from elastic_trainer.protocol.message import StatePart
from elastic_trainer.store.slot import Label


def held_parts(labels: Iterable[Label]) -> tuple[StatePart, ...]:
    """Return the parts of sharded states that these slots hold, each once.

    Old ones, too: after a join and losses, the only state that is whole may be the oldest that is
    there, with parts beside it of any number of newer ones that the lost nodes had the others of.
    """
    return tuple(sorted({_part(label) for label in labels if label.sharded}))


def _part(label: Label) -> StatePart:
    spread = f"{label.training}\n{label.world}\n{label.layout}"
    state = xxhash.xxh3_64_hexdigest(spread.encode())
    return StatePart(label.run, label.step, state, label.part, label.parts)
