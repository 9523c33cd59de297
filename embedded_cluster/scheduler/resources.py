"""Amounts by resource name, in thousandths of the base unit, as `api.quantity` parses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Resources = Mapping[str, float]

PODS = "pods"
UNLIMITED = 1 << 62


def add(to: dict[str, float], amounts: Resources, times: float = 1) -> None:
    """In place; may go below zero: a node can shrink under its pods."""
    for name, amount in amounts.items():
        to[name] = to.get(name, 0) + amount * times


def plus(left: Resources, right: Resources) -> dict[str, float]:
    out = dict(left)
    add(out, right)
    return out


def minus(left: Resources, right: Resources) -> dict[str, float]:
    out = dict(left)
    add(out, right, -1)
    return out


def lacking(request: Resources, room: Resources) -> list[str]:
    """Return the resources that `room` has too little of; it has none of those it doesn't name."""
    return sorted(name for name, amount in request.items() if 0 < amount > room.get(name, 0))


def fits(request: Resources, room: Resources) -> bool:
    return all(not 0 < amount > room.get(name, 0) for name, amount in request.items())


def with_all(room: Resources, coming: Iterable[Resources]) -> dict[str, float]:
    out = dict(room)
    for amounts in coming:
        add(out, amounts)
    return out


def asked(request: Resources) -> list[str]:
    """Return the resources asked for, other than to be one more pod."""
    return [name for name, amount in request.items() if amount > 0 and name != PODS]


def share(used: float, of: float) -> float:
    return used / of if of else float(used > 0)


def dominant_share(used: Resources, total: Resources) -> float:
    """The largest part of any one resource of `total`."""
    shares = (share(used.get(name, 0), amount) for name, amount in total.items() if amount > 0)
    return max(shares, default=0.0)
