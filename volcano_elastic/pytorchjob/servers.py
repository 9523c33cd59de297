"""Decides how many parameter servers a job has. Pure.

a ScalePlan that counts  ─► its PS replicas, or as many as its psHosts name
by their loads           ─► what `server_scaling` says, where the job lets it
before the first pod     ─► by the size of the checkpoint that it begins with, as its servers told
                            before it was suspended, or its annotation says; likewise
else                     ─► the spec's number, or what is in force by the last of these

A ScalePlan's number ends with it, and the spec's counts again; one by loads stays. What is in force
stands in status.elastic.servers before a pod is made or taken away for it. Servers move their rows
by themselves: a new one takes its share once it runs, and one that is told to end gives its rows
away first.
"""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.api import checkpoint_size, server_bounds, server_count
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import PyTorchJob, ReplicaSpec
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.api.server_count import ServerCount
from volcano_elastic.pytorchjob.action import EmitEvent
from volcano_elastic.pytorchjob.server_scaling import FULL, Capacity, servers_for_checkpoint

REASON = "ServersScaled"
_BY_PLAN = "ScalePlan "


@dataclass(frozen=True, slots=True)
class Servers:
    count: ServerCount | None = None
    """None: the spec's number."""
    move: frozenset[str] = frozenset()
    """Names of pods that give their rows away, go, and are made anew on another node."""
    changed: bool = False
    """The job's status has another."""
    events: tuple[EmitEvent, ...] = ()


def decide(
    job: PyTorchJob,
    plan: ScalePlan | None,
    by_load: ServerCount | None,
    *,
    pods: bool,
    move: frozenset[str] = frozenset(),
) -> Servers:
    """Return how many servers there should be.

    Args:
        job: as it is parsed, with what is in force already.
        plan: the one that counts for the job.
        by_load: what their loads ask for; None: nothing else than there is.
        pods: whether the job has any.
        move: as in Servers.
    """
    spec = job.servers
    known = server_count.read(job.status)
    if spec is None:
        return Servers(changed=known is not None)
    in_force = server_count.in_force(job.status, spec.asked)
    wanted = in_force
    planned = None if plan is None else plan.replicas(spec.role.name, spec.replicas)
    if plan is not None and planned is not None:
        number = min(max(planned, 1), server_count.MOST)
        wanted = ServerCount(number, spec.asked, f"{_BY_PLAN}{plan.name}")
    elif in_force is not None and in_force.message.startswith(_BY_PLAN):
        wanted = None
    elif by_load is not None and by_load.instead_of == spec.asked:
        wanted = by_load
    elif not pods and in_force is None:
        wanted = _at_start(job, spec)
    if wanted is not None and wanted.replicas == spec.asked:
        wanted = None
    new = spec.asked if wanted is None else wanted.replicas
    if new == spec.replicas:
        return Servers(in_force, move, in_force != known)
    why = "as its spec says" if wanted is None else wanted.message
    message = f"from {spec.replicas} to {new} parameter servers: {why}"
    return Servers(wanted, move, wanted != known, (EmitEvent(REASON, message),))


def _at_start(job: PyTorchJob, spec: ReplicaSpec) -> ServerCount | None:
    bounds = server_bounds.read(job.annotations)
    each, size = capacity(spec).memory, checkpoint_size.of_servers(job.annotations, job.status)
    if bounds is None or size is None or not each:
        return None
    number = servers_for_checkpoint(size, Bytes(each), spec.asked)
    message = f"a checkpoint of {size} fills so many by {FULL:.0%}"
    return ServerCount(bounds.within(number), spec.asked, message)


def capacity(spec: ReplicaSpec) -> Capacity:
    """Return what a server may use: its container's limits, else its requests."""
    resources = spec.container.get("resources") or {}
    found = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    cpu, memory = Cpu.parse(found.get("cpu", 0)), Bytes.parse(found.get("memory", 0))
    return Capacity(cpu.count / Cpu.cores(1).count, memory.count)
