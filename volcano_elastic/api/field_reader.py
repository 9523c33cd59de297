"""Reads the fields of a custom resource by its CRD's schema, and notes what is wrong with them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from volcano_elastic.api import quantity
from volcano_elastic.api.problem import Problem
from volcano_elastic.api.shape import Integer, from_schema

_Word = TypeVar("_Word", bound=StrEnum)


class FieldReader:
    """Reads fields of one object, and notes what is wrong with them instead of raising.

    Bounds, patterns and defaults are the schema's, which is a CRD's. A field that it lacks is a
    KeyError.
    """

    def __init__(
        self,
        raw: object,
        schema: Mapping[str, Any],
        path: str = "spec",
        problems: list[Problem] | None = None,
    ) -> None:
        self.path = path
        self.problems: list[Problem] = [] if problems is None else problems
        if raw is not None and not isinstance(raw, Mapping):
            self.problems.append(Problem(path, f"must be an object, found {raw!r}"))
        self.raw: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        self._schema = schema

    def get(self, name: str) -> Any:
        """Return the field as it is; None where it is absent."""
        self._field(name)
        return self.raw.get(name)

    def unknown(self) -> list[Problem]:
        """Return the fields, at any depth, that the schema lacks."""
        return list(_unknown(self.raw, self._schema, self.path))

    def part(self, name: str) -> FieldReader:
        path = f"{self.path}.{name}"
        return FieldReader(self.get(name), self._field(name), path, self.problems)

    def text(self, name: str, demand: str = "be a string") -> str:
        """Return the text, empty where there is neither one nor a default.

        Args:
            demand: what it must do or be, for the message.
        """
        value, field = self.get(name), self._field(name)
        default: str = field.get("default", "")
        if value is None and name not in self._schema.get("required", ()):
            return default
        if isinstance(value, str) and _fits(value, field):
            return value
        self._wrong(name, demand, value)
        return default

    def word(self, name: str, words: type[_Word]) -> _Word:
        """Return a word of the enumeration, by default the schema's."""
        found = self.optional_word(name, words)
        return words(self._field(name)["default"]) if found is None else found

    def optional_word(self, name: str, words: type[_Word]) -> _Word | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            return words(value)
        except ValueError:
            self._wrong(name, "be one of " + ", ".join(words), value)
            return None

    def number(self, name: str) -> float:
        """Return the number, by default the schema's."""
        found = self.optional_number(name)
        return float(self._field(name)["default"]) if found is None else found

    def optional_number(self, name: str) -> float | None:
        value, field = self.get(name), self._field(name)
        if value is None:
            return None
        least, most = field["minimum"], field.get("maximum", math.inf)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
            # YAML has an infinity.
            and value != math.inf
        ):
            return float(value)
        demand = f"be a number of at least {least:.15g}"
        self._wrong(
            name, demand if most == math.inf else f"{demand} and at most {most:.15g}", value
        )
        return None

    def integer(self, name: str) -> int | None:
        value, bounds = self.get(name), from_schema(self._field(name))
        assert isinstance(bounds, Integer), name
        if value is None:
            return None
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and bounds.least <= value <= bounds.most:
            return int(value)
        self._wrong(name, f"be an integer from {bounds.least} to {bounds.most}", value)
        return None

    def seconds(self, name: str) -> timedelta:
        """Return the number of seconds, by default the schema's."""
        return timedelta(seconds=self.number(name))

    def optional_seconds(self, name: str) -> timedelta | None:
        found = self.optional_number(name)
        return None if found is None else timedelta(seconds=found)

    def amount(self, name: str) -> int | None:
        """Return a quantity's thousandths."""
        value = self.get(name)
        if value is None:
            return None
        found = -1
        if isinstance(value, int) or (isinstance(value, str) and _fits(value, self._field(name))):
            with contextlib.suppress(quantity.QuantityError):
                found = quantity.milli(value)
        if found >= 0:
            return found
        self._wrong(name, "be a quantity of at least 0", value)
        return None

    def _field(self, name: str) -> Mapping[str, Any]:
        if "additionalProperties" in self._schema:
            found: Mapping[str, Any] = self._schema["additionalProperties"]
        else:
            found = self._schema["properties"][name]
        return found

    def _wrong(self, name: str, demand: str, value: object) -> None:
        found = "none" if value in (None, "") else repr(value)
        self.problems.append(Problem(f"{self.path}.{name}", f"must {demand}, found {found}"))


def _fits(text: str, field: Mapping[str, Any]) -> bool:
    if not field.get("minLength", 0) <= len(text) <= field.get("maxLength", math.inf):
        return False
    return "pattern" not in field or re.fullmatch(field["pattern"], text) is not None


def _unknown(raw: object, schema: Mapping[str, Any], path: str) -> Iterator[Problem]:
    fields = schema.get("properties")
    if not isinstance(raw, Mapping) or fields is None:
        return
    there_are = ", ".join(sorted(fields))
    for name, one in sorted(raw.items(), key=lambda item: str(item[0])):
        if name in fields:
            yield from _unknown(one, fields[name], f"{path}.{name}")
        else:
            yield Problem(f"{path}.{name}", f"is not a field; there are {there_are}")
