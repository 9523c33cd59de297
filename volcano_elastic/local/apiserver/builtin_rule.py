"""Defaults, required fields, choices and bounds of the built-in kinds: builtin_rules.txt."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.builtin_type import struct_of, type_of, types
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.schema import KEYS, LIST_TYPE
from volcano_elastic.local.apiserver.status import (
    Cause,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
)

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class _Rule:
    default: bytes | None = None
    """As JSON, so that each object gets a value of its own."""
    required: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    within: bool = False
    label: bool = False
    unique: str = ""


def _alternatives(name: str) -> tuple[bool, list[str]]:
    """Whether a struct needs any, and of which fields it may have only one."""
    match name:
        case "Probe":
            return True, ["exec", "grpc", "httpGet", "tcpSocket"]
        case "EnvVar":
            return False, ["value", "valueFrom"]
        case "Volume":
            return False, sorted(types()[name].keys() - {"name"})
    return False, []


def fill_defaults(kind: Kind, obj: Object) -> None:
    """In place, in an object that its type has taken (builtin_type.py)."""
    for name, struct, _ in _structs(obj, type_of(kind), ""):
        for field, rule in _rules()[name].items():
            if rule.default is not None and struct.get(field) in (None, ""):
                struct[field] = orjson.loads(rule.default)


def causes(kind: Kind, obj: Object) -> Iterator[Cause]:
    """What is wrong with such an object, field by field."""
    for name, struct, path in _structs(obj, type_of(kind), ""):
        needed, alternatives = _alternatives(name)
        said = [field for field in alternatives if struct.get(field) not in (None, "")]
        if len(said) > 1:
            yield forbidden_field(f"{path}.{said[1]}", f"may not be beside {said[0]}")
        elif needed and not said:
            yield required(path, f"must have one of {', '.join(alternatives)}")
        for field, rule in _rules()[name].items():
            place, value = f"{path}.{field}" if path else field, struct.get(field)
            if value in (None, "", [], {}):
                if rule.required:
                    yield required(place)
            elif rule.choices and value not in rule.choices:
                yield unsupported(place, value, rule.choices)
            elif rule.within and (value.startswith("/") or ".." in value.split("/")):
                yield invalid_value(place, value, "must be relative, without '..'")
            elif rule.label and not LABEL.fullmatch(value):
                yield invalid_value(place, value, f"must match '{LABEL.pattern}'")
            elif rule.unique:
                yield from _twice(value, rule.unique, place)
            elif isinstance(value, int):
                if rule.least is not None and value < rule.least:
                    yield invalid_value(place, value, f"must be at least {rule.least}")
                if rule.most is not None and value > rule.most:
                    yield invalid_value(place, value, f"must be at most {rule.most}")


def _twice(items: list[Object], field: str, path: str) -> Iterator[Cause]:
    seen = set()
    for number, one in enumerate(items):
        value = one.get(field)
        # That it is missing is another rule's to say.
        if value and value in seen:
            yield duplicate(f"{path}[{number}].{field}", value)
        seen.add(value)


def _structs(value: Any, wanted: str, path: str) -> Iterator[tuple[str, Object, str]]:
    """Each struct within that has rules: the name of its type, itself, and where it is."""
    if wanted[0] == "[":
        for number, one in enumerate(value):
            yield from _structs(one, wanted[1:-1], f"{path}[{number}]")
        return
    if wanted[0] == "{":
        for key, one in value.items():
            yield from _structs(one, wanted[1:-1], f"{path}[{key}]")
        return
    if "|" in wanted:
        if isinstance(value, bool):
            return
        wanted = struct_of(wanted)
    if wanted in _rules():
        yield wanted, value, path
    for field in _leading(wanted):
        # A default of a parent is there by now, and may be looked into as well.
        if value.get(field) is not None:
            below = f"{path}.{field}" if path else field
            yield from _structs(value[field], types()[wanted][field], below)


@functools.cache
def schema_of(wanted: str) -> Object:
    """A field's type as a CRD would have it, as far as merging goes: what is in it, lists' keys."""
    if wanted[0] in "[{":
        return {"items" if wanted[0] == "[" else "additionalProperties": schema_of(wanted[1:-1])}
    # A schema has schemas in it without end, but is never merged.
    if wanted not in types() or wanted == "JSONSchemaProps":
        return {}
    properties = {field: {**schema_of(inner)} for field, inner in types()[wanted].items()}
    for field, rule in _rules().get(wanted, {}).items():
        if rule.default is not None:
            properties[field]["default"] = orjson.loads(rule.default)
    for field, keys in types("builtin_lists.txt").get(wanted, {}).items():
        sort = {LIST_TYPE: "set"} if keys == "*" else {LIST_TYPE: "map", KEYS: keys.split(",")}
        properties[field] |= sort
    return {"properties": properties}


@functools.cache
def _rules() -> dict[str, dict[str, _Rule]]:
    found: dict[str, dict[str, _Rule]] = {}
    for line in Path(__file__).with_name("builtin_rules.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        place, *words = line.split()
        name, _, field = place.partition(".")
        said: dict[str, Any] = {}
        for word in words:
            if word == "!":
                said["required"] = True
            elif word in ("within", "~label"):
                said[word.strip("~")] = True
            elif word.startswith("unique:"):
                said["unique"] = word.partition(":")[2]
            elif word.startswith("="):
                said["default"] = word[1:].encode()
            elif word.startswith((">=", "<=")):
                said["least" if word[0] == ">" else "most"] = int(word[2:])
            else:
                said["choices"] = tuple(word.split("|"))
        found.setdefault(name, {})[field] = _Rule(**said)
    return found


@functools.cache
def _leading(name: str) -> tuple[str, ...]:
    """The fields of a type by which one gets to a type with rules."""
    return tuple(
        field
        for field, wanted in types()[name].items()
        if (inner := struct_of(wanted)) in types() and _matters(inner, frozenset({name}))
    )


def _matters(name: str, seen: frozenset[str]) -> bool:
    if name in _rules() or name in seen:
        return name in _rules()
    inner = {struct_of(wanted) for wanted in types()[name].values()} & types().keys()
    return any(_matters(one, seen | {name}) for one in inner)
