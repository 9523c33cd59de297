"""Tables: what `kubectl get` prints, one row an object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from volcano_elastic.api.moment import parse_optional
from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import json_path
from volcano_elastic.local.apiserver.kind import Column, Kind

Cells = Callable[[Object, datetime], list[Any]]


class _Head(NamedTuple):
    name: str
    type: str = "string"
    priority: int = 0


_NAME = _Head("Name")
_AGE = _Head("Age")
_COLUMNS: dict[str, list[_Head]] = {
    "pods": [
        _NAME,
        _Head("Ready"),
        _Head("Status"),
        _Head("Restarts"),
        _AGE,
        _Head("IP", priority=1),
        _Head("Node", priority=1),
        _Head("Nominated Node", priority=1),
        _Head("Readiness Gates", priority=1),
    ],
    "nodes": [
        _NAME,
        _Head("Status"),
        _Head("Roles"),
        _AGE,
        _Head("Version"),
        _Head("Internal-IP", priority=1),
        _Head("External-IP", priority=1),
        _Head("OS-Image", priority=1),
        _Head("Kernel-Version", priority=1),
        _Head("Container-Runtime", priority=1),
    ],
    "services": [
        _NAME,
        _Head("Type"),
        _Head("Cluster-IP"),
        _Head("External-IP"),
        _Head("Port(s)"),
        _AGE,
        _Head("Selector", priority=1),
    ],
    "events": [
        _Head("Last Seen"),
        _Head("Type"),
        _Head("Reason"),
        _Head("Object"),
        _Head("Subobject", priority=1),
        _Head("Source", priority=1),
        _Head("Message"),
        _Head("First Seen", priority=1),
        _Head("Count", priority=1),
        _Head("Name", priority=1),
    ],
    "namespaces": [_NAME, _Head("Status"), _AGE],
    "configmaps": [_NAME, _Head("Data"), _AGE],
    "secrets": [_NAME, _Head("Type"), _Head("Data"), _AGE],
    "leases": [_NAME, _Head("Holder"), _AGE],
    "priorityclasses": [
        _NAME,
        _Head("Value", "integer"),
        _Head("Global-Default", "boolean"),
        _AGE,
        _Head("PreemptionPolicy"),
    ],
    "horizontalpodautoscalers": [
        _NAME,
        _Head("Reference"),
        _Head("MinPods", "integer"),
        _Head("MaxPods", "integer"),
        _Head("Replicas", "integer"),
        _AGE,
    ],
    "customresourcedefinitions": [_NAME, _Head("Created At", "date")],
}


def table(
    kind: Kind,
    objects: Iterable[Object],
    *,
    now: datetime,
    meta: Object,
    include: str = "Metadata",
    heads: bool = True,
) -> Object:
    """A meta.k8s.io/v1 Table; `include` is the query's includeObject."""
    rows = [_row(kind, obj, now, include) for obj in objects]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": _definitions(kind) if heads else None,
        "rows": rows,
    }


