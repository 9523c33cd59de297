"""Structural schemas of CRDs: defaults, pruning and validation."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson
import re2

from embedded_cluster.apiserver.status import (
    Cause,
    duplicate,
    invalid_type,
    invalid_value,
    required,
    unsupported,
)
from volcano_elastic.kube.resource import Object

LIST_TYPE = "x-kubernetes-list-type"
KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
_EMBEDDED = "x-kubernetes-embedded-resource"
_QUIET = re2.Options()
_QUIET.log_errors = False
# Of every object: checked for all kinds alike, elsewhere.
_ROOT_FIELDS = ("apiVersion", "kind", "metadata")


def children(value: Any, schema: Object, path: str) -> Iterator[tuple[Any, Any, Object, str]]:
    """Yield the parts of a value that have schemas: key or index, the part, its schema and path."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, one in value.items():
            sub = properties.get(name, extra)
            if isinstance(sub, dict) and not (schema.get(_EMBEDDED) and name in _ROOT_FIELDS):
                yield name, one, sub, f"{path}.{name}" if path else name
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, one in enumerate(value):
            yield number, one, schema["items"], f"{path}[{number}]"


def apply_defaults(value: Any, schema: Object) -> None:
    """Fill in, in place, what `default` says; a null that may not be one counts as absent."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for name in [name for name, one in value.items() if one is None]:
            sub = properties.get(name, extra)
            if isinstance(sub, dict) and not sub.get("nullable"):
                del value[name]
        for name, sub in properties.items():
            if "default" in sub and name not in value:
                value[name] = copy.deepcopy(sub["default"])
    for _, one, sub, _ in children(value, schema, ""):
        apply_defaults(one, sub)


def prune(obj: Object, schema: Object) -> list[str]:
    """Drop, in place, the fields the schema doesn't know; returns their paths."""
    return list(_prune(obj, schema | {_EMBEDDED: True}, ""))


def _prune(value: Any, schema: Object, path: str) -> Iterator[str]:
    more = ("additionalProperties", "x-kubernetes-preserve-unknown-fields")
    # An empty schema allows anything.
    if isinstance(value, dict) and all(schema.get(name) in (None, False) for name in more):
        known = {
            *(schema.get("properties") or ()),
            *(_ROOT_FIELDS if schema.get(_EMBEDDED) else ()),
        }
        for name in [name for name in value if name not in known]:
            del value[name]
            yield f"{path}.{name}" if path else name
    for _, one, sub, below in children(value, schema, path):
        yield from _prune(one, sub, below)


def validate(obj: Object, schema: Object) -> list[Cause]:
    """Return the object's errors in the schema's order; empty if there are none."""
    return list(causes(obj, {**schema, "type": "object", _EMBEDDED: True}, ""))


def causes(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    """Return the errors of a value at `path`."""
    # A null gives way to a default.
    if value is None and (schema.get("nullable") or "default" in schema):
        return
    either = schema.get("x-kubernetes-int-or-string")
    wanted = "integer or string" if either else schema.get("type")
    types = _types(value)
    # Without a type anything goes (x-kubernetes-preserve-unknown-fields, parts of anyOf).
    if wanted and not {*wanted.split(" or ")} & {*types}:
        why = f'{path} in body must be of type {wanted}: "{types[0]}"'
        yield invalid_type(path, types[0], why)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, schema["enum"])
    yield from _bounds(value, schema, path)
    if isinstance(value, str):
        yield from _text(value, schema, path)
    if isinstance(value, list):
        yield from _twice(value, schema, path)
    if isinstance(value, dict):
        for name in schema.get("required") or ():
            if name not in value:
                yield required(f"{path}.{name}" if path else name)
    for _, one, sub, below in children(value, schema, path):
        yield from causes(one, sub, below)
    yield from _logic(value, schema, path)


