"""Converts one object to one value of the planner's snapshot. All that is Volcano's or Kubernetes'
own spelling ends here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from volcano_elastic.adapters.other_job import OtherJob
from volcano_elastic.api import moment, node_signal, quantity
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.node_signal import NodeSignal
from volcano_elastic.api.pytorchjob import CONTAINER, InvalidJob, PyTorchJob, parse
from volcano_elastic.api.role import elastic, labelled
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.podgroup.pod_annotation import GROUP_NAME, is_protected
from volcano_elastic.podgroup.podgroup import queue_in_force
from volcano_elastic.pytorchjob import coexistence, exclusion, rendezvous
from volcano_elastic.pytorchjob.label import COORDINATOR, REPLICA_INDEX, REPLICA_TYPE
from volcano_elastic.pytorchjob.pod import requests
from volcano_elastic.pytorchjob.status import refused
from volcano_elastic.snapshot.snapshot import (
    SPEEDS,
    Gang,
    Job,
    Node,
    NodeAffinity,
    Pod,
    Queue,
    Quota,
    Requirement,
)

_LONG_AGO = datetime.fromtimestamp(0, UTC)
ROOT_QUEUE = "root"
_NOWHERE: NodeAffinity = ((Requirement("kubernetes.io/hostname", "In"),),)
DEFAULT_SCHEDULER = "default-scheduler"
# Volcano opens this gate itself once the queue has room: such a pod waits like any other.
_QUEUE_GATE = "scheduling.volcano.sh/queue-allocation-gate"


def read_job(obj: Object) -> PyTorchJob | None:
    """Return the job; None if it wants no pods from Volcano now, or cannot be carried out."""
    try:
        job = parse(obj)
    except InvalidJob:
        return None
    if job.finished or job.run_policy.suspend or job.deleting or not job.ours:
        return None
    if coexistence.left_alone(job) or refused(job):
        return None
    return job if job.uses_volcano else None


def convert_job(
    job: PyTorchJob,
    *,
    succeeded: int,
    priority: int,
    podgroup: Object | None,
    placed: int = 0,
    needs_first: bool = False,
    plan: ScalePlan | None = None,
) -> Job:
    """Return the job as the planner knows it.

    Args:
        placed: its pods on nodes that neither count in its size nor lead.
        needs_first: its workers were found to wait for worker 0.
        plan: the one that counts for it. The replicas that it says are a wish, like those of an
            autoscaler.
    """
    sized, leader = job.sized, job.leader
    count = sized.replicas if sized else 0
    # What Kueue admitted is a fixed size to the planner.
    policy = None if job.kueue else job.elastic
    spec = sized.pod_spec if sized else {}
    planned = None
    if plan is not None and plan.pods_known:
        planned = plan.replicas(elastic().name, job.desired or 0)
    wished = policy is not None and (policy.scaler == "hpa" or planned is not None)
    reported = job.status.get("elastic") or {}
    least = job.least_size if policy else count
    excluded = tuple(exclusion.names(job))
    return Job(
        key=job.key,
        queue=queue_in_force(job, podgroup),
        created=job.created,
        min=least,
        max=policy.max if policy else count,
        desired=least if policy is None or job.desired is None else job.desired,
        pod_requests=requests(job, sized.role) if sized else {},
        node_selector=dict(spec.get("nodeSelector") or {}),
        tolerations=tuple(spec.get("tolerations") or ()),
        node_affinity=_without(_node_affinity(spec), excluded),
        node_unit=policy.node_unit if policy else 1,
        priority=priority,
        cooldown=policy.cooldown if policy else None,
        scaler="hpa" if wished else policy.scaler if policy else "none",
        last_scale=job.last_scale,
        last_reason=reported.get("lastScaleReason"),
        succeeded=min(succeeded, count if policy is None else policy.max),
        master_requests=requests(job, leader.role) if leader else None,
        speeds=_speeds(reported.get("speeds")),
        gpu_hours=_positive(reported.get("gpuHours")),
        unmodelled=_unmodelled(job, podgroup, placed),
        replicas=(count if planned is None else planned) if wished else None,
        pause=_seconds(reported.get("pauseSeconds")),
        excluded=excluded,
        needs_first=needs_first or not rendezvous.can_elect(job),
    )


def convert_other_job(
    job: OtherJob, *, priority: int, like: Pod | None, queue: str, least: int, most: int
) -> Job | None:
    """Return the job as the planner sees it; None while nothing says what its pods ask for.

    Args:
        priority: that of its template's class.
        like: one of its pods, for kinds without a template.
        queue: that whose policy and bounds count.
        least: its minimum; its size while that can't be written.
        most: its maximum; likewise.
    """
    spec = (job.template or {}).get("spec") or {}
    if job.template is None and like is None:
        return None
    return Job(
        key=job.key,
        queue=queue,
        created=job.created,
        min=least,
        max=most,
        desired=job.size,
        pod_requests=_requests(spec) if like is None else like.requests,
        node_selector=dict(spec.get("nodeSelector") or {}) if like is None else like.node_selector,
        tolerations=tuple(spec.get("tolerations") or ()) if like is None else like.tolerations,
        node_affinity=_node_affinity(spec) if like is None else like.node_affinity,
        priority=priority if like is None else like.priority,
        # Nobody measures its speed, and its own controller chooses which pods leave: it grows into
        # idle room and makes room, but neither moves pods nor trades them for what others gain.
        scaler="none",
        last_scale=job.last_scale,
        last_reason=job.last_reason,
        succeeded=min(job.succeeded, job.max),
        unmodelled="resourceClaims" if spec.get("resourceClaims") else "",
    )


def _without(affinity: NodeAffinity, excluded: Sequence[str]) -> NodeAffinity:
    """Return the affinity without these nodes, as its job's new pods have it."""
    if not excluded:
        return affinity
    others = tuple(Requirement("metadata.name", "NotIn", (n,), of_field=True) for n in excluded)
    return tuple((*term, *others) for term in affinity or ((),))


