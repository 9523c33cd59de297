"""Reads from a job's objects what history keeps. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import checkpoint_size, condition, moment, quantity, role_resources
from volcano_elastic.api.amount import Bytes, Cpu, Percent
from volcano_elastic.api.pytorchjob import CONTAINER
from volcano_elastic.api.pytorchjob_shape import DATA_SET_ANNOTATION, USER_ANNOTATION
from volcano_elastic.api.pytorchjob_validation import queue
from volcano_elastic.api.role import known, labelled
from volcano_elastic.brain.estimate.amounts import NOTHING, Amounts
from volcano_elastic.brain.history.gpu_load import GpuUse
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE

Object = Mapping[str, Any]
_FRESH = timedelta(minutes=6)
"""The operator writes loads that stay the same each 5 minutes."""


def seen(job: Object, before: Run | None, now: datetime, *, deleted: bool = False) -> Run:
    """Return the run as the job tells of it, with the loads that were measured before."""
    meta, status = job["metadata"], job.get("status") or {}
    elastic = status.get("elastic") or {}
    outcome, ended = _end(status, now)
    if deleted and not outcome:
        outcome, ended = "Deleted", now
    if before is not None and before.outcome:
        outcome, ended = before.outcome, before.ended
    annotations = meta.get("annotations") or {}
    return Run(
        uid=meta["uid"],
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        user=annotations.get(USER_ANNOTATION, ""),
        queue=queue(job),
        image=_image(job),
        data_set=annotations.get(DATA_SET_ANNOTATION, ""),
        labels=meta.get("labels") or {},
        created=moment.parse(meta["creationTimestamp"]),
        seen=now,
        ended=ended,
        outcome=outcome,
        restarts=int(elastic.get("restarts") or 0),
        out_of_memory=len(elastic.get("memory") or {}),
        speeds={int(size): float(speed) for size, speed in (elastic.get("speeds") or {}).items()},
        loads=() if before is None else before.loads,
        checkpoint=checkpoint_size.reported(status)
        or ({} if before is None else before.checkpoint),
    )


def measured(
    run: Run,
    pods: Sequence[Object],
    used: Mapping[str, Amounts],
    now: datetime,
    gpus: Mapping[str, GpuUse],
) -> Run:
    """Return the run with one sample of each pod that was measured.

    Args:
        used: by pod's name, what its training container uses now.
        gpus: likewise, of those whose GPUs were measured.
    """
    loads = {(load.role, load.index): load for load in run.loads}
    for pod in pods:
        amounts, place = used.get(pod["metadata"]["name"]), _place(pod)
        if amounts is None or place is None:
            continue
        asked = requested(pod["spec"])
        load = loads.get(place) or PodLoad.unused(*place, asked, now)
        loads[place] = load.with_sample(amounts, now, asked, gpus.get(pod["metadata"]["name"]))
    return replace(run, loads=tuple(loads[place] for place in sorted(loads)), seen=now)


def usage(items: Iterable[Object]) -> dict[tuple[str, str], Amounts]:
    """Return by namespace and name what pods' training containers use, by `PodMetrics` of the
    metrics API; pods without such a container are left out."""
    found = {}
    for item in items:
        for container in item.get("containers") or ():
            amounts = container.get("usage") or {}
            if container.get("name") != CONTAINER or not amounts:
                continue
            try:
                meta, load = item["metadata"], _amounts(amounts)
            except quantity.QuantityError:
                continue
            found[meta.get("namespace", "default"), meta["name"]] = load
    return found


def reported(jobs: Iterable[Object], now: datetime) -> dict[tuple[str, str], Amounts]:
    """Return by namespace and name what pods' training containers use, as the trainer in them
    measured it and their job's status tells it; what it told too long ago is left out."""
    found = {}
    for place, load in _reported(jobs, now):
        with contextlib.suppress(quantity.QuantityError):
            found[place] = _amounts(load)
    return found


def reported_gpus(jobs: Iterable[Object], now: datetime) -> dict[tuple[str, str], GpuUse]:
    """Return likewise what those use of their GPUs that have any."""
    found = {}
    for place, load in _reported(jobs, now):
        memory, percent = load.get("gpuMemory"), load.get("gpuPercent")
        if memory is None:
            continue
        with contextlib.suppress(quantity.QuantityError):
            busy = Percent(percent) if type(percent) is int and 0 <= percent <= 100 else None
            found[place] = GpuUse(Bytes.parse(memory), busy)
    return found


