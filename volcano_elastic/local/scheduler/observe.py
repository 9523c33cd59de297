"""From API objects to a snapshot of values. Pure; what can't be read refuses one job, never all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.local.scheduler.duration import go_duration
from volcano_elastic.local.scheduler.resources import PODS, plus
from volcano_elastic.local.scheduler.snapshot import (
    Job,
    Node,
    PodGroupStatus,
    Queue,
    Snapshot,
    Task,
    TaskStatus,
)

GROUP_NAME = "scheduling.k8s.io/group-name"
_QUEUE_NAME = "scheduling.volcano.sh/queue-name"
_CRITICAL_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Observed:
    """What the informers hold, and what was written but not yet seen back."""

    nodes: Iterable[Object] = ()
    pods: Iterable[Object] = ()
    podgroups: Iterable[Object] = ()
    queues: Iterable[Object] = ()
    priorityclasses: Iterable[Object] = ()
    bound: Mapping[str, str] = field(default_factory=dict)
    """Pod uid to node."""
    evicted: frozenset[str] = frozenset()
    """Pod uids."""


def snapshot_of(observed: Observed, *, scheduler_names: frozenset[str]) -> Snapshot:
    classes = {c["metadata"]["name"]: int(c.get("value", 0)) for c in observed.priorityclasses}
    fallback = next(
        (int(c.get("value", 0)) for c in observed.priorityclasses if c.get("globalDefault")), 0
    )
    others: list[Task] = []
    singles: list[Job] = []
    members: dict[str, list[Task]] = {}
    for pod in observed.pods:
        spec, annotations = pod.get("spec", {}), pod["metadata"].get("annotations") or {}
        scheduler = spec.get("schedulerName") or DEFAULT_SCHEDULER
        job = f"{pod['metadata']['namespace']}/{annotations.get(GROUP_NAME)}"
        if scheduler not in scheduler_names:
            job_key = None
        elif scheduler != DEFAULT_SCHEDULER and GROUP_NAME in annotations:
            job_key = job
        else:
            job_key = f"pod {key_of(pod)}"
        try:
            task = _task(pod, job_key, observed, classes, fallback)
        except quantity.QuantityError:
            # The API server refuses such quantities; what slipped past it can't be placed.
            continue
        if job_key is None:
            others.append(task)
        elif job_key == job:
            members.setdefault(job, []).append(task)
        else:
            in_queue = scheduler != DEFAULT_SCHEDULER
            singles.append(
                Job(
                    job_key,
                    (task,),
                    str(annotations.get(_QUEUE_NAME, "default")) if in_queue else None,
                    priority=task.priority,
                    created=task.created,
                )
            )
    jobs = [
        _job(group, members.pop(key_of(group), []), classes, fallback)
        for group in observed.podgroups
    ]
    for key, tasks in members.items():
        refused = f"PodGroup {key} named by the annotation {GROUP_NAME} does not exist"
        jobs.append(Job(key, tuple(tasks), None, refused=refused))
    return Snapshot(
        tuple(_node(node) for node in observed.nodes),
        tuple(_queue(queue) for queue in observed.queues),
        (*jobs, *singles),
        tuple(others),
    )


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod takes on its node; a limit without a request counts as one.

    Raises:
        quantity.QuantityError: an amount that is no quantity.
    """
    running: dict[str, int] = {}
    for container in spec.get("containers") or ():
        running = plus(running, _container(container))
    # Init containers run one after another beside the sidecars started before them.
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = plus(sidecars, _container(container))
            moment = sidecars
        else:
            moment = plus(sidecars, _container(container))
        peak = _greater(peak, moment)
    overhead = quantity.parse(spec.get("overhead") or {})
    return plus(_greater(plus(running, sidecars), peak), overhead | {PODS: 1000})


def _container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return quantity.parse({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _greater(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


def _task(
    pod: Object, job: str | None, observed: Observed, classes: Mapping[str, int], fallback: int
) -> Task:
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status") or {}
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    uid = str(meta["uid"])
    node = spec.get("nodeName") or observed.bound.get(uid)
    conditions = tuple(status.get("conditions") or ())
    class_name = spec.get("priorityClassName") or ""
    priority = spec.get("priority")
    if priority is None:
        priority = classes.get(class_name, fallback)
    own = annotations.get("volcano.sh/task-priority")
    preemptable = annotations.get("volcano.sh/preemptable", labels.get("volcano.sh/preemptable"))
    cooldown = labels.get("volcano.sh/cooldown-time", annotations.get("volcano.sh/cooldown-time"))
    return Task(
        uid=uid,
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        job=job,
        requests=requests_of(spec),
        status=_status(pod, node, uid in observed.evicted),
        node=node,
        priority=_integer(own, int(priority)),
        index=_index(str(meta["name"])),
        role=str(annotations.get("volcano.sh/task-spec", labels.get("volcano.sh/task-spec", ""))),
        created=str(meta.get("creationTimestamp", "")),
        preemptable=str(preemptable).lower() != "false",
        critical=class_name in _CRITICAL_CLASSES or meta.get("namespace") == "kube-system",
        cooling_until=_cooling_until(conditions, cooldown),
        spec=spec,
        conditions=conditions,
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


def _job(group: Object, tasks: list[Task], classes: Mapping[str, int], fallback: int) -> Job:
    spec, status = group.get("spec") or {}, group.get("status") or {}
    refused = None
    try:
        resources = spec.get("minResources")
        min_resources = None if resources is None else quantity.parse(resources)
    except quantity.QuantityError as error:
        min_resources, refused = None, f"PodGroup {key_of(group)}: spec.minResources: {error}"
    return Job(
        key=key_of(group),
        tasks=tuple(tasks),
        queue=str(spec.get("queue") or "default"),
        min_member=int(spec.get("minMember") or 0),
        min_task_member={k: int(v) for k, v in (spec.get("minTaskMember") or {}).items()},
        min_resources=min_resources,
        priority=classes.get(spec.get("priorityClassName") or "", fallback),
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
    allocated, refused = status.get("allocated"), None
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
        allocated=None if allocated is None else quantity.parse(allocated),
        refused=refused,
    )


def _node(node: Object) -> Node:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    return Node(
        name=str(node["metadata"]["name"]),
        allocatable=quantity.parse(status.get("allocatable") or status.get("capacity") or {}),
        labels=node["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        # A real cluster's node controller taints nodes that are not ready; here nobody does.
        ready=ready is None or ready.get("status") == "True",
    )


def _index(name: str) -> int:
    parts = name.split("-")
    return int(parts[-1]) if len(parts) >= 3 and parts[-1].isdecimal() else -1


def _integer(text: object, otherwise: int) -> int:
    try:
        return int(str(text))
    except ValueError:
        return otherwise
