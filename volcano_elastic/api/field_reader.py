"""Reads the fields of a custom resource, and notes what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.api.problem import Problem


class FieldReader:
    """Reads fields of one object, and notes what is wrong with them instead of raising."""

    def __init__(
        self, raw: object, path: str = "spec", problems: list[Problem] | None = None
    ) -> None:
        self.path = path
        self.problems: list[Problem] = [] if problems is None else problems
        if raw is not None and not isinstance(raw, Mapping):
            self.problems.append(Problem(path, f"must be an object, found {raw!r}"))
        self.raw: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        self._known: set[str] = set()
        """The names that have been asked for."""

    def get(self, name: str) -> Any:
        self._known.add(name)
        return self.raw.get(name)

    def unknown(self) -> list[Problem]:
        """Fields that nobody has asked for."""
        there_are = ", ".join(sorted(self._known))
        return [
            Problem(f"{self.path}.{name}", f"is not a field; there are {there_are}")
            for name in sorted(map(str, self.raw.keys() - self._known))
        ]

    def part(self, name: str) -> FieldReader:
        return FieldReader(self.get(name), f"{self.path}.{name}", self.problems)

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, str):
            return value
        self._wrong(name, "a string", value)
        return default

    def word(self, name: str, default: Any) -> Any:
        """A word of the default's enumeration."""
        value, words = self.get(name), type(default)
        if value is None:
            return default
        try:
            return words(value)
        except ValueError:
            self._wrong(name, "one of " + ", ".join(str(word) for word in words), value)
            return default

    def number(
        self, name: str, default: float, *, least: float = 0, most: float = float("inf")
    ) -> float:
        value = self.get(name)
        if value is None:
            return default
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
            # YAML has an infinity.
            and value != math.inf
        ):
            return float(value)
        wanted = f"a number of at least {least:.15g}"
        self._wrong(
            name, wanted if most == float("inf") else f"{wanted} and at most {most:.15g}", value
        )
        return default

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self._wrong(name, f"an integer from {least} to {most}", value)
        return None

    def seconds(self, name: str, default: timedelta) -> timedelta:
        # timedelta can't hold more; nobody waits a century.
        return timedelta(seconds=self.number(name, default.total_seconds(), most=3.2e9))

    def amount(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            found = quantity.milli(value)
        except quantity.QuantityError:
            found = -1
        if found >= 0:
            return found
        self._wrong(name, "a quantity of at least 0", value)
        return None

    def _wrong(self, name: str, wanted: str, value: object) -> None:
        self.problems.append(Problem(f"{self.path}.{name}", f"must be {wanted}, found {value!r}"))
