"""What to do for one job, given what is there. Pure: the same picture gives the same actions.

deleted, or managed by others ─► nothing; the garbage collector takes what it owns
finished                      ─► clean up
suspended                     ─► take everything away
otherwise: size ─► outcome ─► status, PodGroup, protection, pods that go, pods that come
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import condition, moment
from volcano_elastic.api.pytorchjob import MASTER, PyTorchJob
from volcano_elastic.api.pytorchjob_validation import Problem
from volcano_elastic.podgroup import podgroup, protection
from volcano_elastic.podgroup.pod_annotation import PREEMPTABLE, preemptable
from volcano_elastic.pytorchjob import cleanup, outcome, placement, pod, service, size, status
from volcano_elastic.pytorchjob.action import (
    Action,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeletePod,
    DeleteService,
    EmitEvent,
    PatchPod,
    PatchPodGroup,
    Requeue,
)
from volcano_elastic.pytorchjob.label import owner_reference, replica_name
from volcano_elastic.pytorchjob.observed import Observed, Replica, State, replicas

# A planner that does not answer keeps nobody waiting for longer.
ADMISSION_LIMIT = timedelta(seconds=2)


def reconcile(job: PyTorchJob, observed: Observed, now: datetime) -> list[Action]:
    if job.deleting or not job.ours:
        return []
    view = replicas(job, observed.pods)
    if job.finished:
        counted = status.counted(dict(job.status), job, view)
        completed = job.time("completionTime") or now
        return [
            *status.change(job.status, counted, now),
            *cleanup.clean_up(job, view, observed, completed, now),
        ]
    if job.run_policy.suspend:
        return _suspend(job, view, observed, now)
    wanted = size.size(job, view, observed.resize, now)
    result = outcome.outcome(job, view, wanted, status.restarts(job, view), now)
    new = status.sized(status.counted(status.begun(job, now), job, view), job, view, wanted, now)
    if result is not None:
        new = status.ended(status.progressed(new, job, view, now), result, now)
        return [
            *status.change(job.status, new, now),
            *cleanup.clean_up(job, view, observed, now, now),
        ]
    actions = status.change(job.status, status.progressed(new, job, view, now), now)
    if wanted is not None and wanted.changed:
        actions.append(EmitEvent(wanted.reason, wanted.message))
    plan = placement.place(job, view, wanted, now)
    if not observed.pods and not _admitted(job, observed, now):
        plan.create.clear()
        actions.append(Requeue(job.created + ADMISSION_LIMIT - now))
    actions += _gang(job, observed, len(plan.keep))
    change = _protect(job, plan)
    actions += _replicas(job, plan, change, observed, view)
    if plan.retry_at is not None:
        actions.append(Requeue(plan.retry_at - now))
    deadline, start = job.run_policy.active_deadline, moment.parse(new["startTime"])
    if deadline is not None:
        actions.append(Requeue(start + deadline - now))
    return actions


def refuse(obj: Mapping[str, Any], problems: Sequence[Problem], now: datetime) -> list[Action]:
    """For a job that cannot be carried out: it fails, saying what would be right. One that
    was accepted before goes on as it is until it is right again; its edit is refused."""
    old = obj.get("status") or {}
    conditions = list(old.get("conditions") or ())
    if condition.finished(conditions) or obj["metadata"].get("deletionTimestamp"):
        return []
    message = "; ".join(str(problem) for problem in problems)
    if condition.is_true(conditions, "Created"):
        new = dict(old) | {"elastic": (old.get("elastic") or {}) | {"message": message}}
        actions = status.change(old, new, now)
        return [*actions, EmitEvent("PyTorchJobInvalid", message, True)] if actions else []
    new = dict(old) | {
        "conditions": condition.with_condition(
            conditions, "Failed", "PyTorchJobInvalid", message, now
        ),
        "completionTime": moment.timestamp(now),
    }
    return status.change(old, new, now)


def _admitted(job: PyTorchJob, observed: Observed, now: datetime) -> bool:
    return observed.admitted or not job.uses_volcano or now >= job.created + ADMISSION_LIMIT


def _gang(job: PyTorchJob, observed: Observed, live: int) -> list[Action]:
    if not job.uses_volcano:
        return []
    if observed.podgroup is None:
        return [CreatePodGroup(podgroup.build(job, owner_reference(job)))]
    patch = podgroup.patch(job, observed.podgroup, live)
    return [PatchPodGroup(job.name, patch)] if patch else []


def _protect(job: PyTorchJob, plan: placement.Placement) -> protection.Change:
    if job.elastic is None or not job.uses_volcano:
        return protection.Change()
    members = [protection.Member(r.name, _rank(job, r), r.protected, r.running) for r in plan.keep]
    return protection.rebalance(members, job.min_members, demote=plan.calm)


def _rank(job: PyTorchJob, replica: Replica) -> int:
    if replica.kind == MASTER:
        return 0
    # With a Master, worker 0 is no more vital than the others.
    return replica.index + (1 if job.master is not None else 0)


def _replicas(
    job: PyTorchJob,
    plan: placement.Placement,
    change: protection.Change,
    observed: Observed,
    view: Sequence[Replica],
) -> list[Action]:
    actions: list[Action] = [
        *(_annotate(name, protected=True) for name in change.promote),
        *(_annotate(name, protected=False) for name in change.demote),
    ]
    actions += [DeletePod(r.name, r.uid) for r in plan.leave]
    # Its processes are gone; without grace its index is free at once.
    actions += [DeletePod(r.name, r.uid, timedelta(0)) for r in plan.clear]
    protected_now = sum(r.protected or r.name in change.promote for r in plan.keep)
    created: list[str] = []
    for new in sorted(plan.create, key=lambda n: (n.kind != MASTER, n.index)):
        vital = new.kind == MASTER or (job.master is None and new.index == 0)
        protected = vital or protected_now < job.min_members
        protected_now += protected
        body = pod.build(job, new.kind, new.index, protected=protected, restarts=new.restarts)
        actions.append(CreatePod(body))
        created.append(body["metadata"]["name"])
    actions += _services(job, plan, observed, view)
    if created:
        actions.append(EmitEvent("SuccessfulCreatePod", f"Created pods: {', '.join(created)}"))
    if plan.leave:
        left = ", ".join(r.name for r in plan.leave)
        actions.append(EmitEvent("SuccessfulDeletePod", f"Deleted pods: {left}"))
    return actions


def _annotate(name: str, *, protected: bool) -> PatchPod:
    value = preemptable(protected=protected)
    return PatchPod(name, {"metadata": {"annotations": {PREEMPTABLE: value}}})


def _services(
    job: PyTorchJob, plan: placement.Placement, observed: Observed, view: Sequence[Replica]
) -> list[Action]:
    dismissed = {r.name for r in [*plan.leave, *plan.clear]}
    needed = {
        r.name: (r.kind, r.index)
        for r in view
        # A leaving pod is still spoken to until it has gone.
        if r.name not in dismissed and r.state in (State.LIVE, State.RETRY, State.SUCCEEDED)
    }
    needed |= {replica_name(job.name, n.kind, n.index): (n.kind, n.index) for n in plan.create}
    present = {s["metadata"]["name"] for s in observed.services}
    held = {r.name for r in view}
    actions: list[Action] = [
        CreateService(service.build(job, *replica))
        for name, replica in needed.items()
        if name not in present
    ]
    actions += [
        DeleteService(s["metadata"]["name"], s["metadata"]["uid"])
        for s in observed.services
        if s["metadata"]["name"] not in needed
        and s["metadata"]["name"] not in held
        and not s["metadata"].get("deletionTimestamp")
    ]
    return actions


def _suspend(
    job: PyTorchJob, view: Sequence[Replica], observed: Observed, now: datetime
) -> list[Action]:
    # Only what was never begun begins here: a suspended job must not resume for a moment.
    new = dict(job.status) if job.conditions else status.begun(job, now)
    new["conditions"] = condition.with_condition(
        new["conditions"],
        "Suspended",
        "PyTorchJobSuspended",
        f"PyTorchJob {job.name} is suspended.",
        now,
    )
    if job.elastic is not None:
        # It comes back at its minimum, and grows from there.
        new["elastic"] = dict(new.get("elastic") or {}) | {"desired": job.elastic.min, "ready": 0}
    new = status.counted(new, job, [r for r in view if not r.live])
    return [*status.change(job.status, new, now), *cleanup.take_away(view, observed)]
