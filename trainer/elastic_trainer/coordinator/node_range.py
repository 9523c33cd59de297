"""Fewest and most agents of a round, as JSON: told by `GET /status`, changed by `PUT /range`."""

from __future__ import annotations

import json

from elastic_trainer.coordinator.model import NewRange, Settings


def as_json(settings: Settings) -> dict[str, int]:
    return {"min": settings.min_nodes, "max": settings.max_nodes}


def read(body: bytes) -> NewRange:
    """Raises ValueError for anything but `{"min": N, "max": N}`."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if (
        not isinstance(told, dict)
        or set(told) != {"min", "max"}
        or set(map(type, told.values())) != {int}
    ):
        raise ValueError(
            f'expected {{"min": N, "max": N}} with whole numbers, found {body[:100]!r}'
        )
    return NewRange(told["min"], told["max"])
