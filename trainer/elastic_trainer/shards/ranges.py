"""Sets of positions, as few numbers as they have gaps. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """Positions bounds[0]..bounds[1]-1, bounds[2]..bounds[3]-1 and so on; bounds ascend strictly.

    Raises:
        ValueError: bounds that don't ascend, or an odd number of them.
    """

    bounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        bounds = self.bounds
        if len(bounds) % 2 or any(bounds[i] >= bounds[i + 1] for i in range(len(bounds) - 1)):
            raise ValueError(
                f"expected an even number of ascending bounds, found {list(bounds[:20])}"
            )

    @classmethod
    def of(cls, start: int, stop: int) -> Ranges:
        return cls((start, stop) if start < stop else ())

    @classmethod
    def union(cls, intervals: Iterable[tuple[int, int]]) -> Ranges:
        """Return the union of intervals in any order, which may touch and overlap."""
        bounds: list[int] = []
        for start, stop in sorted(intervals):
            if bounds and start <= bounds[-1]:
                bounds[-1] = max(bounds[-1], stop)
            elif start < stop:
                bounds += (start, stop)
        return cls(tuple(bounds))

    def __len__(self) -> int:
        """Return the number of positions."""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, ascending."""
        return zip(self.bounds[::2], self.bounds[1::2], strict=True)

    def __or__(self, other: Ranges) -> Ranges:
        return _combined(self, other, lambda mine, its: mine or its)

    def __and__(self, other: Ranges) -> Ranges:
        return _combined(self, other.near(self), lambda mine, its: mine and its)

    def __sub__(self, other: Ranges) -> Ranges:
        return _combined(self, other.near(self), lambda mine, its: mine and not its)

    def near(self, other: Ranges) -> Ranges:
        """The intervals that may meet `other`; found without looking at the rest."""
        if not other.bounds:
            return Ranges()
        first = bisect_right(self.bounds, other.bounds[0]) // 2 * 2
        last = -(-bisect_left(self.bounds, other.bounds[-1]) // 2) * 2
        return Ranges(self.bounds[first:last])

    @property
    def below(self) -> int:
        """The end of the interval that begins at 0; 0 without one."""
        return self.bounds[1] if self.bounds and self.bounds[0] == 0 else 0


NOTHING = Ranges()


def _combined(one: Ranges, other: Ranges, keep: Callable[[bool, bool], bool]) -> Ranges:
    a, b = one.bounds, other.bounds
    if not b and keep(True, False):
        return one
    bounds: list[int] = []
    i = j = 0
    while i < len(a) or j < len(b):
        at = min(_at(a, i), _at(b, j))
        i += _at(a, i) == at
        j += _at(b, j) == at
        if keep(i % 2 == 1, j % 2 == 1) != len(bounds) % 2:
            bounds.append(int(at))
    return Ranges(tuple(bounds))


def _at(bounds: Sequence[int], index: int) -> float:
    return bounds[index] if index < len(bounds) else float("inf")
