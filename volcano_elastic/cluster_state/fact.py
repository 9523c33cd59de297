"""Frozen values, and `fact`: what follows from one of them, worked out once and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def value(made: type[T]) -> type[T]:
    """Make a dataclass of which each object is itself alone and is never changed, as mypy checks.

    Python's own `frozen` takes three times as long to make one: a twentieth of a first plan's time.
    """
    return dataclass(eq=False)(made)


class fact(Generic[T]):  # noqa: N801 - a decorator, as property is
    """Caches like `functools.cached_property`, without the lock that Python 3.11 takes at each
    first use: a tenth of a first plan's time."""

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out, self.__doc__ = work_out, work_out.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, value: Any, owner: type) -> T:
        # Next time Python finds it in `__dict__` and does not come here.
        found = value.__dict__[self._name] = self._work_out(value)
        return found


def keep_facts(old: object, new: object, names: frozenset[str] | None = None) -> None:
    """Let `new` know what `old` has worked out from parts that they share.

    names: of the facts that follow from those parts; None: all, since no part differs that any
        fact follows from.
    """
    known, its = old.__dict__, new.__dict__
    for name in known if names is None else names & known.keys():
        if name not in its:
            its[name] = known[name]
