"""Amounts with units: CPU, bytes, seconds and per cent of time, which don't mix.

`Cpu(500) + Bytes(1)` is refused by mypy, and is a TypeError where nobody asked it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from volcano_elastic.api import quantity

_MIB = 1024**2


@dataclass(frozen=True, slots=True, order=False)
class _Amount:
    """A whole number of one unit. Sums and comparisons are of the same unit, factors are plain
    numbers, and a product is rounded up: what is worked out must suffice."""

    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int:
            name = type(self).__name__
            raise TypeError(f"{name} expects a whole number, found {self.count!r}")

    def __add__(self, other: Self) -> Self:
        return type(self)(self.count + self._same(other).count)

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.count - self._same(other).count)

    def __mul__(self, factor: int | float) -> Self:
        if isinstance(factor, _Amount):
            raise TypeError(f"{type(self).__name__} times {type(factor).__name__} has no meaning")
        if isinstance(factor, int):
            return type(self)(self.count * factor)
        # Cents of a thousandth are a float's error, no part of the amount.
        return type(self)(math.ceil(round(self.count * factor, 3)))

    def __rmul__(self, factor: int | float) -> Self:
        return self * factor

    def __truediv__(self, other: Self) -> float:
        return self.count / self._same(other).count

    def shared(self, parts: int) -> Self:
        """Return one of `parts` equal parts, rounded up."""
        return type(self)(-(-self.count // parts))

    def __lt__(self, other: Self) -> bool:
        return self.count < self._same(other).count

    def __le__(self, other: Self) -> bool:
        return self.count <= self._same(other).count

    def __gt__(self, other: Self) -> bool:
        return self.count > self._same(other).count

    def __ge__(self, other: Self) -> bool:
        return self.count >= self._same(other).count

    def __bool__(self) -> bool:
        return self.count != 0

    def _same(self, other: Self) -> Self:
        if type(other) is not type(self):
            expected, found = type(self).__name__, type(other).__name__
            raise TypeError(f"expected {expected}, found {found}: {other!r}")
        return other


@dataclass(frozen=True, slots=True)
class Cpu(_Amount):
    """Processor time per time, in thousandths of a CPU."""

    @classmethod
    def cores(cls, count: int | float) -> Self:
        return cls(math.ceil(round(count * 1000, 3)))

    @classmethod
    def parse(cls, text: str | int | float) -> Self:
        """Return a quantity as Kubernetes spells it.

        Raises:
            quantity.QuantityError: not a quantity.
        """
        return cls(quantity.milli(text))

    def __str__(self) -> str:
        return quantity.text(self.count)


@dataclass(frozen=True, slots=True)
class Bytes(_Amount):
    @classmethod
    def gib(cls, count: int | float) -> Self:
        return cls(math.ceil(count * 1024**3))

    @classmethod
    def parse(cls, text: str | int | float) -> Self:
        """Return a quantity as Kubernetes spells it.

        Raises:
            quantity.QuantityError: not a quantity.
        """
        return cls(-(-quantity.milli(text) // 1000))

    def whole_mebibytes(self) -> Self:
        """Return it rounded up, so that it reads well and a request doesn't change by a byte."""
        return type(self)(-(-self.count // _MIB) * _MIB)

    def __str__(self) -> str:
        return quantity.text(self.count * 1000)


@dataclass(frozen=True, slots=True)
class Percent(_Amount):
    """Hundredths of the time."""

    def __str__(self) -> str:
        return f"{self.count} %"


@dataclass(frozen=True, slots=True)
class Seconds(_Amount):
    """Whole milliseconds; `of` takes seconds."""

    @classmethod
    def of(cls, seconds: int | float) -> Self:
        return cls(math.ceil(round(seconds * 1000, 3)))

    @property
    def seconds(self) -> float:
        return self.count / 1000

    def __str__(self) -> str:
        return f"{self.seconds:g} s"
