"""Objects as their Go types would take them: builtin_types.txt says which fields there are.

What a round trip through such a type does: unknown fields and nulls are gone, quantities and times
have their canonical form, and a value of another type cannot be read at all.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embedded_cluster.apiserver.kind import Kind
from volcano_elastic.api.quantity import QuantityError, canonical
from volcano_elastic.kube.resource import Object

_MICRO = frozenset({"eventTime", "acquireTime", "renewTime", "lastObservedTime"})
# Those of any month; the few others are parsed.
_PLAIN = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(?P<micro>\.\d{6})?Z"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MICROSECONDS = re.compile(r".{19}\.\d{6}\D.*")
_SCALARS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
    "intOrString": (int, str),
    "quantity": (int, float, str),
    "time": str,
    "bytes": str,
}
_INT64 = 2**63


class DecodeError(ValueError):
    """The object is not one of its kind."""


@functools.cache
def types(file: str = "builtin_types.txt") -> dict[str, dict[str, str]]:
    """By name of the type: the type of each field (or what else the file says of it)."""
    found = {}
    for name, fields in _lines(file):
        found[name] = {field: wanted.rstrip("?") for field, wanted in fields}
    return found


@functools.cache
def _omitted() -> dict[str, set[str]]:
    """By name of the type: the fields that are left out where they are empty, 0 or false."""
    found = {}
    for name, fields in _lines("builtin_types.txt"):
        found[name] = {field for field, wanted in fields if wanted[-1] in "?]}"}
    return found


def _lines(file: str) -> Iterator[tuple[str, list[list[str]]]]:
    for line in Path(__file__).with_name(file).read_text().splitlines():
        if not line.startswith("#"):
            name, _, fields = line.partition(": ")
            yield name, [field.split("=") for field in fields.split()]


def struct_of(wanted: str) -> str:
    """Return the struct in a field's type, in lists, maps and choices too."""
    return wanted.rpartition("|")[2].strip("[]{}")


def type_of(kind: Kind) -> str:
    """The name of a built-in kind's type."""
    return "CoreV1Event" if kind.kind == "Event" else kind.kind


def decode(kind: Kind, obj: Object) -> tuple[Object, list[str]]:
    """`obj` as its type takes it, and the paths of the fields that the type doesn't know.

    Of a custom resource, only the metadata has a type.

    Raises:
        DecodeError: a field of another type; says which.
    """
    unknown: list[str] = []
    if kind.custom:
        meta = _decode(obj.get("metadata"), "ObjectMeta", "metadata", unknown)
        return {**obj, "metadata": meta or {}}, unknown
    decoded = _struct(obj, type_of(kind), "", unknown)
    return {**decoded, "metadata": decoded.get("metadata") or {}}, unknown


def taken(value: Any, name: str) -> Object:
    """`value` as a type takes it, whatever else it has.

    Raises:
        DecodeError: it is no such thing; says where.
    """
    if not isinstance(value, dict) or value.get("kind", name) not in (name, None):
        found = value.get("kind") if isinstance(value, dict) else type(value).__name__
        raise DecodeError(f"expected a {name}, found a {found}")
    return _struct(value, name, name, [])


def _struct(value: Object, name: str, path: str, unknown: list[str]) -> Object:
    fields, result = types()[name], {}
    for field, one in value.items():
        below = f"{path}.{field}" if path else field
        wanted = fields.get(field)
        if wanted is None:
            unknown.append(below)
        elif one is not None:
            found = _decode(one, wanted, below, unknown)
            # An empty struct may say something (emptyDir: {}).
            if found or field not in _omitted()[name]:
                result[field] = found
    return result


def _decode(value: Any, wanted: str, path: str, unknown: list[str]) -> Any:
    if value is None or wanted == "any":
        return value
    if "|" in wanted:
        wanted = "boolean" if isinstance(value, bool) else struct_of(wanted)
    bracket, inner = wanted[0], wanted[1:-1]
    expected = {"[": list, "{": dict}.get(bracket) or _SCALARS.get(wanted, dict)
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, expected) or (isinstance(value, bool) and wanted != "boolean"):
        raise DecodeError(f"{path}: expected {wanted}, found a {type(value).__name__}")
    if wanted == "integer" and not -_INT64 <= value < _INT64:
        raise DecodeError(f"{path}: expected an integer of 64 bits, found {value}")
    if bracket == "[":
        return [
            _decode(_zero(inner) if one is None else one, inner, f"{path}[{number}]", unknown)
            for number, one in enumerate(value)
        ]
    if bracket == "{":
        return {
            key: _decode(_zero(inner) if one is None else one, inner, f"{path}.{key}", unknown)
            for key, one in value.items()
        }
    if expected is dict:
        return _struct(value, wanted, path, unknown)
    if wanted == "time":
        return _time(value, path)
    try:
        if wanted == "bytes":
            base64.b64decode(value, validate=True)
        return canonical(value) if wanted == "quantity" else value
    except (QuantityError, binascii.Error, ValueError) as error:
        raise DecodeError(f"{path}: {error}") from error


def _zero(wanted: str) -> Any:
    """Return the zero value that Go makes of a null in a list or map."""
    return {} if wanted in types() else None if wanted == "any" else ""


def _time(text: str, path: str) -> str | None:
    """In UTC and to the second; to the microsecond where Kubernetes keeps that."""
    micro = path.rpartition(".")[2] in _MICRO
    match = _PLAIN.fullmatch(text)
    if match and bool(match["micro"]) == micro:
        return text
    if not text:
        return None
    try:
        if not _TIME.fullmatch(text):
            raise ValueError("expected YYYY-MM-DDTHH:MM:SSZ")
        if micro and not _MICROSECONDS.fullmatch(text):
            raise ValueError("expected YYYY-MM-DDTHH:MM:SS.ffffffZ")
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise DecodeError(f'{path}: parsing time "{text}": {error}') from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
