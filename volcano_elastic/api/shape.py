"""Shapes: the types, ranges and words that a custom resource's fields may have, as data.

A field that is null counts as absent. Rules between fields are not shapes' business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.api.problem import Problem, invalid, required, unsupported


@dataclass(frozen=True, slots=True)
class Integer:
    least: int = -(2**31)
    most: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Text:
    words: tuple[str, ...] = ()
    """The only ones allowed, beside the empty text, which counts as absent; none: any text."""
    longest: int | None = None
    """In characters; None: any length."""


@dataclass(frozen=True, slots=True)
class Flag:
    pass


@dataclass(frozen=True, slots=True)
class Amount:
    """A Kubernetes quantity that is not negative."""

    most: int = (2**63 - 1) // 1000
    """By default one whose thousandths fit 64 bits: Volcano counts in those, and its scheduler
    ends with a panic where they overflow."""
    fractions: bool = True
    """It may be a number such as 1.5, which is text in custom resources: those take no others."""


@dataclass(frozen=True, slots=True)
class Items:
    item: Shape


@dataclass(frozen=True, slots=True)
class Named:
    """An object whose keys are names that the user chose."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Fields:
    fields: Mapping[str, Shape]
    open: bool = False
    """It has more fields, which are others' to check."""
    required: tuple[str, ...] = ()


Shape = Integer | Text | Flag | Amount | Items | Named | Fields


def from_schema(schema: Mapping[str, Any]) -> Shape:
    """Return the shape that the OpenAPI schema of a CRD describes; rules (CEL) are not in it."""
    if schema.get("x-kubernetes-int-or-string"):
        return Amount(fractions=False)
    match schema["type"]:
        case "integer":
            end = 2**63 if schema.get("format") == "int64" else 2**31
            return Integer(schema.get("minimum", -end), schema.get("maximum", end - 1))
        case "string":
            return Text(tuple(schema.get("enum", ())), schema.get("maxLength"))
        case "boolean":
            return Flag()
        case "array":
            return Items(from_schema(schema["items"]))
        case "object" if "additionalProperties" in schema:
            return Named(from_schema(schema["additionalProperties"]))
        case "object":
            parts = schema.get("properties") or {}
            return Fields(
                {name: from_schema(part) for name, part in parts.items()},
                open=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
                required=tuple(schema.get("required", ())),
            )
        case other:
            raise ValueError(f"no shape is known for the schema type {other!r}")


def defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of an object's own fields by the OpenAPI schema of a CRD."""
    parts = schema.get("properties") or {}
    return {name: part["default"] for name, part in parts.items() if "default" in part}


def part(shape: Shape, *path: str) -> Fields:
    """Return the shape of the object at `path`, of names of fields, `*` for any key.

    Raises:
        KeyError: no object is there.
    """
    for name in path:
        match shape:
            case Named(value) if name == "*":
                shape = value
            case Fields(fields):
                shape = fields[name]
            case _:
                raise KeyError(name)
    if not isinstance(shape, Fields):
        raise KeyError(path)
    return shape


def replaced(shape: Shape, path: Sequence[str], other: Shape) -> Shape:
    """Return `shape` with another one at `path`, which is as `part` takes it.

    Raises:
        KeyError: nothing is there.
    """
    if not path:
        return other
    match shape:
        case Named(value) if path[0] == "*":
            return Named(replaced(value, path[1:], other))
        case Fields(fields):
            one = replaced(fields[path[0]], path[1:], other)
            return replace(shape, fields={**fields, path[0]: one})
        case _:
            raise KeyError(path[0])


def problems(shape: Shape, value: object, path: str) -> Iterator[Problem]:
    """Every place within `value` that is not as `shape` says."""
    match shape:
        # By how often they occur: jobs are read again with every change.
        case Fields(fields, _, needed):
            if not isinstance(value, dict):
                yield invalid(path, value, "must be an object")
                return
            for name, inner in fields.items():
                if value.get(name) is not None:
                    yield from problems(inner, value[name], f"{path}.{name}")
                elif name in needed:
                    yield required(f"{path}.{name}", "must be required")
        case Text(words, longest):
            if not isinstance(value, str):
                yield invalid(path, value, "must be a string")
            elif value and words and value not in words:
                yield unsupported(path, value, words)
            elif longest is not None and len(value) > longest:
                yield invalid(path, value, f"must have at most {longest} characters")
        case Items(item):
            if not isinstance(value, list):
                yield invalid(path, value, "must be a list")
                return
            for i, one in enumerate(value):
                yield from problems(item, one, f"{path}[{i}]")
        case Named(inner):
            if not isinstance(value, dict):
                yield invalid(path, value, "must be an object")
                return
            for name, one in value.items():
                if not isinstance(name, str):
                    # YAML has such keys, JSON none.
                    yield invalid(path, name, "names must be strings")
                yield from problems(inner, one, f"{path}[{name}]")
        case Amount(most, fractions):
            if isinstance(value, float) and not fractions:
                yield invalid(path, value, f'must be an integer or text, such as "{value}"')
                return
            yield from _amount(value, most, path)
        case Integer(least, most):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not least <= value <= most:  # type: ignore[operator]
                yield invalid(path, value, f"must be an integer {_range(least, most)}")
        case Flag():
            if not isinstance(value, bool):
                yield invalid(path, value, "must be true or false")


def unknown(shape: Shape, value: object, path: str) -> Iterator[str]:
    """A warning for each field that the shape lacks, with the likeliest correction."""
    match shape:
        case Fields(fields, is_open, _) if isinstance(value, dict):
            for name, one in value.items():
                if name in fields:
                    yield from unknown(fields[name], one, f"{path}.{name}")
                elif not is_open:
                    yield f"unknown field {path}.{name}" + likely(name, fields)
        case Named(inner) if isinstance(value, dict):
            for name, one in value.items():
                yield from unknown(inner, one, f"{path}[{name}]")
        case Items(item) if isinstance(value, list):
            for i, one in enumerate(value):
                yield from unknown(item, one, f"{path}[{i}]")


def likely(name: str, names: Mapping[str, object]) -> str:
    """`; did you mean ...?`, or nothing where no name is close."""
    close = difflib.get_close_matches(str(name)[:100], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _amount(value: object, most: int, path: str) -> Iterator[Problem]:
    try:
        if not isinstance(value, str | int | float):
            raise quantity.QuantityError("expected a quantity such as 2, 500m, 1.5 or 8Gi")
        amount = quantity.milli(value)
    except quantity.QuantityError as error:
        yield invalid(path, value, str(error))
        return
    if amount < 0:
        yield invalid(path, value, "must be at least 0")
    elif amount > most * 1000:
        yield invalid(path, value, f"must be at most {most}")


def _range(least: int, most: int) -> str:
    if most >= 2**31 - 1 and least > -(2**31):
        return f"of at least {least}"
    return f"from {least} to {most}"
