"""Objects as their Go types would take them: builtin_types.txt says which fields there are.

What a round trip through such a type does: unknown fields and nulls are gone, quantities and times
have their canonical form, and a value of another type cannot be read at all.
"""

from __future__ import annotations

import base64
import binascii
import copy
import functools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from volcano_elastic.api.quantity import QuantityError, canonical
from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind

_MICRO = frozenset({"eventTime", "acquireTime", "renewTime", "lastObservedTime"})
_PLAIN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z")
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
_GO = {
    "integer": "int",
    "boolean": "bool",
    "number": "float64",
    "time": "string",
    "bytes": "[]byte",
}


# Fields that Go writes though nothing is in them.
_CONDITION = {"lastTransitionTime": None}
_ALWAYS: dict[str, Object] = {
    "PodCondition": {"lastProbeTime": None, **_CONDITION},
    "NodeCondition": {"lastHeartbeatTime": None, **_CONDITION},
    "HorizontalPodAutoscalerCondition": _CONDITION,
    "ContainerStatus": {
        **{"state": {}, "lastState": {}, "ready": False, "restartCount": 0},
        **dict.fromkeys(("name", "image", "imageID"), ""),
    },
    "NodeStatus": {
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
        "nodeInfo": dict.fromkeys(
            (
                *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion"),
                *("kubeProxyVersion", "kubeletVersion", "machineID", "operatingSystem"),
                *("osImage", "systemUUID"),
            ),
            "",
        ),
    },
    "HorizontalPodAutoscalerStatus": {"desiredReplicas": 0, "currentMetrics": None},
    "CoreV1Event": {
        **dict.fromkeys(("eventTime", "firstTimestamp", "lastTimestamp")),
        **{"source": {}, "reportingComponent": "", "reportingInstance": ""},
    },
}


class DecodeError(ValueError):
    """The object is not one of its kind."""


@functools.lru_cache(maxsize=1)
def types() -> dict[str, dict[str, str]]:
    """By name of the type: the type of each field."""
    lines = Path(__file__).with_name("builtin_types.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, fields = line.partition(": ")
            found[name] = dict(field.split("=") for field in fields.split())
    return found


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
        meta = _decode(obj.get("metadata"), "ObjectMeta", "metadata", "ObjectMeta", unknown)
        return {**obj, "metadata": meta or {}}, unknown
    decoded = _struct(obj, type_of(kind), "", unknown)
    return {**decoded, "metadata": decoded.get("metadata") or {}}, unknown


def _struct(value: Object, name: str, path: str, unknown: list[str]) -> Object:
    fields, result = types()[name], {}
    for field, one in value.items():
        below = f"{path}.{field}" if path else field
        wanted = fields.get(field)
        if wanted is None:
            unknown.append(below)
        elif one is not None:
            found = _decode(one, wanted, below, name, unknown)
            # Go leaves empty lists and maps out; an empty struct may say something (emptyDir: {}).
            if found or wanted[0] not in "[{":
                result[field] = found
    for field, empty in _ALWAYS.get(name, {}).items():
        if isinstance(empty, dict) and empty:
            result[field] = {**empty, **result.get(field, {})}
        else:
            result.setdefault(field, copy.copy(empty))
    return result


def _decode(value: Any, wanted: str, path: str, owner: str, unknown: list[str]) -> Any:
    if value is None or wanted == "any":
        return value
    if wanted[0] == "[":
        if not isinstance(value, list):
            raise _mistyped(value, wanted, path, owner)
        inner = wanted[1:-1]
        return [
            _decode({} if one is None else one, inner, f"{path}[{number}]", owner, unknown)
            for number, one in enumerate(value)
        ]
    if wanted[0] == "{":
        if not isinstance(value, dict):
            raise _mistyped(value, wanted, path, owner)
        inner = wanted[1:-1]
        return {
            key: _decode("" if one is None else one, inner, path, owner, unknown)
            for key, one in value.items()
        }
    scalar = _SCALARS.get(wanted)
    if scalar is None:
        if not isinstance(value, dict):
            raise _mistyped(value, wanted, path, owner)
        return _struct(value, wanted, path, unknown)
    if not isinstance(value, scalar) or (isinstance(value, bool) and wanted != "boolean"):
        if wanted == "integer" and isinstance(value, float) and value.is_integer():
            return int(value)
        raise _mistyped(value, wanted, path, owner)
    if wanted == "quantity":
        try:
            return canonical(value)
        except QuantityError as error:
            raise DecodeError(f"{path}: {error}") from error
    if wanted == "time":
        return _time(value, path)
    if wanted == "bytes":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise DecodeError(f"{path}: illegal base64 data: {error}") from error
    return value


def _time(text: str, path: str) -> str | None:
    """In UTC and to the second; to the microsecond where Kubernetes keeps that."""
    micro = path.rpartition(".")[2] in _MICRO
    match = _PLAIN.fullmatch(text)
    if match and bool(match[1]) == micro:
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


def _mistyped(value: Any, wanted: str, path: str, owner: str) -> DecodeError:
    names: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "string"}
    found = names.get(type(value)) or ("array" if isinstance(value, list) else "object")
    field = re.sub(r"\[\d+\]", "", path)
    return DecodeError(
        f"json: cannot unmarshal {found} into Go struct field {owner}.{field} of type "
        f"{_GO.get(wanted, wanted)}"
    )