def _node_affinity(spec: Mapping[str, Any]) -> NodeAffinity:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = (
        tuple(
            Requirement(
                key=expression["key"],
                operator=expression["operator"],
                values=tuple(expression.get("values") or ()),
                of_field=of_field,
            )
            for field, of_field in (("matchExpressions", False), ("matchFields", True))
            for expression in term.get(field) or ()
        )
        for term in required.get("nodeSelectorTerms") or ()
    )
    # A term without requirements matches no node, whatever the others say.
    found = tuple(term for term in terms if term)
    return found or (_NOWHERE if required else ())


def _unmodelled(job: PyTorchJob, podgroup: Object | None, placed: int) -> str:
    if any(replica.pod_spec.get("resourceClaims") for replica in job.replicas.values()):
        return "resourceClaims"
    others = [s for s in job.replicas.values() if not (s.role.elastic or s.role.leads)]
    # Where they are they stay, and hold their room; room for them is nobody's to foresee.
    if placed < sum(spec.replicas for spec in others):
        return f"{others[0].role.name} pods"
    spec = (podgroup or {}).get("spec") or {}
    return next((name for name in ("networkTopology", "subGroupPolicy") if spec.get(name)), "")


def _speeds(raw: Any) -> dict[int, float]:
    if not isinstance(raw, Mapping):
        return {}
    found = {int(size): _positive(speed) for size, speed in raw.items() if str(size).isdigit()}
    least, most = SPEEDS
    return {size: speed for size, speed in sorted(found.items()) if size and least <= speed <= most}


def _seconds(raw: Any) -> timedelta | None:
    return timedelta(seconds=_positive(raw)) if isinstance(raw, int | float) else None


def _positive(raw: Any) -> float:
    return max(0.0, float(raw)) if isinstance(raw, int | float) else 0.0


