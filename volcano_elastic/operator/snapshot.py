"""From what the informers hold to the planner's picture. All that is Volcano's or Kubernetes' own
spelling ends here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from volcano_elastic.api import moment, quantity
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.pytorchjob import (
    DEFAULT_COOLDOWN,
    WORKER,
    InvalidJob,
    PyTorchJob,
    parse,
)
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.podgroup.pod_annotation import GROUP_NAME, is_protected
from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE
from volcano_elastic.queue_policy.snapshot import Gang, Job, Node, Pod, Queue, Snapshot

_T = TypeVar("_T")
_LONG_AGO = datetime.fromtimestamp(0, UTC)


class Adapter:
    """Remembers what it made of each version of each object, since most don't change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Any]] = {}

    def snapshot(
        self,
        *,
        jobs: Iterable[Object],
        pods: Iterable[Object],
        podgroups: Iterable[Object],
        nodes: Iterable[Object],
        queues: Iterable[Object],
    ) -> Snapshot:
        before, self._known = self._known, {}

        def each(kind: str, objects: Iterable[Object], make: Callable[[Object], _T]) -> list[_T]:
            made = []
            for obj in objects:
                meta = obj["metadata"]
                name = f"{kind} {key_of(obj)} {meta.get('uid')}"
                found = before.get(name)
                version = meta.get("resourceVersion", "")
                if found is None or found[0] != version:
                    found = (version, make(obj))
                self._known[name] = found
                made.append(found[1])
            return made

        parsed = [found for found in each("job", jobs, _parsed) if found is not None]
        live: list[Pod] = []
        succeeded: dict[str, int] = {}
        for view, ended in each("pod", pods, _pod):
            if not ended:
                live.append(view)
            elif ended == "Succeeded" and not view.terminating:
                # A job's PodGroup bears the job's name: its pods must not count twice.
                owner = view.gang if view.job is None else view.job
                if owner is not None and (view.job is None or view.role == WORKER):
                    succeeded[owner] = succeeded.get(owner, 0) + 1
        gangs = [gang for gang in each("podgroup", podgroups, _gang) if gang is not None]
        return Snapshot(
            nodes=tuple(each("node", nodes, _node)),
            pods=tuple(live),
            jobs=tuple(_job(job, succeeded.get(job.key, 0)) for job in parsed),
            gangs=tuple(
                Gang(g.key, g.queue, g.min_member, g.created, succeeded=succeeded.get(g.key, 0))
                for g in gangs
            ),
            queues=tuple(each("queue", queues, _queue)),
        )


def _parsed(obj: Object) -> PyTorchJob | None:
    try:
        job = parse(obj)
    except InvalidJob:
        return None
    if job.finished or job.run_policy.suspend or job.deleting or not job.ours:
        return None
    return job if job.uses_volcano else None


def _job(job: PyTorchJob, succeeded: int) -> Job:
    worker, master = job.worker, job.master
    count = worker.replicas if worker else 0
    policy = job.elastic
    spec = worker.pod_spec if worker else {}
    status = job.status.get("elastic") or {}
    return Job(
        key=job.key,
        queue=job.queue,
        created=job.created,
        min=policy.min if policy else count,
        max=policy.max if policy else count,
        desired=count if policy is None else policy.min if job.desired is None else job.desired,
        pod_requests=api_pod.requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        tolerations=tuple(spec.get("tolerations") or ()),
        node_unit=policy.node_unit if policy else 1,
        cooldown=policy.cooldown if policy else DEFAULT_COOLDOWN,
        scaler=policy.scaler if policy else "none",
        last_scale=job.last_scale,
        last_reason=status.get("lastScaleReason"),
        succeeded=min(succeeded, count if policy is None else policy.max),
        master_requests=api_pod.requests(master.pod_spec) if master else None,
    )


def _pod(obj: Object) -> tuple[Pod, str]:
    """The pod, and the phase it ended in or nothing."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, namespace = meta.get("labels") or {}, meta.get("namespace", "default")
    phase = status.get("phase", "Pending")
    index = labels.get(REPLICA_INDEX, "0")
    job = _owner(meta)
    group = (meta.get("annotations") or {}).get(GROUP_NAME)
    kind = labels.get(REPLICA_TYPE, "worker") if job else "worker"
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
            terminating=bool(meta.get("deletionTimestamp")),
            protected=is_protected(obj),
            created=moment.parse_optional(meta.get("creationTimestamp")),
            role=kind.capitalize(),
            leaves_by=moment.parse_optional(meta.get("deletionTimestamp")),
            node_selector=dict(spec.get("nodeSelector") or {}),
            tolerations=tuple(spec.get("tolerations") or ()),
        ),
        phase if phase in ("Succeeded", "Failed") else "",
    )


def _owner(meta: Mapping[str, Any]) -> str | None:
    """Key of the PyTorchJob that controls the object."""
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == "PyTorchJob":
            return f"{meta.get('namespace', 'default')}/{reference['name']}"
    return None


def _gang(obj: Object) -> Gang | None:
    """None for a PyTorchJob's: the job itself speaks for it."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if _owner(meta) or meta.get("deletionTimestamp") or status.get("phase") == "Completed":
        return None
    return Gang(
        key=key_of(obj),
        queue=spec.get("queue") or "default",
        min_member=int(spec.get("minMember") or 0),
        created=moment.parse_optional(meta.get("creationTimestamp")) or _LONG_AGO,
    )


def _node(obj: Object) -> Node:
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
    )


def _queue(obj: Object) -> Queue:
    spec = obj.get("spec") or {}
    state = (obj.get("status") or {}).get("state")
    return Queue(
        name=obj["metadata"]["name"],
        open=state in (None, "", "Open"),
        capability=_limits(spec.get("capability")),
        deserved=_limits(spec.get("deserved")),
        guarantee=_limits((spec.get("guarantee") or {}).get("resource")),
    )


def _limits(raw: Mapping[str, Any] | None) -> dict[str, int] | None:
    return _amounts(raw) if raw else None


def _amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """Other people's objects: what cannot be read is left out rather than stop the planner."""
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
