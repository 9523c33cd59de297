"""Pictures that are not the cluster's: with jobs, queues, policies and nodes added or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.queue_policy.snapshot import Job, Node, Queue, Snapshot

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Changes:
    """What is added, or takes the place of what bears its name."""

    jobs: tuple[Job, ...] = ()
    """Fresh from their manifests, as if just created."""
    ended: frozenset[str] = frozenset()
    """Keys of jobs that go, with their pods: suspended, finished or given away."""
    queues: tuple[Queue, ...] = ()
    policies: tuple[QueuePolicy, ...] = ()
    nodes: tuple[Node, ...] = ()


def changed(base: Snapshot, changes: Changes) -> Snapshot:
    """A job that is there already keeps its size and its past; a policy keeps its age."""
    gone = changes.ended
    return replace(
        base,
        jobs=_put((job for job in base.jobs if job.key not in gone), changes.jobs, _key, _resume),
        pods=tuple(pod for pod in base.pods if pod.job is None or pod.job not in gone),
        queues=_put(base.queues, changes.queues, _name),
        policies=_put(
            base.policies,
            changes.policies,
            _name,
            lambda old, new: replace(new, created=old.created),
        ),
        nodes=_put(base.nodes, changes.nodes, _name),
    )


def _key(job: Job) -> str:
    return job.key


def _name(named: Node | Queue | QueuePolicy) -> str:
    return named.name


def _resume(old: Job, new: Job) -> Job:
    return replace(
        new,
        created=old.created,
        desired=old.desired if new.elastic else new.min,
        last_scale=old.last_scale,
        last_reason=old.last_reason,
        succeeded=min(old.succeeded, new.max),
        speeds=old.speeds,
        gpu_hours=old.gpu_hours,
        pause=old.pause,
        # Its PodGroup's networkTopology is not in its manifest.
        unmodelled=new.unmodelled or old.unmodelled,
    )


def _put(
    base: Iterable[_T],
    added: Iterable[_T],
    name: Callable[[_T], str],
    merge: Callable[[_T, _T], _T] = lambda old, new: new,
) -> tuple[_T, ...]:
    held = {name(item): item for item in base}
    for item in added:
        old = held.get(name(item))
        held[name(item)] = item if old is None else merge(old, item)
    return tuple(held.values())


def give_way(snapshot: Snapshot, now: datetime, claim: Job) -> tuple[Decision, ...]:
    """Who shrinks for `claim`'s sake, and would not without it; whether it is there already or
    not."""
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
