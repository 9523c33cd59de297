"""Frozen values that are quick to make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(made: type[T]) -> type[T]:
    """Make a dataclass whose objects are equal by their fields and are never changed, as mypy
    checks.

    With Python's own `frozen` a pod takes several times as long to make, and a simulated week 4 %
    longer.
    """
    return dataclass(slots=True, unsafe_hash=True)(made)
