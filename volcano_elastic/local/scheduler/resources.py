"""Amounts by resource name, in thousandths of the base unit, as `api.quantity` parses them."""

from __future__ import annotations

from collections.abc import Mapping

Resources = Mapping[str, int]

PODS = "pods"
UNLIMITED = 1 << 62


def plus(left: Resources, right: Resources) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def minus(left: Resources, right: Resources) -> dict[str, int]:
    """May go below zero: a node can shrink under its pods."""
    return {name: left.get(name, 0) - right.get(name, 0) for name in {**left, **right}}


def lacking(request: Resources, room: Resources) -> list[str]:
    """What `room` has too little of; it has nothing of what it doesn't name."""
    return sorted(
        name for name, amount in request.items() if amount > 0 and amount > room.get(name, 0)
    )


def fits(request: Resources, room: Resources) -> bool:
    return all(amount <= 0 or amount <= room.get(name, 0) for name, amount in request.items())


def share(used: Resources, total: Resources) -> float:
    """The dominant share: the largest part of any one resource of `total`."""
    return max((used.get(name, 0) / total[name] for name in total if total[name] > 0), default=0.0)
