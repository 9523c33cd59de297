"""Tells the coordinator which parts of sharded states this node's memory holds."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from elastic_trainer.protocol.message import StatePart
from elastic_trainer.store.slot import Label

KEPT_STATES = 4
"""The newest states of a training whose parts are told: the two that were saved last, and those
that are spared meanwhile, of which one is on two nodes. Slots may hold parts of older ones."""


def held_parts(labels: Iterable[Label]) -> tuple[StatePart, ...]:
    """Return the parts that these slots hold, each once, of each training's newest states."""
    trainings: dict[str, list[Label]] = {}
    for label in labels:
        if label.sharded:
            trainings.setdefault(label.training, []).append(label)
    kept: set[StatePart] = set()
    for found in trainings.values():
        newest = sorted({label.identity for label in found})[-KEPT_STATES:]
        kept.update(_part(label) for label in found if label.identity in newest)
    return tuple(sorted(kept))


def _part(label: Label) -> StatePart:
    spread = f"{label.training}\n{label.world}\n{label.layout}"
    state = xxhash.xxh3_64_hexdigest(spread.encode())
    return StatePart(label.run, label.step, state, label.part, label.parts)
