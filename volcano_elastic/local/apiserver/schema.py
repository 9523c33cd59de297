"""Structural schemas of CRDs: defaults, pruning and validation."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import rule
from volcano_elastic.local.apiserver.status import (
    Cause,
    duplicate,
    invalid_type,
    invalid_value,
    required,
    shown,
    unsupported,
)

_ROOT_FIELDS = ("apiVersion", "kind", "metadata")


def apply_defaults(value: Any, schema: Object) -> None:
    """Fill in, in place, what `default` says; a null that may not be one counts as absent."""
    if isinstance(value, dict):
        extra = schema.get("additionalProperties")
        _drop_nulls(value, schema.get("properties") or {}, extra)
        for name, sub in (schema.get("properties") or {}).items():
            if name not in value and "default" in sub:
                value[name] = copy.deepcopy(sub["default"])
            if name in value:
                apply_defaults(value[name], sub)
        if isinstance(extra, dict):
            for name, one in value.items():
                if name not in (schema.get("properties") or {}):
                    apply_defaults(one, extra)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for one in value:
            apply_defaults(one, schema["items"])


def _drop_nulls(value: Object, properties: Object, extra: Any) -> None:
    for name in [name for name, one in value.items() if one is None]:
        sub = properties.get(name, extra)
        if isinstance(sub, dict) and not sub.get("nullable"):
            del value[name]


def prune(obj: Object, schema: Object) -> list[str]:
    """Drop, in place, the fields the schema doesn't know; returns their paths."""
    return list(_prune(obj, schema, "", root=True))


def _prune(value: Any, schema: Object, path: str, *, root: bool = False) -> Iterator[str]:
    if isinstance(value, list):
        if isinstance(schema.get("items"), dict):
            for number, one in enumerate(value):
                yield from _prune(one, schema["items"], f"{path}[{number}]")
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    embedded = root or bool(schema.get("x-kubernetes-embedded-resource"))
    for name in list(value):
        below = f"{path}.{name}" if path else name
        if embedded and name in _ROOT_FIELDS:
            continue
        if name in properties:
            yield from _prune(value[name], properties[name], below)
        elif isinstance(extra, dict):
            yield from _prune(value[name], extra, below)
        elif not extra and not schema.get("x-kubernetes-preserve-unknown-fields"):
            del value[name]
            yield below


def validate(obj: Object, schema: Object) -> list[Cause]:
    """What is wrong with the object, in the schema's order; empty if nothing is."""
    return list(_validate(obj, {**schema, "type": "object"}, "", root=True))


def _validate(value: Any, schema: Object, path: str, *, root: bool = False) -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    if not _has_type(value, schema):
        wanted = "integer or string" if _int_or_string(schema) else schema["type"]
        found = _type_name(value)
        yield invalid_type(path, found, f'{path} in body must be of type {wanted}: "{found}"')
        return
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, schema["enum"])
    if isinstance(value, bool):
        pass
    elif isinstance(value, int | float):
        yield from _validate_number(value, schema, path)
    elif isinstance(value, str):
        yield from _validate_string(value, schema, path)
    elif isinstance(value, list):
        yield from _validate_list(value, schema, path)
    elif isinstance(value, dict):
        yield from _validate_object(value, schema, path, root=root)
    yield from _validate_logic(value, schema, path)


def _int_or_string(schema: Object) -> bool:
    return bool(schema.get("x-kubernetes-int-or-string"))


