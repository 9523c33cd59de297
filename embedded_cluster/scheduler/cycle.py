"""From a snapshot to effects: opens a session, runs the actions, closes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime

from embedded_cluster.scheduler.actions import ACTIONS
from embedded_cluster.scheduler.effect import (
    Create,
    Effect,
    Evict,
    SetStatus,
    condition,
    set_pod_conditions,
)
from embedded_cluster.scheduler.plugins import PLUGINS
from embedded_cluster.scheduler.resources import add
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import (
    HOLDING,
    Job,
    PodGroupStatus,
    Snapshot,
    Task,
    TaskStatus,
)
from volcano_elastic.api import quantity
from volcano_elastic.kube.resource import PODGROUPS, QUEUES
from volcano_elastic.scheduler_conf.configuration import Configuration

_FINISHED = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)
# What was placed in this very session is not there yet.
_SCHEDULED = (TaskStatus.BOUND, TaskStatus.RUNNING, *_FINISHED)


def session_of(
    snapshot: Snapshot,
    configuration: Configuration,
    now: datetime,
) -> Session:
    """Return a session in which all actions have run."""
    session = Session(snapshot, configuration, PLUGINS, now)
    for action in configuration.actions:
        session.action = action.name
        ACTIONS[action.name](session)
    return session


def effects_of(session: Session) -> list[Effect]:
    """Evictions first, then bindings, then what is only said.

    Carrying them out and reading back yields a snapshot for which there is nothing to do, unless
    time passes or pods come and go.
    """
    moves = sorted(session.effects, key=lambda effect: not isinstance(effect, Evict))
    return [*moves, *_queues(session), *_podgroups(session), *_pods(session)]


def _queues(session: Session) -> Iterable[Effect]:
    if "root" not in session.queues:
        yield _queue("root", weight=1, reclaimable=False)
    if "default" not in session.queues:
        yield _queue("default", weight=1, reclaimable=True, parent="root")
    held: dict[str, dict[str, float]] = {name: {} for name in session.queues}
    for job in session.jobs.values():
        for task in session.tasks(job, *HOLDING):
            for name in session.ancestry(job.queue):
                add(held.setdefault(name, {}), task.requests)
    for queue in session.queues.values():
        # Names that were there stay, at zero: a merge patch would not take them away.
        amounts = dict.fromkeys((*queue.allocated, "cpu", "memory"), 0.0) | held[queue.name]
        allocated = {name: quantity.text(int(amount)) for name, amount in sorted(amounts.items())}
        # Where no queue controller runs; in a queue that is not Open nothing is placed.
        state = queue.state if queue.state not in ("", "Unknown") else "Open"
        if state != queue.state or allocated != queue.allocated:
            yield SetStatus(QUEUES, queue.name, {"state": state, "allocated": allocated})


def _queue(name: str, **spec: object) -> Create:
    kind = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind}
    return Create(QUEUES, kind | {"metadata": {"name": name}, "spec": spec})


def _podgroups(session: Session) -> Iterable[Effect]:
    for job in session.jobs.values():
        if job.podgroup is not None:
            status = _podgroup_status(session, job, job.podgroup)
            if status != job.podgroup:
                yield SetStatus(PODGROUPS, job.key, asdict(status))


def _podgroup_status(session: Session, job: Job, before: PodGroupStatus) -> PodGroupStatus:
    running = session.count(job, TaskStatus.RUNNING)
    scheduled = session.count(job, *_SCHEDULED)
    conditions: dict[str, Mapping[str, object]] = {c["type"]: c for c in before.conditions}
    unschedulable = session.has("gang") and bool(job.tasks) and not session.is_ready(job)
    if unschedulable:
        _tell(session, conditions, "Unschedulable", "NotEnoughResources", why_unready(session, job))
    elif session.has("gang") and job.tasks:
        _tell(session, conditions, "Scheduled", "tasks in gang are ready to be scheduled", "")
    if running and unschedulable:
        phase = "Unknown"
    elif scheduled >= job.min_member:
        phase = "Completed" if scheduled == session.count(job, *_FINISHED) else "Running"
    else:
        phase = "Inqueue" if session.phase[job.key] == "Inqueue" else "Pending"
    return PodGroupStatus(
        phase,
        running,
        session.count(job, TaskStatus.SUCCEEDED),
        session.count(job, TaskStatus.FAILED),
        tuple(conditions.values()),
    )


def _tell(
    session: Session,
    conditions: dict[str, Mapping[str, object]],
    kind: str,
    reason: str,
    message: str,
) -> None:
    """Set a condition as Volcano does: one of the other type stays as it was last."""
    said = condition(kind, "True", reason, message, session.now)
    before = conditions.get(kind, {})
    if any(before.get(key, "") != said[key] for key in ("status", "reason", "message")):
        conditions[kind] = said


def why_unready(session: Session, job: Job) -> str:
    """In Volcano's words, and what it only logs."""
    missing = max(0, job.min_member - session.ready_members(job))
    counts = Counter(session.status(task).value for task in job.tasks)
    told = sorted(f"{count} {status}" for status, count in counts.items())
    told.append(f"{job.min_member} minAvailable")
    why = f"{missing}/{len(job.tasks)} tasks in gang unschedulable: pod group is not ready, "
    return f"{why}{', '.join(told)}. Origin reason is: {_origin(session, job)}"


def _origin(session: Session, job: Job) -> str:
    if unschedulable_reason := session.unschedulable_reason(job):
        return unschedulable_reason
    if session.phase.get(job.key) == "Pending":
        return session.reasons.get(job.key, "it has not been let in to its queue yet")
    told = ((task.name, session.reasons.get(task.uid)) for task in job.tasks)
    found = next((f"{name}: {reason}" for name, reason in told if reason), None)
    queue = session.queues.get(job.queue or "")
    if found is None and queue is not None and session.overused(queue):
        return f"queue {queue.name} has all that it deserves"
    return found or "it waits for pods that are leaving"


def _pods(session: Session) -> Iterable[Effect]:
    for job in session.jobs.values():
        waiting = session.tasks(job, TaskStatus.PENDING, TaskStatus.PIPELINED)
        if session.count(job, TaskStatus.ALLOCATED) and not session.job_ready(job):
            waiting += session.tasks(job, TaskStatus.ALLOCATED)
        for task in waiting:
            reason, message = _why_unscheduled(session, job, task)
            node = session.nominated.get(task.uid)
            told = any(
                one.get("type") == "PodScheduled"
                and (one.get("reason"), one.get("message")) == (reason, message)
                for one in task.conditions
            )
            if not told or (node and node != task.nominated_node):
                unscheduled = condition("PodScheduled", "False", reason, message, session.now)
                # Where others were evicted for it, the node is the pod's by name too.
                nominated = {"nominatedNodeName": node} if node else {}
                yield set_pod_conditions(task, unscheduled, **nominated)


def _why_unscheduled(session: Session, job: Job, task: Task) -> tuple[str, str]:
    """In Volcano's words, as far as it has any."""
    could = f"Pod {task.key} can possibly be assigned to {session.node_of(task)}, once"
    if session.status(task) is TaskStatus.ALLOCATED:
        return "Schedulable", f"{could} minAvailable is satisfied"
    if session.status(task) is TaskStatus.PIPELINED:
        return "Unschedulable", f"{could} resource is released and minAvailable is satisfied"
    return "Unschedulable", session.reasons.get(task.uid) or why_unready(session, job)
