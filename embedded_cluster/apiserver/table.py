"""Tables: what `kubectl get` prints, one row an object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson

from embedded_cluster.apiserver import json_path
from embedded_cluster.apiserver.kind import Column, Kind
from volcano_elastic.api.moment import parse_optional
from volcano_elastic.kube.resource import Object

_NONE, _UNKNOWN = "<none>", "<unknown>"


def table(
    kind: Kind,
    objects: Iterable[Object],
    now: datetime,
    meta: Object,
    include: str,
    *,
    heads: bool,
) -> Object:
    """A meta.k8s.io/v1 Table; `include` is the query's includeObject."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": _definitions(kind) if heads else None,
        "rows": [
            {
                "cells": [_cell(column, obj, now) for column in _columns(kind)],
                "object": _included(obj, include),
            }
            for obj in objects
        ],
    }


def _included(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    if include == "Object":
        return obj
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def _columns(kind: Kind) -> Sequence[Column]:
    if kind.columns is None:
        return _COLUMNS.get(kind.plural, (_NAME, _AGE))
    return (_NAME, *kind.columns)


def _definitions(kind: Kind) -> list[Object]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in _columns(kind)
    ]


def _cell(column: Column, obj: Object, now: datetime) -> Any:
    if not isinstance(column.cell, str):
        return column.cell(obj, now)
    found = [one for one in json_path.find(column.cell, obj) if one is not None]
    value = found[0] if found else None
    if value is None or (value == "" and column.empty):
        return column.empty
    match column.type:
        case "date":
            return _age(value, now)
        case "string" if len(found) > 1:
            return ",".join(str(one) for one in found)
        case "string" if not isinstance(value, str):
            return orjson.dumps(value).decode()
        case "integer" if isinstance(value, bool) or not isinstance(value, int | float):
            return None
    return value


def _age(stamp: Any, now: datetime) -> str:
    moment = parse_optional(stamp)
    return _UNKNOWN if moment is None else duration(int((now - moment).total_seconds()))


_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
# Ages up to so many seconds are told in a unit, and in what then is left in another.
_SPANS: tuple[tuple[float, int, str, int, str], ...] = (
    (2 * _MINUTE, 1, "s", 1, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", _MINUTE, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", _HOUR, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", _DAY, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    (math.inf, _YEAR, "y", _YEAR, ""),
)


def duration(seconds: int) -> str:
    """Shorten an age as kubectl does: 5s, 3m20s, 5h, 2d3h, 8y."""
    if seconds < 0:
        return "0s" if seconds >= -2 else "<invalid>"
    _, unit, name, part, rest = next(span for span in _SPANS if seconds < span[0])
    more = seconds % unit // part
    return f"{seconds // unit}{name}" + (f"{more}{rest}" if more else "")


def _pod_ready(obj: Object, _: datetime) -> str:
    states = (obj.get("status") or {}).get("containerStatuses") or ()
    return f"{sum(bool(one.get('ready')) for one in states)}/{len(obj['spec']['containers'])}"


def _pod_gates(obj: Object, _: datetime) -> str:
    gates = obj["spec"].get("readinessGates") or ()
    conditions = (obj.get("status") or {}).get("conditions") or ()
    true = {one["type"] for one in conditions if one.get("status") == "True"}
    return f"{sum(one['conditionType'] in true for one in gates)}/{len(gates)}" if gates else _NONE


def _pod_restarts(obj: Object, _: datetime) -> str:
    states = (obj.get("status") or {}).get("containerStatuses") or ()
    return str(sum(one.get("restartCount") or 0 for one in states))


def _pod_status(obj: Object, _: datetime) -> str:
    meta, status = obj["metadata"], obj.get("status") or {}
    words = status.get("reason") or status.get("phase") or "Unknown"
    for one in reversed(status.get("containerStatuses") or ()):
        state = one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            words = waiting["reason"]
        elif ended:
            signal, code = ended.get("signal"), ended.get("exitCode", 0)
            words = ended.get("reason") or (f"Signal:{signal}" if signal else f"ExitCode:{code}")
    gated = any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ())
    if gated and words == "Pending":
        words = "SchedulingGated"
    if meta.get("deletionTimestamp"):
        words = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(words)


def _node_status(obj: Object, _: datetime) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), None)
    words = {"True": "Ready", "False": "NotReady"}.get(ready or "", "Unknown")
    return words + (",SchedulingDisabled" if (obj.get("spec") or {}).get("unschedulable") else "")


