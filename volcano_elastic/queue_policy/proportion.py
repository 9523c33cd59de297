"""The division that Volcano's proportion plugin makes: shares by weight, unused ones handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def divide(
    total: Sequence[int],
    *,
    weights: Mapping[str, int],
    wishes: Mapping[str, Sequence[int]],
    caps: Mapping[str, Sequence[int]],
    floors: Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
    """What each queue deserves of `total`, by dimension.

    Volcano's rounds, each dimension for itself: what remains is handed out by weight among the
    queues that want more, each gets no more than the smaller of its wish and its cap and no less
    than its floor, until nobody wants more or nothing remains.
    """
    given: dict[str, list[int]] = {name: [0] * len(total) for name in weights}
    for i, everything in enumerate(total):
        goals = {
            name: max(min(wishes[name][i], caps[name][i]), floors[name][i]) for name in weights
        }
        remaining = everything
        for name, amount in _level(remaining, weights, goals, floors, i).items():
            given[name][i] = amount
    return given


def _level(
    total: int,
    weights: Mapping[str, int],
    goals: Mapping[str, int],
    floors: Mapping[str, Sequence[int]],
    i: int,
) -> dict[str, int]:
    """Everybody gets max(floor, min(goal, weight × level)) with the largest level that `total`
    allows: where Volcano's rounds come to rest."""
    if sum(goals.values()) <= total:
        return dict(goals)

    # The level rises through the points at which somebody leaves its floor or reaches its goal.
    def at(level: float) -> dict[str, int]:
        return {
            name: max(floors[name][i], min(goal, int(weights[name] * level)))
            for name, goal in goals.items()
        }

    low, high = 0.0, max(goal / weights[name] for name, goal in goals.items())
    for _ in range(60):
        middle = (low + high) / 2
        if sum(at(middle).values()) <= total:
            low = middle
        else:
            high = middle
    return at(low)
