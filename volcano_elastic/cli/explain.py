"""`volcano-elastic explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from volcano_elastic.api import quantity
from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.api.role import elastic
from volcano_elastic.cli.observation import (
    FOUND,
    Trouble,
    complete_jobs,
    json_option,
    kubeconfig_option,
    observation,
    plugin_option,
    print_json,
    snapshot_option,
)
from volcano_elastic.cli.plan import decision_json
from volcano_elastic.cli.top import last_change
from volcano_elastic.cli.workers_at_work import Workers, workers
from volcano_elastic.cluster_state.job_state import cap, cooldown_left
from volcano_elastic.cluster_state.queue_figures import QueueFigures
from volcano_elastic.cluster_state.reason import WORDS, NoChange, Reason
from volcano_elastic.cluster_state.words import names, plural
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Pod, Queue, Snapshot

_ROOM = (Reason.NO_ROOM, Reason.QUEUE_FULL, Reason.HEADROOM_KEPT, Reason.GUARANTEED_TO_OTHERS)
"""Reasons for which a nodeUnit may be what is too large."""


@dataclass(frozen=True, slots=True)
class Explanation:
    job: Job
    workers: Workers
    """Those that have been started."""
    waiting: int
    """Workers of its size without a node."""
    decision: Decision | None
    stay: NoChange | None
    blocked: str | None
    gives_way: tuple[Decision, ...]
    """Jobs that shrink so that it can start."""
    next: tuple[Decision, ...]
    """Jobs that would shrink if a job of one such pod arrived in its queue."""
    next_fits: bool
    """Such a newcomer could start at all."""
    policy: QueuePolicy
    cooldown: timedelta
    """The rest of it."""
    last_change: str
    queue_problem: str
    """The fault of its queue's parents; empty if none."""
    unit_room: str
    """That what is free is less than its nodeUnit; empty otherwise."""
    most: str
    """The reason that keeps it below its max, with the number; empty if none."""


@click.command()
@click.argument("job", metavar="[NAMESPACE/]JOB", shell_complete=complete_jobs)
@kubeconfig_option
@plugin_option
@snapshot_option
@json_option
def explain(
    job: str, kubeconfig: str | None, plugin: str | None, file: Path | None, as_json: bool
) -> None:
    """Why a job is as large as it is: why not more, why not less, what it waits for, who gives way.

    Exits 0; 1 if the job cannot start even if all surplus left; 2 if there is no such job.

    \b
    JSON: job, queue, min, max, size, running, halted {why: workers that are started and don't run},
    waiting; decision (as in plan) or null;
    policy (null: defaults), mode, cooldownSeconds; whyNotMore, whyNotLess
    {reason, words} or null; blocked: a sentence or null;
    queueProblem: a sentence about the Queue's parents, or null;
    givesWay: the decisions that let it start; ifOneMoreCame {fits, givesWay}: the
    decisions if a job of one such pod arrived in its queue.

    \b
    Examples:
      volcano-elastic explain train/bert
      volcano-elastic explain bert --snapshot yesterday.json
    """
    observed = observation(kubeconfig, plugin, file)
    found = explanation(find(job, observed.snapshot), observed.snapshot, observed.time)
    if as_json:
        print_json(_json(found))
    else:
        click.echo("\n".join(lines(found)))
    sys.exit(FOUND if found.blocked else 0)


