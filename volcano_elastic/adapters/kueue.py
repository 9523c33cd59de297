"""Reads Kueue's objects: queues with their quotas, and workloads that hold quota or wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment, quantity
from volcano_elastic.api import pod as api_pod

Object = dict[str, Any]
Amounts = Mapping[str, int]
"""Milli-units by resource."""
GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE_LABEL = f"{GROUP}/queue-name"
ELASTIC = f"{GROUP}/elastic-job"
"""Annotation of Jobs whose admitted size may change: "true"."""
_PODS = "pods"
"""Kueue may count pods; the planner's jobs ask for none."""


@dataclass(frozen=True, slots=True)
class FlavorQuota:
    """A flavor's part of a queue's quota."""

    nominal: Amounts
    most: Amounts
    """Nominal and what may be borrowed, of resources whose borrowing is limited."""


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    name: str
    cohort: str
    """Empty: it borrows from nobody."""
    open: bool
    flavors: Mapping[str, FlavorQuota]


@dataclass(frozen=True, slots=True)
class Cohort:
    name: str
    parent: str
    flavors: Mapping[str, FlavorQuota]


@dataclass(frozen=True, slots=True)
class LocalQueue:
    key: str
    """namespace/name"""
    cluster_queue: str
    open: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of one owner that Kueue admits together; not finished."""

    key: str
    """namespace/name"""
    owner: str
    """namespace/kind/name of its controller, the kind in small letters; empty without one."""
    local_queue: str
    """Key of its LocalQueue."""
    created: datetime
    priority: int
    pods: int
    requests: Amounts
    """All its pods' together, as they are written."""
    cluster_queue: str = ""
    """The queue whose quota it holds; empty while it waits."""
    usage: tuple[tuple[str, str, int], ...] = ()
    """(flavor, resource, amount) that it holds."""
    active: bool = True


def cluster_queue(obj: Object) -> ClusterQueue:
    spec = obj.get("spec") or {}
    return ClusterQueue(
        name=obj["metadata"]["name"],
        cohort=str(spec.get("cohortName") or ""),
        open=spec.get("stopPolicy") in (None, "", "None"),
        flavors=_flavors(spec),
    )


def cohort(obj: Object) -> Cohort:
    spec = obj.get("spec") or {}
    return Cohort(obj["metadata"]["name"], str(spec.get("parentName") or ""), _flavors(spec))


def local_queue(obj: Object) -> LocalQueue:
    meta, spec = obj["metadata"], obj.get("spec") or {}
    return LocalQueue(
        key=f"{meta.get('namespace', 'default')}/{meta['name']}",
        cluster_queue=str(spec.get("clusterQueue") or ""),
        open=spec.get("stopPolicy") in (None, "", "None"),
    )


def workload(obj: Object) -> Workload | None:
    """Return the workload; None once it has finished or is being deleted."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if meta.get("deletionTimestamp") or _is(status, "Finished"):
        return None
    namespace = meta.get("namespace", "default")
    sets = spec.get("podSets") or ()
    requests: dict[str, int] = {}
    for one in sets:
        asked = api_pod.requests((one.get("template") or {}).get("spec") or {})
        for name, amount in asked.items():
            requests[name] = requests.get(name, 0) + amount * int(one.get("count") or 0)
    admission = (status.get("admission") or {}) if _is(status, "QuotaReserved") else {}
    held = [
        (str((part.get("flavors") or {}).get(name, "")), name, quantity.milli(amount))
        for part in admission.get("podSetAssignments") or ()
        for name, amount in (part.get("resourceUsage") or {}).items()
        if name != _PODS
    ]
    return Workload(
        key=f"{namespace}/{meta['name']}",
        owner=_owner(meta, namespace),
        local_queue=f"{namespace}/{spec.get('queueName') or ''}",
        created=moment.parse(meta["creationTimestamp"]),
        priority=int(spec.get("priority") or 0),
        pods=sum(int(one.get("count") or 0) for one in sets),
        requests=requests,
        cluster_queue=str(admission.get("clusterQueue") or ""),
        usage=tuple(held),
        active=spec.get("active") is not False,
    )


def may_change(meta: Mapping[str, Any]) -> bool:
    """Return whether Kueue takes another size of the job while it runs."""
    return (meta.get("annotations") or {}).get(ELASTIC) == "true"


def _flavors(spec: Mapping[str, Any]) -> dict[str, FlavorQuota]:
    found: dict[str, FlavorQuota] = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            nominal, most = {}, {}
            for one in flavor.get("resources") or ():
                if one["name"] == _PODS:
                    continue
                nominal[one["name"]] = quantity.milli(one.get("nominalQuota") or 0)
                if one.get("borrowingLimit") is not None:
                    limit = quantity.milli(one["borrowingLimit"])
                    most[one["name"]] = nominal[one["name"]] + limit
            found[str(flavor["name"])] = FlavorQuota(nominal, most)
    return found


def _owner(meta: Mapping[str, Any], namespace: str) -> str:
    controllers: Iterable[Mapping[str, Any]] = (
        one for one in meta.get("ownerReferences") or () if one.get("controller")
    )
    return next((f"{namespace}/{c['kind'].lower()}/{c['name']}" for c in controllers), "")


def _is(status: Mapping[str, Any], kind: str) -> bool:
    conditions = status.get("conditions") or ()
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)