def partial(obj: Object) -> Object:
    """PartialObjectMetadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def _definitions(kind: Kind) -> list[Object]:
    if kind.columns is not None:
        columns = [Column("Name", "string", ".metadata.name"), *kind.columns]
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if number == 0 else column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for number, column in enumerate(columns)
        ]
    return [
        {
            "name": head.name,
            "type": head.type,
            "format": "name" if head is _NAME else "",
            "description": "",
            "priority": head.priority,
        }
        for head in _COLUMNS.get(kind.plural, [_NAME, _AGE])
    ]


def _row(kind: Kind, obj: Object, now: datetime, include: str) -> Object:
    row: Object = {"cells": cells(kind, obj, now)}
    shown = {"Object": obj, "None": None}
    row["object"] = shown[include] if include in shown else partial(obj)
    return row


def cells(kind: Kind, obj: Object, now: datetime) -> list[Any]:
    name, age = obj["metadata"]["name"], _age(obj["metadata"].get("creationTimestamp"), now)
    if kind.columns is not None:
        return [name, *(_custom_cell(column, obj, now) for column in kind.columns)]
    if kind.plural in _CELLS:
        return _CELLS[kind.plural](obj, now)
    return [name, age]


def _custom_cell(column: Column, obj: Object, now: datetime) -> Any:
    found = json_path.find(column.json_path, obj)
    if not found or found[0] is None:
        return None
    value = found[0]
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
    return "<unknown>" if moment is None else duration(int((now - moment).total_seconds()))


def duration(seconds: int) -> str:
    """As kubectl shortens an age: 5s, 3m20s, 5h, 2d3h, 8y."""
    if seconds < 0:
        return "0s" if seconds >= -2 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 2 * 365:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days < 8 * 365 and days % 365 else f"{days // 365}y"


def _pod(obj: Object, now: datetime) -> list[Any]:
    spec, status, meta = obj["spec"], obj.get("status") or {}, obj["metadata"]
    states = status.get("containerStatuses") or []
    restarts = sum(one.get("restartCount") or 0 for one in states)
    ready = sum(bool(one.get("ready")) for one in states)
    return [
        meta["name"],
        f"{ready}/{len(spec['containers'])}",
        _pod_status(meta, status, states),
        str(restarts),
        _age(meta.get("creationTimestamp"), now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _pod_status(meta: Object, status: Object, states: list[Object]) -> str:
    words = status.get("reason") or status.get("phase") or "Unknown"
    for one in reversed(states):
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


def _node(obj: Object, now: datetime) -> list[Any]:
    status, meta = obj.get("status") or {}, obj["metadata"]
    ready = next(
        (one for one in status.get("conditions") or () if one["type"] == "Ready"), {"status": ""}
    )
    words = {"True": "Ready", "False": "NotReady"}.get(ready["status"], "Unknown")
    if (obj.get("spec") or {}).get("unschedulable"):
        words += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = [label[len(prefix) :] for label in meta.get("labels") or () if label.startswith(prefix)]
    info = status.get("nodeInfo") or {}
    addresses = {one.get("type"): one.get("address") for one in status.get("addresses") or ()}
    return [
        meta["name"],
        words,
        ",".join(sorted(roles)) or "<none>",
        _age(meta.get("creationTimestamp"), now),
        info.get("kubeletVersion") or "",
        addresses.get("InternalIP") or "<none>",
        addresses.get("ExternalIP") or "<none>",
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _service(obj: Object, now: datetime) -> list[Any]:
    spec, meta = obj.get("spec") or {}, obj["metadata"]
    ports = ",".join(f"{p['port']}/{p.get('protocol', 'TCP')}" for p in spec.get("ports") or ())
    selector = ",".join(f"{key}={value}" for key, value in (spec.get("selector") or {}).items())
    return [
        meta["name"],
        spec.get("type"),
        spec.get("clusterIP") or "<none>",
        spec.get("externalName") or ",".join(spec.get("externalIPs") or ()) or "<none>",
        ports or "<none>",
        _age(meta.get("creationTimestamp"), now),
        selector or "<none>",
    ]


def _event(obj: Object, now: datetime) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    seen = (
        obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or obj.get("eventTime")
        or obj["metadata"].get("creationTimestamp")
    )
    return [
        _age(seen, now),
        obj.get("type"),
        obj.get("reason"),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath") or "",
        source.get("component") or obj.get("reportingComponent") or "",
        (obj.get("message") or obj.get("note") or "").strip(),
        _age(obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or seen, now),
        obj.get("count") or 1,
        obj["metadata"]["name"],
    ]


def _hpa(obj: Object, now: datetime) -> list[Any]:
    spec, status, meta = obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]
    target = spec.get("scaleTargetRef") or {}
    return [
        meta["name"],
        f"{target.get('kind')}/{target.get('name')}",
        spec.get("minReplicas"),
        spec.get("maxReplicas"),
        status.get("currentReplicas", 0),
        _age(meta.get("creationTimestamp"), now),
    ]


def _simple(*values: Callable[[Object], Any]) -> Cells:
    def row(obj: Object, now: datetime) -> list[Any]:
        age = _age(obj["metadata"].get("creationTimestamp"), now)
        return [obj["metadata"]["name"], *(value(obj) for value in values), age]

    return row


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    return [
        obj["metadata"]["name"],
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        _age(obj["metadata"].get("creationTimestamp"), now),
        obj.get("preemptionPolicy"),
    ]


_CELLS: dict[str, Cells] = {
    "pods": _pod,
    "nodes": _node,
    "services": _service,
    "events": _event,
    "horizontalpodautoscalers": _hpa,
    "priorityclasses": _priority_class,
    "namespaces": _simple(lambda obj: (obj.get("status") or {}).get("phase")),
    "configmaps": _simple(
        lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
    ),
    "secrets": _simple(lambda obj: obj.get("type"), lambda obj: len(obj.get("data") or {})),
    "leases": _simple(lambda obj: (obj.get("spec") or {}).get("holderIdentity")),
    "customresourcedefinitions": lambda obj, now: [
        obj["metadata"]["name"],
        obj["metadata"].get("creationTimestamp"),
    ],
}