def find(name: str, snapshot: Snapshot) -> Job:
    """The job of that key, or the only one of that name.

    Raises:
        Trouble: none, or several; names what there is.
    """
    found = [job for job in snapshot.jobs if name in (job.key, job.key.rpartition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise Trouble(f"which {name}? There are {names((job.key for job in found), full=True)}")
    known = names(sorted(job.key for job in snapshot.jobs), full=True) or "none"
    raise Trouble(
        f"no job {name} wants pods from Volcano now: finished and suspended ones don't, nor those "
        f"of other schedulers or controllers. Jobs that do: {known}"
    )


def explanation(job: Job, snapshot: Snapshot, now: datetime) -> Explanation:
    made = plan(snapshot, now)
    mine = [pod for pod in snapshot.pods if _works_for(job, pod)]
    probe = newcomer(job, now)
    policy = effective(snapshot.policies).get(job.queue) or QueuePolicy(job.queue)
    figures = made.queues.get(job.queue)
    return Explanation(
        job=job,
        workers=workers(snapshot).get(job.key, Workers()),
        waiting=max(0, job.desired - job.succeeded - sum(pod.node is not None for pod in mine)),
        decision=next((d for d in made.decisions if d.job == job.key), None),
        stay=made.unchanged.get(job.key),
        blocked=made.blocked.get(job.key),
        gives_way=victims_for(snapshot, now, job),
        next=victims_for(snapshot, now, probe),
        policy=policy,
        cooldown=cooldown_left(job, policy, now, made.resting.get(job.key)),
        last_change=last_change(job, now),
        next_fits=probe.key
        not in plan(replace(snapshot, jobs=(*snapshot.jobs, probe)), now).blocked,
        queue_problem="" if figures is None else figures.problem,
        unit_room="" if figures is None else _unit_room(job, figures),
        most=_most(job, policy, made.unchanged.get(job.key), snapshot.queues),
    )


def _most(job: Job, policy: QueuePolicy, stay: NoChange | None, queues: Sequence[Queue]) -> str:
    most = cap(job, policy)
    match stay and stay.why_not_more:
        case Reason.QUEUE_FULL:
            return _queue_limits(job, policy, queues)
        case Reason.AT_MAX_PER_JOB:
            by = f"policy {policy.name} has surplus.maxPerJob {policy.surplus.max_per_job}"
        case Reason.AT_REPLICAS:
            by = f"{job.replicas} are asked for"
        case Reason.AT_MAX if most < job.max:
            by = f"its nodeUnit is {job.node_unit}"
        case _:
            return ""
    return f": {most}, since {by}"


def _queue_limits(job: Job, policy: QueuePolicy, queues: Sequence[Queue]) -> str:
    """Say what the job's queue is held to by itself; its parents may hold it to less."""
    own = next((one for one in queues if one.name == job.queue), None)
    told = []
    if own is not None and own.capability and policy.resource in own.capability:
        most = quantity.text(own.capability[policy.resource])
        told.append(f"Queue {own.name} has capability {most}")
    if policy.borrowing_limit is not None:
        beyond = quantity.text(policy.borrowing_limit)
        told.append(f"policy {policy.name} has borrowing.limit {beyond}")
    return f": {' and '.join(told)}" if told else ""


def _unit_room(job: Job, figures: QueueFigures) -> str:
    needed = job.pod_requests.get(figures.resource, 0) * job.node_unit
    if job.node_unit == 1 or not 0 < figures.free < needed:
        return ""
    return (
        f"; it grows by whole nodeUnits of {plural(job.node_unit, 'worker')}, which need "
        f"{quantity.text(needed)} {figures.resource}, and {quantity.text(figures.free)} is free"
    )


def lines(found: Explanation) -> list[str]:
    """For people."""
    job = found.job
    size = plural(job.desired, "worker")
    bounds = f"min {job.min}, max {job.max}" if job.elastic else "not elastic"
    running = f"{found.workers.running} running"
    said = [f"{job.key}: {size} ({bounds}) in queue {job.queue}, {running}"]
    if found.workers.halted:
        said.append(f"  not running:  {found.workers.words}")
    said.append(f"  policy:       {found.policy.name or 'defaults'}, mode {found.policy.mode}")
    if found.queue_problem:
        said.append(f"  queue:        {found.queue_problem}")
    if found.last_change:
        left = round(found.cooldown.total_seconds())
        rest = f", cooling down for {left} s more" if left else ""
        said.append(f"  last change:  {found.last_change}{rest}")
    if found.decision is not None:
        decision = found.decision
        dry = " (dry run: not carried out)" if decision.dry_run else ""
        said.append(f"  decided:      {decision.old} → {decision.new}: {decision.message}{dry}")
        if decision.remove:
            said.append(f"  leaving:      {names(decision.remove, most=10)}")
    if found.blocked:
        said.append(f"  waits for:    {found.blocked}")
    elif found.waiting:
        said.append(f"  waits for:    a node for {plural(found.waiting, 'worker')}")
    if found.gives_way:
        said.append(f"  gives way:    {_who(found.gives_way)}")
    if found.stay is not None:
        more = found.stay.why_not_more
        rest = found.most + (found.unit_room if more in _ROOM else "")
        said.append(f"  why not more: {WORDS[more]}{rest}")
        said.append(f"  why not less: {WORDS[found.stay.why_not_less]}")
    if found.next:
        after = f"{_who(found.next)} would give way"
    elif found.next_fits:
        after = "idle room would do"
    else:
        after = "it could not start, and nobody would give way"
    said.append(f"  if a newcomer needed one more such pod in the queue: {after}")
    return said


def _who(decisions: tuple[Decision, ...]) -> str:
    return "; ".join(f"{d.job} ({d.old} → {d.new}, {names(d.remove, most=10)})" for d in decisions)


def _works_for(job: Job, pod: Pod) -> bool:
    return pod.job == job.key and pod.role == elastic().name and not pod.terminating


def _json(found: Explanation) -> dict[str, Any]:
    job, stay, decision = found.job, found.stay, found.decision
    return {
        "job": job.key,
        "queue": job.queue,
        "min": job.min,
        "max": job.max,
        "size": job.desired,
        "running": found.workers.running,
        "halted": dict(found.workers.halted),
        "waiting": found.waiting,
        "policy": found.policy.name or None,
        "mode": str(found.policy.mode),
        "cooldownSeconds": found.cooldown.total_seconds(),
        "decision": None if decision is None else decision_json(decision),
        "whyNotMore": None if stay is None else _reason(stay.why_not_more),
        "whyNotLess": None if stay is None else _reason(stay.why_not_less),
        "blocked": found.blocked,
        "queueProblem": found.queue_problem or None,
        "givesWay": [decision_json(one) for one in found.gives_way],
        "ifOneMoreCame": {
            "fits": found.next_fits,
            "givesWay": [decision_json(one) for one in found.next],
        },
    }


def _reason(reason: Reason) -> dict[str, str]:
    return {"reason": str(reason), "words": WORDS[reason]}


def victims_for(snapshot: Snapshot, now: datetime, claim: Job) -> tuple[Decision, ...]:
    """Return the jobs that shrink for `claim`, and would not without it; it need not exist yet."""
    others = tuple(job for job in snapshot.jobs if job.key != claim.key)
    pods = tuple(pod for pod in snapshot.pods if pod.job != claim.key)
    without = {
        decision.job: decision.new
        for decision in plan(replace(snapshot, jobs=others, pods=pods), now).decisions
    }
    here = len(others) < len(snapshot.jobs)
    found = plan(snapshot if here else replace(snapshot, jobs=(*others, claim)), now)
    return tuple(
        decision
        for decision in found.decisions
        if decision.remove
        and decision.job != claim.key
        and decision.new < without.get(decision.job, decision.old)
    )


def newcomer(job: Job, now: datetime) -> Job:
    """A job of one pod like `job`'s that arrives in its queue now."""
    return Job(
        key=f"{job.key}-newcomer",
        queue=job.queue,
        created=now,
        min=1,
        max=1,
        desired=1,
        pod_requests=job.pod_requests,
        node_selector=job.node_selector,
        tolerations=job.tolerations,
        node_affinity=job.node_affinity,
        priority=job.priority,
    )