def convert_pod(obj: Object) -> tuple[Pod | None, str]:
    """Return the pod (None if a gate keeps it from being placed), and the phase it ended in or an
    empty string."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, namespace = meta.get("labels") or {}, meta.get("namespace", "default")
    phase = status.get("phase", "Pending")
    if any(gate.get("name") != _QUEUE_GATE for gate in spec.get("schedulingGates") or ()):
        return None, ""
    index = labels.get(REPLICA_INDEX, "0")
    job = owner(meta, "PyTorchJob")
    group = (meta.get("annotations") or {}).get(GROUP_NAME)
    sized = elastic()
    label = labels.get(REPLICA_TYPE, sized.label) if job else sized.label
    if label == COORDINATOR:
        job = None  # as anybody's pod: it holds its room, and is no part of the job's size
    role = labelled(label)
    # A job's or gang's pods wait together, so nobody asks what each of them waits for.
    waits = job is None and group is None and not spec.get("nodeName")
    return (
        Pod(
            key=key_of(obj),
            uid=meta.get("uid", ""),
            requests=_requests(spec),
            job=job,
            gang=f"{namespace}/{group}" if group else None,
            index=int(index) if index.isdigit() else 0,
            node=spec.get("nodeName") or None,
            running=phase == "Running",
            halted=api_pod.halted(obj, CONTAINER) if phase == "Running" else "",
            terminating=bool(meta.get("deletionTimestamp")),
            protected=is_protected(obj),
            created=moment.parse_optional(meta.get("creationTimestamp")),
            role=role.name if role else label,
            leaves_by=moment.parse_optional(meta.get("deletionTimestamp")),
            node_selector=dict(spec.get("nodeSelector") or {}),
            tolerations=tuple(spec.get("tolerations") or ()),
            node_affinity=_node_affinity(spec),
            priority=int(spec.get("priority") or 0),
            scheduler=spec.get("schedulerName") or DEFAULT_SCHEDULER,
            owner=_controller(meta) if job is None else None,
            unschedulable_since=_unschedulable_since(obj) if waits else None,
        ),
        phase if phase in ("Succeeded", "Failed") else "",
    )


def owner(meta: Mapping[str, Any], kind: str) -> str | None:
    """Return the key of the object of this kind that controls it."""
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == kind:
            return f"{meta.get('namespace', 'default')}/{reference['name']}"
    return None


def _controller(meta: Mapping[str, Any]) -> str | None:
    """Return kind and key of the object that controls it."""
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller"):
            return f"{reference['kind']} {meta.get('namespace', 'default')}/{reference['name']}"
    return None


def _unschedulable_since(pod: Object) -> datetime | None:
    """Return since when a scheduler has found no node for the pod; None if none has tried."""
    found = api_pod.condition(pod, "PodScheduled")
    if found is None or found.get("status") != "False" or found.get("reason") != "Unschedulable":
        return None
    return moment.parse_optional(found.get("lastTransitionTime"))


def convert_gang(obj: Object, *, succeeded: int, priority: int) -> Gang | None:
    """Return the gang; None for one that is going or has finished."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if meta.get("deletionTimestamp") or status.get("phase") == "Completed":
        return None
    members = int(spec.get("minMember") or 0)
    needed = _amounts(spec.get("minResources"))
    # A vcjob's pods are made once its PodGroup is admitted; until then it says only the sum.
    waits = owner(meta, "Job") is not None and members > 0 and bool(needed)
    loose = _is_loose(meta)
    return Gang(
        key=key_of(obj),
        queue=spec.get("queue") or "default",
        min_member=members,
        created=moment.parse_optional(meta.get("creationTimestamp")) or _LONG_AGO,
        priority=priority,
        succeeded=succeeded,
        pod_requests={n: -(-v // members) for n, v in needed.items()}
        if waits and not loose
        else None,
        loose=loose,
    )


def _is_loose(meta: Mapping[str, Any]) -> bool:
    """Return whether Volcano's podgroup controller made the PodGroup, for pods that bring none: one
    for all pods of their controller, and its minimum is one of them."""
    if not meta["name"].startswith("podgroup-"):
        return False
    references = meta.get("ownerReferences") or ()
    return not any(str(r.get("apiVersion")).startswith("batch.volcano.sh/") for r in references)


def convert_node(obj: Object, signals: Sequence[NodeSignal] = node_signal.DEFAULTS) -> Node:
    meta, spec = obj["metadata"], obj.get("spec") or {}
    ready = api_pod.condition(obj, "Ready")
    return Node(
        name=meta["name"],
        allocatable=_amounts((obj.get("status") or {}).get("allocatable")),
        # Nodes without kubelet (tests, virtual ones) may say nothing at all.
        ready=ready is None or ready.get("status") == "True",
        unschedulable=bool(spec.get("unschedulable")),
        labels=meta.get("labels") or {},
        taints=tuple(
            (t.get("key", ""), t.get("value", ""), t.get("effect", ""))
            for t in spec.get("taints") or ()
        ),
        leave=node_signal.shown(obj, signals),
    )


def convert_queue(obj: Object) -> Queue:
    spec = obj.get("spec") or {}
    state = (obj.get("status") or {}).get("state")
    parent = spec.get("parent")
    return Queue(
        name=obj["metadata"]["name"],
        open=state in (None, "", "Open"),
        capability=_limits(spec.get("capability")),
        deserved=_limits(spec.get("deserved")),
        guarantee=_limits((spec.get("guarantee") or {}).get("resource")),
        parent=None if parent in (None, "", ROOT_QUEUE) else str(parent),
        weight=int(spec.get("weight") or 1),
        priority=int(spec.get("priority") or 0),
        # Unset means true.
        reclaimable=spec.get("reclaimable") is not False,
    )


def convert_quota(obj: Object) -> Quota:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return Quota(
        key=key_of(obj),
        hard=_requests_in(status.get("hard") or spec.get("hard") or {}),
        used=_requests_in(status.get("used") or {}),
        scoped=bool(spec.get("scopes") or spec.get("scopeSelector")),
    )


def _requests_in(quota: Mapping[str, Any]) -> dict[str, int]:
    """Return what a quota says of pods' requests: `requests.cpu` and `cpu` are the same."""
    counted = {
        name.removeprefix("requests."): value
        for name, value in quota.items()
        if name.startswith("requests.") or name in ("cpu", "memory", "pods")
    }
    return _amounts({n: v for n, v in counted.items() if n != "storage"})


def _limits(raw: Mapping[str, Any] | None) -> dict[str, int] | None:
    return _amounts(raw) if raw else None


def _amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the amounts that can be read: other people's objects must not stop the planner."""
    out = {}
    for name, value in (raw or {}).items():
        try:
            out[name] = quantity.milli(value)
        except quantity.QuantityError:
            continue
    return out


def _requests(spec: Mapping[str, Any]) -> dict[str, int]:
    try:
        return api_pod.requests(spec)
    except quantity.QuantityError:
        return {}