def _has_type(value: Any, schema: Object) -> bool:
    if _int_or_string(schema):
        return isinstance(value, int | str) and not isinstance(value, bool)
    match schema.get("type"):
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    # Without a type anything goes (x-kubernetes-preserve-unknown-fields, parts of anyOf).
    return True


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names: list[tuple[type, str]] = [
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _validate_number(value: float, schema: Object, path: str) -> Iterator[Cause]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        words = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {words} {low}")
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        words = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {words} {high}")
    factor = schema.get("multipleOf")
    if factor and (value / factor) % 1:
        yield invalid_value(path, value, f"{path} in body should be a multiple of {factor}")
    limits = {"int32": 2**31, "int64": 2**63}
    limit = limits.get(str(schema.get("format")))
    if limit and not -limit <= value < limit:
        yield invalid_value(path, value, f"{path} in body must fit {schema['format']}")


def _validate_string(value: str, schema: Object, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(
            path, value, f"{path} in body should be at least {schema['minLength']} chars long"
        )
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        why = f"Too long: may not be more than {schema['maxLength']} bytes"
        yield Cause(path, "FieldValueTooLong", why)
    if "pattern" in schema and not _compiled(schema["pattern"]).search(value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield invalid_value(path, value, f'{path} in body must be of type date-time: "{value}"')


def _validate_list(value: list[Any], schema: Object, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minItems", 0):
        yield invalid_value(
            path, len(value), f"{path} in body should have at least {schema['minItems']} items"
        )
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        why = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        yield Cause(path, "FieldValueTooMany", why)
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    seen = set()
    for number, one in enumerate(value):
        if isinstance(schema.get("items"), dict):
            yield from _validate(one, schema["items"], f"{path}[{number}]")
        if list_type == "map" and keys and isinstance(one, dict):
            identity: Any = {key: one.get(key) for key in keys}
        elif list_type == "set" or schema.get("uniqueItems"):
            identity = one
        else:
            continue
        if shown(identity) in seen:
            yield duplicate(f"{path}[{number}]", identity)
        seen.add(shown(identity))


def _validate_object(value: Object, schema: Object, path: str, *, root: bool) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield required(f"{path}.{name}" if path else name)
    if len(value) < schema.get("minProperties", 0):
        yield invalid_value(path, len(value), f"must have at least {schema['minProperties']}")
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        why = f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
        yield Cause(path, "FieldValueTooMany", why)
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, one in value.items():
        # metadata is checked for every kind alike, elsewhere.
        if root and name in _ROOT_FIELDS:
            continue
        if name in properties:
            yield from _validate(one, properties[name], f"{path}.{name}" if path else name)
        elif isinstance(extra, dict):
            yield from _validate(one, extra, f"{path}.{name}" if path else name)


def _validate_logic(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf") or ():
        yield from _validate(value, part, path)
    options = schema.get("anyOf")
    if options and not any(not list(_validate(value, part, path)) for part in options):
        yield invalid_value(
            path, value, f"{path} in body must validate at least one schema (anyOf)"
        )
    options = schema.get("oneOf")
    if options and sum(not list(_validate(value, part, path)) for part in options) != 1:
        yield invalid_value(
            path, value, f"{path} in body must validate one and only one schema (oneOf)"
        )
    if schema.get("not") and not list(_validate(value, schema["not"], path)):
        yield invalid_value(path, value, f"{path} in body must not validate the schema (not)")


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text


_TYPES = ("object", "array", "string", "boolean", "integer", "number")
# What keywords of a schema must be, where it goes by them.
_KEYWORDS: dict[str, tuple[Any, str]] = {
    "properties": (dict, "an object"),
    "pattern": (str, "a string"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum"), (list, "a list")),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), (list, "a list")),
    **{
        f"{bound}{what}": ((int, float), "a number")
        for bound in ("min", "max")
        for what in ("imum", "Length", "Items", "Properties")
    },
    "multipleOf": ((int, float), "a number"),
}


def check(schema: Any, path: str) -> Iterator[Cause]:
    """What makes a schema itself unusable: the types of its keywords, and patterns and rules."""
    if not isinstance(schema, dict):
        yield invalid_value(path, schema, "must be an object")
        return
    if schema.get("type") and schema["type"] not in _TYPES:
        yield unsupported(f"{path}.type", schema["type"], _TYPES)
    mistyped = False
    for name, (wanted, words) in _KEYWORDS.items():
        if name in schema and not isinstance(schema[name], wanted):
            mistyped = True
            yield invalid_value(f"{path}.{name}", schema[name], f"must be {words}")
    if mistyped:
        return
    for name in ("required", "x-kubernetes-list-map-keys"):
        if not all(isinstance(one, str) for one in schema.get(name) or ()):
            yield invalid_value(f"{path}.{name}", schema[name], "must be a list of strings")
    try:
        _compiled(schema.get("pattern", ""))
    except re.error as error:
        yield invalid_value(f"{path}.pattern", schema["pattern"], f"must be a pattern: {error}")
    yield from rule.check(schema, path)
    for place, sub in _within(schema):
        yield from check(sub, f"{path}.{place}")


def _within(schema: Object) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, and where they are."""
    for key, sub in (schema.get("properties") or {}).items():
        yield f"properties[{key}]", sub
    for name in ("items", "additionalProperties", "not"):
        if name in schema and not isinstance(schema[name], bool):
            yield name, schema[name]
    for name in ("allOf", "anyOf", "oneOf"):
        for number, sub in enumerate(schema.get(name) or ()):
            yield f"{name}[{number}]", sub
