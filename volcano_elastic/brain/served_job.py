"""Works out what a job with parameter servers needs: at its start by jobs like it (D2) and by its
checkpoint (X3), and while it runs by its own pods (D3, D4). Pure.

pods measured for less than three minutes     ─► no plan yet
none of Brain's plans is there                ─► D3: workers that the limit of CPU carries, and
                                                 resources of both roles
one is                                        ─► D4: what is near its limits gets more; workers
                                                 come while servers have CPU to spare and the last
                                                 growth paid

The number of servers is the operator's affair (`pytorchjob/server_scaling.py`), and stays as it is:
what an estimate says of all is shared among those there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment, quantity, server_bounds, server_count
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob_defaults import bounds
from volcano_elastic.api.pytorchjob_shape import CPU_LIMIT_ANNOTATION
from volcano_elastic.api.pytorchjob_validation import replica_counts
from volcano_elastic.api.scale_plan import RolePlan
from volcano_elastic.brain.estimate import tuning
from volcano_elastic.brain.estimate.amounts import NOTHING, Amounts, Limits, within
from volcano_elastic.brain.estimate.job_load import Configuration, JobLoad, greatest, total
from volcano_elastic.brain.estimate.start_up import start_up
from volcano_elastic.brain.estimate.while_running import MemoryAt, growth, while_running
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.brain.job_load import SERVING, WORKER, load_of
from volcano_elastic.brain.observation import pod_specs, requested

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedSize:
    """The words of a ScalePlan, and why they are so."""

    roles: Mapping[str, RolePlan]
    reason: str


def is_served(job: Object) -> bool:
    return SERVING in pod_specs(job)


def cpu_limit(job: Object) -> Cpu:
    """Return what all of a job's pods may ask for together: as its annotation says, else what they
    do at its greatest size."""
    said = (job["metadata"].get("annotations") or {}).get(CPU_LIMIT_ANNOTATION)
    if said is not None:
        try:
            return Cpu.parse(said)
        except quantity.QuantityError:
            pass
    counts = _counts(job)
    asked = (requested(spec).cpu * counts.get(name, 0) for name, spec in pod_specs(job).items())
    return sum(asked, Cpu(0))


def at_start(
    job: Object,
    similar: Sequence[JobLoad],
    node: Amounts | None,
    checkpoint: Bytes | None = None,
) -> dict[str, Amounts]:
    """Return by role what pods should ask for, by runs that were like the job; where there were
    none, servers' memory by the checkpoint, and else the article's defaults for roles that ask for
    nothing.

    Args:
        checkpoint: what servers' rows take in the one that it begins with; None: there is none.
    """
    found = start_up(similar, Limits(node=node), checkpoint)
    wanted = _by_role(found, _counts(job)[SERVING], node)
    specs, told = pod_specs(job), dict[str, Amounts]()
    for name, amounts in wanted.items():
        if name not in specs:
            continue
        asked = requested(specs[name])
        if similar or asked == NOTHING:
            told[name] = amounts
        elif name == SERVING and checkpoint is not None:
            # It says nothing of CPU.
            told[name] = Amounts(asked.cpu or amounts.cpu, amounts.memory)
    return told


def planned(
    job: Object,
    run: Run,
    before: Mapping[str, RolePlan] | None,
    node: Amounts | None,
    now: datetime,
    wait: timedelta,
) -> PlannedSize | None:
    """Return what a running job's plan should say; None: what it says already, or nothing yet.

    Args:
        before: what Brain's plan says that is there; None: there is none.
        node: most that a node can give; None: not known.
        wait: how long pods are measured before the first plan, and after each change of the size.
    """
    elastic_ = (job.get("status") or {}).get("elastic") or {}
    size, servers = int(elastic_.get("desired") or 0), _counts(job).get(SERVING, 0)
    there = [load for load in run.loads if load.index < _there(load.role, size, servers)]
    serving = [load for load in there if load.role == SERVING]
    workers = [load for load in there if load.role == WORKER]
    if size < 1 or len(serving) < servers or not workers or workers[0].index != 0:
        return None
    if any(now - load.cpu.since < wait for load in (*serving, workers[0])):
        return None
    if before is None:
        return _first(job, run, size, serving, workers, node, now)
    # Sizes are compared once each was measured for long enough.
    scaled = moment.parse_optional(elastic_.get("lastScaleTime"))
    is_settled = before.get(WORKER, RolePlan()).replicas in (None, size)
    judged = is_settled and (scaled is None or now - scaled >= wait)
    return _next(job, run, size if judged else None, before, serving, workers, node)


def _there(role: str, size: int, servers: int) -> int:
    return {WORKER: size, SERVING: servers}.get(role, 0)


def _first(
    job: Object,
    run: Run,
    size: int,
    serving: Sequence[PodLoad],
    workers: Sequence[PodLoad],
    node: Amounts | None,
    now: datetime,
) -> PlannedSize:
    used = load_of(replace(run, loads=(*serving, *workers)))
    # The estimate takes servers' CPU for what one worker makes them use.
    each = tuple(replace(one, cpu=one.cpu.shared(size)) for one in used.parameter_servers)
    # Memory of the fullest: all of them get the same.
    chief = Amounts(used.workers[0].cpu, greatest(used.workers).memory)
    limit, (least, most) = cpu_limit(job), _range(job)
    seconds = (now - run.created).total_seconds()
    left = ((job["status"]["elastic"].get("progress") or {}).get("estimatedRemainingSeconds")) or 0
    found = while_running(
        JobLoad(each, (chief,)),
        limit,
        server_cpu=max(load.requested.cpu for load in serving) or Cpu.cores(1),
        most_workers=most,
        bytes_a_step=_growth(serving, run.created),
        total_steps=round(seconds + left),
        limits=Limits(node=node),
    )
    wanted = _by_role(found, len(serving), node)
    roles = {
        WORKER: RolePlan(
            max(least, size, found.workers), wanted[WORKER].cpu, wanted[WORKER].memory
        ),
        SERVING: RolePlan(None, wanted[SERVING].cpu, wanted[SERVING].memory),
    }
    minutes = max(1, round((now - workers[0].cpu.since).total_seconds() / 60))
    return PlannedSize(
        roles,
        f"measured for {minutes} min, a worker uses {chief.cpu} CPU and makes parameter servers "
        f"use {total(each).cpu}: {limit} CPU carry {found.workers}",
    )


def _next(
    job: Object,
    run: Run,
    size: int | None,
    before: Mapping[str, RolePlan],
    serving: Sequence[PodLoad],
    workers: Sequence[PodLoad],
    node: Amounts | None,
) -> PlannedSize | None:
    """Return D4's changes.

    Args:
        size: None: nobody can tell yet what it is worth.
    """
    limits, roles, reasons = Limits(node=node), dict(before), list[str]()
    # Where the operator scales servers by their loads, it adds some to those that are hot or full.
    by_number = server_bounds.read(job["metadata"].get("annotations") or {}) is not None
    for load in (*(() if by_number else serving), *workers):
        was = roles.get(load.role, RolePlan())
        asked = load.requested
        cpus = [sample.used.cpu for sample in load.latest]
        held = [sample.used.memory for sample in load.latest]
        now = was
        if load.role == SERVING and asked.cpu and tuning.hot(cpus, asked.cpu):
            now = replace(now, cpu=_more(now.cpu, tuning.cooled(cpus, asked, limits).cpu))
        if asked.memory and tuning.nearly_full(held, asked.memory):
            now = replace(
                now, memory=_more(now.memory, tuning.relieved(held, asked, limits).memory)
            )
        if now.cpu != was.cpu:
            reasons.append(f"{load.role} {load.index} used {cpus[-1]} of its {asked.cpu} CPU")
        if now.memory != was.memory:
            reasons.append(f"{load.role} {load.index} held {held[-1]} of its {asked.memory}")
        roles[load.role] = now
    if size is not None:
        wanted = _workers(job, run, size, roles, serving)
        if wanted > size:
            roles[WORKER] = replace(roles.get(WORKER, RolePlan()), replicas=wanted)
            reasons.append(
                f"parameter servers have CPU to spare and the speed of {size} workers is "
                f"{run.speeds[size]:.4g} samples a second"
            )
    return PlannedSize(roles, "; ".join(reasons)) if reasons else None


def _workers(
    job: Object, run: Run, size: int, roles: Mapping[str, RolePlan], serving: Sequence[PodLoad]
) -> int:
    """Return how many there should be; as many as now where their speed is not known."""
    if size not in run.speeds or any(not load.latest for load in serving):
        return size
    most = _range(job)[1]
    each = roles.get(WORKER, RolePlan()).cpu
    if each is not None and each:
        servers = sum((load.requested.cpu for load in serving), Cpu(0))
        most = min(most, max(0, (cpu_limit(job) - servers).count) // each.count)
    used = [
        (load.latest[-1].used.cpu, load.requested.cpu) for load in serving if load.requested.cpu
    ]
    return tuning.more_workers(size, most, used, run.speeds)


def _more(one: Cpu | Bytes | None, other: Any) -> Any:
    return other if one is None else max(one, other)


def _growth(serving: Sequence[PodLoad], since: datetime) -> float:
    """Return bytes a second by which the memory of all servers grows together."""
    slopes = 0.0
    for load in serving:
        held = [
            MemoryAt(round((one.at - since).total_seconds()), one.used.memory)
            for one in load.latest
        ]
        slopes += growth(held)
    return slopes


def _by_role(found: Configuration, servers: int, node: Amounts | None) -> dict[str, Amounts]:
    """Return what pods of each role ask for, with as many servers as there are."""
    each = found.parameter_server
    shared = Amounts(
        (each.cpu * found.parameter_servers).shared(servers),
        (each.memory * found.parameter_servers).shared(servers),
    )
    return {SERVING: within(shared, Limits(node=node)), WORKER: found.worker}


def _range(job: Object) -> tuple[int, int]:
    """Return the least and the most workers."""
    spec = job["spec"]
    count = replica_counts(spec["pytorchReplicaSpecs"])[WORKER]
    policy = spec.get("elasticPolicy")
    return (count, count) if policy is None else bounds(policy, count)


def _counts(job: Object) -> dict[str, int]:
    """Return by role how many pods there may be: of workers, the most; of parameter servers, as
    many as there should be now."""
    counts = replica_counts(job["spec"]["pytorchReplicaSpecs"])
    if WORKER in counts:
        counts[WORKER] = _range(job)[1]
    servers = server_count.in_force(job.get("status") or {}, counts.get(SERVING, 0))
    if servers is not None and SERVING in counts:
        counts[SERVING] = servers.replicas
    return counts
