"""Snapshots that are not the cluster's: with jobs, queues, policies and nodes added or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.snapshot.snapshot import Job, Node, Queue, Snapshot

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Changes:
    """Values to add to a snapshot, each in place of the one that bears its name."""

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
        jobs=_added((job for job in base.jobs if job.key not in gone), changes.jobs, _key, _resume),
        pods=tuple(pod for pod in base.pods if pod.job is None or pod.job not in gone),
        queues=_added(base.queues, changes.queues, _name),
        policies=_added(
            base.policies,
            changes.policies,
            _name,
            lambda old, new: replace(new, created=old.created),
        ),
        nodes=_added(base.nodes, changes.nodes, _name),
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


def _added(
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
