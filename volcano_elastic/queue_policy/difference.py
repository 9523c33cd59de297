"""Which values of a snapshot are others than in the one before, told by identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, count, islice
from operator import is_not
from typing import TypeVar

AHEAD = (8, 1024)
"""How many values of both sides are searched for where they go on alike: a few, then many."""
MOST = 1000
"""Places where they don't; after so many it isn't worth while any more."""

_T = TypeVar("_T")


def difference(old: Sequence[_T], new: Sequence[_T]) -> tuple[list[_T], list[_T]]:
    """Who has gone and who has come.

    Both sides are walked along together, which is quick where values keep their order, as those of
    a dict do. From where they are too different on, they are compared as sets.
    """
    if old is new:
        return [], []
    gone: list[_T] = []
    come: list[_T] = []
    i = j = 0
    left, right = iter(old), iter(new)
    for _ in range(MOST):
        shorter = min(len(old) - i, len(new) - j)
        alike = next(compress(count(), map(is_not, left, right)), shorter)
        i, j = i + alike, j + alike
        meeting = _meeting(old, i, new, j) if alike < shorter else None
        if meeting is None:
            break
        p, q = meeting
        gone += old[i : i + p]
        come += new[j : j + q]
        # Each side has been walked one further already, and where they meet they are alike.
        i, j = i + p + 1, j + q + 1
        _skip(left, p)
        _skip(right, q)
    gone += old[i:]
    come += new[j:]
    before, after = set(map(id, gone)), set(map(id, come))
    return (
        [value for value in gone if id(value) not in after],
        [value for value in come if id(value) not in before],
    )


def _meeting(old: Sequence[_T], i: int, new: Sequence[_T], j: int) -> tuple[int, int] | None:
    """How much further on each side the same value stands."""
    for ahead in AHEAD:
        places = {id(value): q for q, value in enumerate(new[j : j + ahead])}
        for p, value in enumerate(old[i : i + ahead]):
            q = places.get(id(value))
            if q is not None:
                return p, q
    return None


def _skip(values: Iterator[object], number: int) -> None:
    next(islice(values, number, number), None)