def _node_roles(obj: Object, _: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = obj["metadata"].get("labels") or ()
    return ",".join(sorted(one[len(prefix) :] for one in labels if one.startswith(prefix))) or _NONE


def _ports(obj: Object, _: datetime) -> str:
    ports = obj["spec"].get("ports") or ()
    return ",".join(f"{one['port']}/{one.get('protocol', 'TCP')}" for one in ports) or _NONE


def _selector(obj: Object, _: datetime) -> str:
    wanted = obj["spec"].get("selector") or {}
    return ",".join(f"{key}={value}" for key, value in wanted.items()) or _NONE


def _external_addresses(obj: Object, _: datetime) -> str:
    return ",".join(obj["spec"].get("externalIPs") or ()) or _NONE


def _event_object(obj: Object, _: datetime) -> str:
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_source(obj: Object, _: datetime) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent")
    instance = source.get("host") or obj.get("reportingInstance")
    return f"{component or ''}, {instance}" if instance else component or ""


def _event_seen(obj: Object, now: datetime) -> str:
    if "series" in obj:
        return _age(obj["series"].get("lastObservedTime"), now)
    last = obj.get("lastTimestamp")
    return _age(last, now) if last else _event_first_seen(obj, now)


def _event_first_seen(obj: Object, now: datetime) -> str:
    return _age(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _event_count(obj: Object, _: datetime) -> int:
    return (obj["series"].get("count") or 0) if "series" in obj else obj.get("count") or 1


def _entries(*fields: str) -> Callable[[Object, datetime], int]:
    return lambda obj, _: sum(len(obj.get(name) or ()) for name in fields)


def _column(
    name: str,
    cell: str | Callable[[Object, datetime], Any],
    empty: Any = None,
    type: str = "string",
    priority: int = 0,
) -> Column:
    return Column(name, type, cell, "name" if name == "Name" else "", "", priority, empty)


def _wide(name: str, cell: str | Callable[[Object, datetime], Any], empty: Any = None) -> Column:
    return _column(name, cell, empty, priority=1)


_NAME = _column("Name", ".metadata.name")
_AGE = _column("Age", lambda obj, now: _age(obj["metadata"].get("creationTimestamp"), now))
_COLUMNS: dict[str, list[Column]] = {
    "pods": [
        _NAME,
        _column("Ready", _pod_ready),
        _column("Status", _pod_status),
        _column("Restarts", _pod_restarts),
        _AGE,
        _wide("IP", ".status.podIP", _NONE),
        _wide("Node", ".spec.nodeName", _NONE),
        _wide("Nominated Node", ".status.nominatedNodeName", _NONE),
        _wide("Readiness Gates", _pod_gates),
    ],
    "nodes": [
        _NAME,
        _column("Status", _node_status),
        _column("Roles", _node_roles),
        _AGE,
        _column("Version", ".status.nodeInfo.kubeletVersion", ""),
        _wide("Internal-IP", '.status.addresses[?(@.type=="InternalIP")].address', _NONE),
        _wide("External-IP", '.status.addresses[?(@.type=="ExternalIP")].address', _NONE),
        _wide("OS-Image", ".status.nodeInfo.osImage", _UNKNOWN),
        _wide("Kernel-Version", ".status.nodeInfo.kernelVersion", _UNKNOWN),
        _wide("Container-Runtime", ".status.nodeInfo.containerRuntimeVersion", _UNKNOWN),
    ],
    "services": [
        _NAME,
        _column("Type", ".spec.type"),
        _column("Cluster-IP", ".spec.clusterIP", _NONE),
        _column("External-IP", _external_addresses),
        _column("Port(s)", _ports),
        _AGE,
        _wide("Selector", _selector),
    ],
    "events": [
        _column("Last Seen", _event_seen),
        _column("Type", ".type", ""),
        _column("Reason", ".reason", ""),
        _column("Object", _event_object),
        _wide("Subobject", ".involvedObject.fieldPath", ""),
        _wide("Source", _event_source),
        _column("Message", lambda obj, _: (obj.get("message") or "").strip()),
        _wide("First Seen", _event_first_seen),
        _wide("Count", _event_count),
        _wide("Name", ".metadata.name", ""),
    ],
    "namespaces": [_NAME, _column("Status", ".status.phase"), _AGE],
    "configmaps": [_NAME, _column("Data", _entries("data", "binaryData")), _AGE],
    "secrets": [_NAME, _column("Type", ".type"), _column("Data", _entries("data")), _AGE],
    "leases": [_NAME, _column("Holder", ".spec.holderIdentity", ""), _AGE],
    "priorityclasses": [
        _NAME,
        _column("Value", ".value", 0, "integer"),
        _column("Global-Default", ".globalDefault", False, "boolean"),
        _AGE,
        _column("PreemptionPolicy", ".preemptionPolicy"),
    ],
    "customresourcedefinitions": [
        _NAME,
        _column("Created At", lambda obj, _: obj["metadata"]["creationTimestamp"], None, "date"),
    ],
}
