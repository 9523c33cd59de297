"""From a snapshot to effects: opens a session, runs the actions, closes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volcano_elastic.local.scheduler.actions import ACTIONS
from volcano_elastic.local.scheduler.configuration import Configuration
from volcano_elastic.local.scheduler.effect import (
    CreateQueue,
    Effect,
    SetPodGroupStatus,
    SetPodUnschedulable,
    SetQueueStatus,
)
from volcano_elastic.local.scheduler.plugins import PLUGINS
from volcano_elastic.local.scheduler.resources import plus
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import (
    HOLDING,
    READY,
    Job,
    PodGroupStatus,
    Snapshot,
    TaskStatus,
)


def cycle(snapshot: Snapshot, configuration: Configuration, now: datetime) -> list[Effect]:
    """Evictions first, then bindings, then what is only said.

    Carrying them out and reading back yields a snapshot for which there is nothing to do, unless
    time passes or pods come and go.
    """
    session = Session(snapshot, configuration, PLUGINS, now)
    for name in configuration.actions:
        session.action = name
        ACTIONS[name](session)
    moves = sorted(session.effects, key=lambda e: type(e).__name__, reverse=True)
    return [*moves, *_queues(session), *_podgroups(session), *_pods(session)]


def _queues(session: Session) -> list[Effect]:
    effects: list[Effect] = []
    if "root" not in session.queues:
        effects.append(CreateQueue("root", {"weight": 1, "reclaimable": False}))
    if "default" not in session.queues:
        effects.append(CreateQueue("default", {"weight": 1, "reclaimable": True, "parent": "root"}))
    held: dict[str, dict[str, int]] = {name: {} for name in session.queues}
    for job in session.jobs.values():
        for task in session.tasks(job, HOLDING):
            for name in session.ancestry(job.queue):
                held[name] = plus(held.get(name, {}), task.requests)
    for queue in session.queues.values():
        # Names that were there stay, at zero: a merge patch would not take them away.
        names = {**dict.fromkeys(queue.allocated or {}, 0), "cpu": 0, "memory": 0}
        allocated = names | held[queue.name]
        # There is no queue controller here, and in a queue that is not Open nothing is placed.
        state = queue.state if queue.state not in ("", "Unknown") else "Open"
        if state != queue.state or allocated != queue.allocated:
            effects.append(SetQueueStatus(queue.name, state, allocated))
    return effects


def _podgroups(session: Session) -> list[Effect]:
    effects: list[Effect] = []
    for job in session.jobs.values():
        if job.podgroup is not None:
            status = _podgroup_status(session, job, job.podgroup)
            if not _same(status, job.podgroup):
                effects.append(SetPodGroupStatus(job.key, status))
    return effects


def _podgroup_status(session: Session, job: Job, before: PodGroupStatus) -> PodGroupStatus:
    running = len(session.tasks(job, (TaskStatus.RUNNING,)))
    succeeded = len(session.tasks(job, (TaskStatus.SUCCEEDED,)))
    ready = session.tasks(job, READY)
    invalid = session.job_valid(job)
    unready = invalid is not None or not session.job_ready(job)
    if running and unready:
        phase = "Unknown"
    elif ready and len(ready) >= job.min_member:
        phase = "Completed" if succeeded == len(ready) else "Running"
    else:
        phase = "Inqueue" if session.phase[job.key] == "Inqueue" else "Pending"
    if unready:
        reason, message = invalid or ("NotEnoughResources", _why(session, job))
        condition = {"type": "Unschedulable", "reason": reason, "message": message}
    else:
        reason = "tasks in gang are ready to be scheduled"
        condition = {"type": "Scheduled", "reason": reason, "message": ""}
    return PodGroupStatus(
        phase,
        running,
        succeeded,
        len(session.tasks(job, (TaskStatus.FAILED,))),
        (_since(condition | {"status": "True"}, before, session.now),),
    )


def _why(session: Session, job: Job) -> str:
    ready, waiting = session.ready_members(job), session.waiting_members(job)
    counts = f"{ready} ready, {waiting} waiting for room, minMember is {job.min_member}"
    blocked = session.reasons.get(job.key) or next(
        (session.reasons[task.uid] for task in job.tasks if task.uid in session.reasons), ""
    )
    return f"{counts}: {blocked}" if blocked else counts


def _since(condition: dict[str, Any], before: PodGroupStatus, now: datetime) -> Mapping[str, Any]:
    old = next((c for c in before.conditions if c.get("type") == condition["type"]), {})
    stamp = old.get("lastTransitionTime") or now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return condition | {"lastTransitionTime": stamp}


def _same(left: PodGroupStatus, right: PodGroupStatus) -> bool:
    def value(status: PodGroupStatus) -> tuple[object, ...]:
        said = [
            tuple(condition.get(key, "") for key in ("type", "status", "reason", "message"))
            for condition in status.conditions
        ]
        return status.phase, status.running, status.succeeded, status.failed, said

    return value(left) == value(right)


def _pods(session: Session) -> list[Effect]:
    effects: list[Effect] = []
    for job in session.jobs.values():
        for task in session.tasks(job, (TaskStatus.PENDING, TaskStatus.PIPELINED)):
            if session.status(task) is TaskStatus.PIPELINED:
                message = f"waits for pods that are leaving node {session.node_of(task)}"
            else:
                invalid = session.job_valid(job)
                message = session.reasons.get(task.uid, "") or (
                    invalid[1] if invalid else f"its gang can't start: {_why(session, job)}"
                )
            told = any(
                c.get("type") == "PodScheduled" and c.get("message") == message
                for c in task.conditions
            )
            if not told:
                effects.append(SetPodUnschedulable(task, message))
    return effects