def _reported(jobs: Iterable[Object], now: datetime) -> Iterator[tuple[tuple[str, str], Object]]:
    for job in jobs:
        loads = ((job.get("status") or {}).get("elastic") or {}).get("loads") or {}
        at = moment.parse_optional(loads.get("time"))
        if at is None or now - at > _FRESH:
            continue
        namespace = job["metadata"].get("namespace", "default")
        for name, load in (loads.get("pods") or {}).items():
            yield (namespace, name), load


def runs_untold(pod: Object, reported: Mapping[tuple[str, str], Amounts]) -> bool:
    """Return whether a pod runs of which `told` has nothing."""
    meta = pod["metadata"]
    running = (pod.get("status") or {}).get("phase") == "Running"
    return running and (meta.get("namespace", "default"), meta["name"]) not in reported


def requested(spec: Object) -> Amounts:
    """Return what a pod's training container asks for; 0 of what it doesn't name."""
    try:
        asked = role_resources.requested(spec)
    except quantity.QuantityError:
        return NOTHING
    return Amounts(max(asked.cpu, Cpu(0)), max(asked.memory, Bytes(0)))


def has_pods(job: Object) -> bool:
    """Return whether pods of the job are there, so that it begins no more."""
    counts = ((job.get("status") or {}).get("replicaStatuses") or {}).values()
    return any(one.get("active") for one in counts)


def pod_specs(job: Object) -> dict[str, Object]:
    """Return by role the spec of its pods, of roles that are known and have a template."""
    replicas = (job.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    names = [role.name for role in known() if role.name in replicas]
    found = {name: ((replicas[name] or {}).get("template") or {}).get("spec") for name in names}
    return {name: spec for name, spec in found.items() if spec}


def largest(nodes: Iterable[Object]) -> Amounts | None:
    """Return the most CPU and the most memory that a node can give; None: no node tells."""
    found = NOTHING
    for one in _allocatable(nodes):
        found = found.most_of(one)
    return found if found.cpu and found.memory else None


def leanest(nodes: Iterable[Object]) -> Amounts | None:
    """Return CPU and memory of the node that has the least memory for each CPU; None: no node
    tells."""
    usable = [one for one in _allocatable(nodes) if one.cpu and one.memory]
    return min(usable, key=lambda one: one.memory.count / one.cpu.count, default=None)


def bounds_memory(
    queue_: str, queues: Iterable[Object], quotas: Iterable[Object], ranges: Iterable[Object]
) -> bool:
    """Return whether something else than nodes bounds the memory that pods may ask for.

    Args:
        queue_: the job's.
        queues: of Volcano.
        quotas: ResourceQuotas of the job's namespace.
        ranges: LimitRanges of it.
    """
    specs = {one["metadata"]["name"]: one.get("spec") or {} for one in queues}
    seen = set[str]()
    while (spec := specs.get(queue_)) is not None and queue_ not in seen:
        if "memory" in (spec.get("capability") or {}):
            return True
        seen.add(queue_)
        queue_ = spec.get("parent") or ""
    hard = [(one.get("spec") or {}).get("hard") or {} for one in quotas]
    limits = [limit for one in ranges for limit in (one.get("spec") or {}).get("limits") or ()]
    most = [limit.get(key) or {} for limit in limits for key in ("max", "maxLimitRequestRatio")]
    return any(name.rpartition(".")[2] == "memory" for one in (*hard, *most) for name in one)


def _allocatable(nodes: Iterable[Object]) -> Iterator[Amounts]:
    for node in nodes:
        reported = (node.get("status") or {}).get("allocatable") or {}
        if "cpu" in reported and "memory" in reported:
            # One odd node costs no job its advice.
            with contextlib.suppress(quantity.QuantityError):
                yield _amounts(reported)


def _end(status: Object, now: datetime) -> tuple[str, datetime | None]:
    for one in status.get("conditions") or ():
        if condition.finished([one]):
            ended = moment.parse_optional(status.get("completionTime"))
            return str(one["type"]), ended or now
    return "", None


def _image(job: Object) -> str:
    specs = pod_specs(job).values()
    containers = [c for spec in specs for c in spec.get("containers") or ()]
    return next((str(c.get("image", "")) for c in containers if c.get("name") == CONTAINER), "")


def _place(pod: Object) -> tuple[str, int] | None:
    labels = pod["metadata"].get("labels") or {}
    role, index = labelled(labels.get(REPLICA_TYPE, "")), labels.get(REPLICA_INDEX, "")
    return (role.name, int(index)) if role is not None and index.isdigit() else None


def _amounts(found: Mapping[str, Any]) -> Amounts:
    reported = Amounts(Cpu.parse(found.get("cpu", 0)), Bytes.parse(found.get("memory", 0)))
    if reported.cpu < Cpu(0) or reported.memory < Bytes(0):
        raise quantity.QuantityError(f"expected amounts of 0 or more, found {reported}")
    return reported
