"""From API objects to a snapshot of values. Pure; what can't be read refuses one job, never all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from embedded_cluster.scheduler.duration import go_duration
from embedded_cluster.scheduler.resources import PODS, asked
from embedded_cluster.scheduler.snapshot import (
    Job,
    Node,
    PodGroupStatus,
    Queue,
    Snapshot,
    Task,
    TaskStatus,
)
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api import quantity
from volcano_elastic.kube.resource import Object, key_of

GROUP_NAME = "scheduling.k8s.io/group-name"
_QUEUE_NAME = "scheduling.volcano.sh/queue-name"
# What of a pod's spec, beside its requests, decides which nodes suit it.
_SUITS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "resourceClaims",
)
_CRITICAL_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
DEFAULT_SCHEDULER = "default-scheduler"
_ALONE = "pod "
"""Begins the key of the job of a pod that has no PodGroup."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The informers' objects, and those that were written but not yet seen back."""

    nodes: Iterable[Object] = ()
    pods: Iterable[Object] = ()
    podgroups: Iterable[Object] = ()
    queues: Iterable[Object] = ()
    priorityclasses: Iterable[Object] = ()
    bound: Mapping[str, str] = field(default_factory=dict)
    """Pod uid to node."""
    evicted: Container[str] = ()
    """Pod uids."""


def snapshot_of(observed: Observed, scheduler_names: Container[str]) -> Snapshot:
    """Pods of other schedulers than `scheduler_names` only take room."""
    values = {c["metadata"]["name"]: int(c.get("value", 0)) for c in observed.priorityclasses}
    default = next((c for c in observed.priorityclasses if c.get("globalDefault")), None)
    # Where a pod or PodGroup names no class.
    values[""] = values[default["metadata"]["name"]] if default else 0
    groups = {key_of(group): group for group in observed.podgroups}
    members: dict[str, list[Task]] = {key: [] for key in groups}
    others: list[Task] = []
    for pod in observed.pods:
        task = _task(pod, observed, scheduler_names, values)
        if task is not None:
            (others if task.job is None else members.setdefault(task.job, [])).append(task)
    return Snapshot(
        tuple(_node(node) for node in observed.nodes),
        tuple(_queue(queue) for queue in observed.queues),
        tuple(
            _job(groups[key], tasks, values) if key in groups else _job_without_podgroup(key, tasks)
            for key, tasks in members.items()
        ),
        tuple(others),
    )


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the room that a pod takes on its node, itself included.

    Raises:
        quantity.QuantityError: an amount that is no quantity.
    """
    return quantity.total((api_pod.requests(spec), {PODS: 1000}))


def _task(
    pod: Object, observed: Observed, scheduler_names: Container[str], values: Mapping[str, int]
) -> Task | None:
    """None for a pod whose amounts can't be read: it can't be placed, and the API server would have
    refused it."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    try:
        requests = requests_of(spec)
    except quantity.QuantityError:
        return None
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    scheduler = spec.get("schedulerName") or DEFAULT_SCHEDULER
    job = None
    if scheduler in scheduler_names:
        job = _ALONE + key_of(pod)
        if scheduler != DEFAULT_SCHEDULER and GROUP_NAME in annotations:
            job = f"{meta['namespace']}/{annotations[GROUP_NAME]}"
    uid = str(meta["uid"])
    node = spec.get("nodeName") or observed.bound.get(uid)
    conditions = tuple(status.get("conditions") or ())
    class_name = spec.get("priorityClassName") or ""
    priority = spec.get("priority")
    if priority is None:
        priority = values.get(class_name, values[""])
    own = annotations.get("volcano.sh/task-priority")
    preemptable = annotations.get("volcano.sh/preemptable", labels.get("volcano.sh/preemptable"))
    cooldown = labels.get("volcano.sh/cooldown-time", annotations.get("volcano.sh/cooldown-time"))
    suits = {key: spec[key] for key in _SUITS if spec.get(key)}
    return Task(
        uid=uid,
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        job=job,
        queue=None
        if scheduler == DEFAULT_SCHEDULER
        else str(annotations.get(_QUEUE_NAME, "default")),
        requests=requests,
        status=_status(pod, node, uid in observed.evicted),
        node=node,
        priority=_integer(own, int(priority)),
        index=_index(str(meta["name"])),
        role=str(annotations.get("volcano.sh/task-spec", labels.get("volcano.sh/task-spec", ""))),
        created=str(meta.get("creationTimestamp", "")),
        preemptable=str(preemptable).lower() != "false",
        preempts=spec.get("preemptionPolicy") != "Never",
        critical=class_name in _CRITICAL_CLASSES or meta.get("namespace") == "kube-system",
        cooling_until=_cooling_until(conditions, cooldown),
        best_effort=not asked(requests),
        shape=f"{sorted(requests.items())} {suits or ''}",
        spec=spec,
        conditions=conditions,
        nominated_node=str(status.get("nominatedNodeName", "")),
    )