def _types(value: Any) -> tuple[str, ...]:
    """The schema types that a value has; the first names it."""
    if isinstance(value, float):
        return ("number", "integer") if value.is_integer() else ("number",)
    return _TYPES[type(value)]


_TYPES: dict[type, tuple[str, ...]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("integer", "number"),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
}
# What is measured of a value, in what, and how too much of it is called.
_MEASURES: dict[str, tuple[str, str, str]] = {
    "string": ("Length", " chars long", "FieldValueTooLong"),
    "array": ("Items", " items", "FieldValueTooMany"),
    "object": ("Properties", " properties", "FieldValueTooMany"),
    "integer": ("imum", "", "FieldValueInvalid"),
    "number": ("imum", "", "FieldValueInvalid"),
}
_LIMITS = {"int32": 2**31, "int64": 2**63}


def _bounds(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    what, unit, too_much = _MEASURES.get(_types(value)[0], ("", "", ""))
    if not what:
        return
    number = what == "imum"
    size = value if number else len(value)
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and (size < low or (number and below and size == low)):
        words = "greater than" if below else "greater than or equal to" if number else "at least"
        found = value if isinstance(value, str) else size
        yield invalid_value(path, found, f"{path} in body should be {words} {low}{unit}")
    if high is not None and (size > high or (number and above and size == high)):
        words = "less than" if above else "less than or equal to" if number else "at most"
        why = f"Invalid value: {size}: {path} in body should be {words} {high}{unit}"
        yield Cause(path, too_much, why)
    if not number:
        return
    if (factor := schema.get("multipleOf")) and (value / factor) % 1:
        yield invalid_value(path, value, f"{path} in body should be a multiple of {factor}")
    limit = _LIMITS.get(str(schema.get("format")))
    if limit and not -limit <= value < limit:
        yield invalid_value(path, value, f"{path} in body must fit {schema['format']}")


def _text(value: str, schema: Object, path: str) -> Iterator[Cause]:
    if "pattern" in schema and not compiled(schema["pattern"]).search(value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield invalid_value(path, value, f'{path} in body must be of type date-time: "{value}"')


def _twice(value: list[Any], schema: Object, path: str) -> Iterator[Cause]:
    """Elements that are there already, where each may be but once."""
    kind, seen = schema.get(LIST_TYPE), set()
    if kind not in ("map", "set"):
        return
    for number, one in enumerate(value):
        told = identity(one, schema)
        if told in seen:
            yield duplicate(f"{path}[{number}]", orjson.loads(told))
        seen.add(told)


def identity(item: Any, schema: Object) -> bytes:
    """By what an element of a list is told from the others: its keys if it has some, as JSON."""
    keys = schema.get(KEYS)
    if keys and isinstance(item, dict):
        fields = below(schema.get("items"), "properties")
        item = {key: item.get(key, below(fields, key).get("default")) for key in keys}
    return orjson.dumps(item, option=orjson.OPT_SORT_KEYS)


def below(schema: Any, name: str) -> Object:
    """Return the object that a schema (or a part of one, or none) has at a name; {} if it has
    none."""
    found = schema.get(name) if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _logic(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf") or ():
        yield from causes(value, part, path)
    for name, most in (("anyOf", None), ("oneOf", 1)):
        if options := schema.get(name):
            fitting = sum(not any(causes(value, part, path)) for part in options)
            if not fitting or (most and fitting > most):
                why = f"{path} in body must validate {most or 'at least one'} schema ({name})"
                yield invalid_value(path, value, why)
    if schema.get("not") and not any(causes(value, schema["not"], path)):
        yield invalid_value(path, value, f"{path} in body must not validate the schema (not)")


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:
    """By RE2, as there: it knows the same patterns, and none that takes for ever.

    Raises:
        ValueError: it is no pattern.
    """
    try:
        return re2.compile(pattern, _QUIET)
    except re2.error as error:
        raise ValueError(error.args[0].decode()) from error


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text
