"""Modes AtStart and Live: a job's pods are made with the CPU and memory that Brain recommends.

Off, Recommend                    ─► as the templates say, from the next pod on
AtStart, pods there or decided    ─► as it is: all pods of one life of the job are made alike
recommended                       ─► these, within a node that has all else the pod asks for
nothing yet                       ─► the first pods wait, PATIENCE at most from the job's creation

a ScalePlan that counts           ─► what it says, where it says something; running pods too

Live follows each further recommendation; what becomes of pods that run says `in_place`.

Brain writes status.elastic.recommendation, and who finds nothing to recommend writes an empty one.
What is in force stands in status.elastic.resources before the first pod is made with it, and
planner, gang and pods all read it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import pod as api_pod
from volcano_elastic.api import quantity, role_resources
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role_resources import RoleResources
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.pytorchjob.action import EmitEvent

RECOMMENDATION = "recommendation"
"""Field of status.elastic: when, and by role what."""
PATIENCE = timedelta(seconds=5)
"""Brain answers within moments, or is not there."""
_ZERO = timedelta(0)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AtStart:
    """Resources that pods made from now on ask for instead of those of their templates."""

    resources: Mapping[str, RoleResources] = field(default_factory=dict)
    """By role."""
    wait: timedelta = _ZERO
    """For how long the job's first pods must not be made yet."""
    live: bool = False
    """Running pods follow, too."""
    changed: bool = False
    """The job's templates do not have it yet, as its status does not."""
    events: tuple[EmitEvent, ...] = ()


def decide(
    job: PyTorchJob,
    mode: BrainMode | None,
    nodes: Iterable[Object],
    now: datetime,
    *,
    pods: bool,
    plan: ScalePlan | None = None,
) -> AtStart:
    """Return what the job's new pods ask for.

    Args:
        job: as it is parsed, with what is in force already.
        pods: whether it has any.
        plan: the one that counts for the job; Brain has no say in roles of which it says resources.
    """
    planned = _planned(job, plan)
    if not planned:
        return _by_brain(job, mode, nodes, now, pods=pods)
    available = list(nodes)
    found = _by_brain(job, mode, available, now, pods=pods, but=planned)
    in_force = role_resources.in_force(job.status)
    resources, events = dict(found.resources), list(found.events)
    for name, wanted in planned.items():
        resources.pop(name, None)
        fitting = within_a_node(wanted, job.replicas[name].pod_spec, available)
        if fitting is None:
            continue
        if fitting.same_as(in_force.get(name)):
            resources[name] = in_force[name]
            continue
        resources[name] = fitting
        events.append(_applied(job, name, fitting))
    return replace(
        found,
        resources=resources,
        wait=_ZERO if planned.keys() == job.replicas.keys() else found.wait,
        live=True,
        changed=resources != in_force,
        events=tuple(events),
    )


def _planned(job: PyTorchJob, plan: ScalePlan | None) -> dict[str, RoleResources]:
    """Return by role what the plan says that its pods ask for; what it doesn't say stays."""
    found = dict[str, RoleResources]()
    if plan is None:
        return found
    for name, role in plan.roles.items():
        if name in job.replicas and role.has_resources:
            own = role_resources.requested(job.replicas[name].pod_spec)
            cpu, memory = role.cpu or own.cpu, role.memory or own.memory
            # Who asks for none of one is given none of it: no half of a request would be made.
            if cpu and memory:
                found[name] = RoleResources(cpu, memory, f"ScalePlan {plan.name}")
    return found


def _applied(job: PyTorchJob, role: str, resources: RoleResources) -> EmitEvent:
    before = role_resources.requested(job.replicas[role].pod_spec)
    message = f"{role} pods ask for {resources} instead of {before}: {resources.message}"
    return EmitEvent("ResourcesApplied", message)


def _by_brain(
    job: PyTorchJob,
    mode: BrainMode | None,
    nodes: Iterable[Object],
    now: datetime,
    *,
    pods: bool,
    but: Collection[str] = (),
) -> AtStart:
    """Return what Brain's mode and recommendation make of it.

    Args:
        but: roles that it has no say in.
    """
    elastic = job.status.get("elastic") or {}
    in_force, live = role_resources.in_force(job.status), mode is BrainMode.LIVE
    if mode is None or not mode.carried_out:
        return AtStart(changed=bool(in_force))
    if (in_force or pods) and not live:
        return AtStart(in_force)
    if RECOMMENDATION not in elastic:
        wait = _ZERO if pods else max(_ZERO, job.created + PATIENCE - now)
        return AtStart(in_force, wait, live)
    found, events = dict(in_force), []
    told = role_resources.read((elastic[RECOMMENDATION] or {}).get("roles"))
    available = list(nodes)
    for name, replica in job.replicas.items():
        if name not in told or name in but:
            continue
        fitting = within_a_node(told[name], replica.pod_spec, available)
        if fitting is None or fitting.same_as(in_force.get(name)):
            continue
        found[name] = fitting
        events.append(_applied(job, name, fitting))
    return AtStart(found, live=live, changed=bool(events), events=tuple(events))


def within_a_node(
    wanted: RoleResources, spec: Object, nodes: Iterable[Object]
) -> RoleResources | None:
    """Return as much of what is wanted as the roomiest node has for a pod that asks for all else in
    its spec; None: there is no such node, or none has any to give."""
    asked, own = api_pod.requests(spec), role_resources.requested(spec)
    cpu_beside = Cpu(asked.pop("cpu", 0)) - own.cpu
    memory_beside = Bytes(-(-asked.pop("memory", 0) // 1000)) - own.memory
    selector = spec.get("nodeSelector") or {}
    best: RoleResources | None = None
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        has = quantity.parse((node.get("status") or {}).get("allocatable") or {})
        if any(labels.get(key) != value for key, value in selector.items()) or any(
            has.get(name, 0) < count for name, count in asked.items()
        ):
            continue
        cpu = min(wanted.cpu, Cpu(has.get("cpu", 0)) - cpu_beside)
        memory = min(wanted.memory, Bytes(has.get("memory", 0) // 1000) - memory_beside)
        if (
            cpu <= Cpu(0)
            or memory <= Bytes(0)
            or (best and not _roomier(cpu, memory, best, wanted))
        ):
            continue
        short = cpu < wanted.cpu or memory < wanted.memory
        bound = f"; no node that it fits has more than {node['metadata']['name']}" if short else ""
        best = replace(wanted, cpu=cpu, memory=memory, message=wanted.message + bound)
        if not short:
            break
    return best


def _roomier(cpu: Cpu, memory: Bytes, best: RoleResources, wanted: RoleResources) -> bool:
    """Return whether these are nearer to what is wanted, by what is shorter of the two."""
    return min(cpu / wanted.cpu, memory / wanted.memory) > min(
        best.cpu / wanted.cpu, best.memory / wanted.memory
    )