def _status(pod: Object, node: str | None, evicted: bool) -> TaskStatus:
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        return TaskStatus.SUCCEEDED
    if phase == "Failed":
        return TaskStatus.FAILED
    if evicted or pod["metadata"].get("deletionTimestamp"):
        return TaskStatus.RELEASING
    if not node:
        gated = pod.get("spec", {}).get("schedulingGates")
        return TaskStatus.GATED if gated else TaskStatus.PENDING
    return TaskStatus.RUNNING if phase == "Running" else TaskStatus.BOUND


def _cooling_until(
    conditions: Iterable[Mapping[str, Any]], cooldown: str | None
) -> datetime | None:
    duration = go_duration(str(cooldown)) if cooldown else None
    for condition in conditions:
        bound = condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        if duration and bound and condition.get("lastTransitionTime"):
            return datetime.fromisoformat(condition["lastTransitionTime"]) + duration
    return None


def _job_without_podgroup(key: str, tasks: list[Task]) -> Job:
    if not key.startswith(_ALONE):
        refused = f"PodGroup {key} named by the annotation {GROUP_NAME} does not exist"
        return Job(key, tuple(tasks), None, refused=refused)
    (task,) = tasks
    return Job(key, (task,), task.queue, priority=task.priority, created=task.created)


def _job(group: Object, tasks: list[Task], values: Mapping[str, int]) -> Job:
    spec, status = group.get("spec") or {}, group.get("status") or {}
    refused = None
    try:
        resources = spec.get("minResources")
        min_resources = None if resources is None else quantity.parse(resources)
    except quantity.QuantityError as error:
        min_resources, refused = None, f"PodGroup {key_of(group)}: spec.minResources: {error}"
    for name in ("networkTopology", "subGroupPolicy"):
        if spec.get(name):
            refused = f"PodGroup {key_of(group)}: the embedded scheduler has no {name}"
    return Job(
        key=key_of(group),
        tasks=tuple(tasks),
        queue=str(spec.get("queue") or "default"),
        min_member=int(spec.get("minMember") or 0),
        min_task_member={k: int(v) for k, v in (spec.get("minTaskMember") or {}).items()},
        min_resources=min_resources,
        priority=values.get(spec.get("priorityClassName") or "", values[""]),
        created=str(group["metadata"].get("creationTimestamp", "")),
        podgroup=PodGroupStatus(
            status.get("phase") or "Pending",
            int(status.get("running") or 0),
            int(status.get("succeeded") or 0),
            int(status.get("failed") or 0),
            tuple(status.get("conditions") or ()),
        ),
        refused=refused,
    )


def _queue(queue: Object) -> Queue:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    name = str(queue["metadata"]["name"])
    refused = None
    amounts: list[dict[str, int]] = [{}, {}, {}]
    guarantee = (spec.get("guarantee") or {}).get("resource")
    try:
        amounts = [
            quantity.parse(resources or {})
            for resources in (spec.get("capability"), spec.get("deserved"), guarantee)
        ]
    except quantity.QuantityError as error:
        refused = f"queue {name}: spec.capability, deserved or guarantee: {error}"
    return Queue(
        name=name,
        created=str(queue["metadata"].get("creationTimestamp", "")),
        weight=int(spec.get("weight") or 1),
        priority=int(spec.get("priority") or 0),
        parent=None if name == "root" else str(spec.get("parent") or "root"),
        capability=amounts[0],
        deserved=amounts[1],
        guarantee=amounts[2],
        reclaimable=spec.get("reclaimable") is not False,
        state=str(status.get("state") or ""),
        allocated=status.get("allocated") or {},
        refused=refused,
    )


def _node(node: Object) -> Node:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    return Node(
        name=str(node["metadata"]["name"]),
        allocatable=quantity.parse(status.get("allocatable") or status.get("capacity") or {}),
        labels=node["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
    )


def _index(name: str) -> int:
    parts = name.split("-")
    return int(parts[-1]) if len(parts) >= 3 and parts[-1].isdecimal() else -1


def _integer(text: object, otherwise: int) -> int:
    try:
        return int(str(text))
    except ValueError:
        return otherwise
