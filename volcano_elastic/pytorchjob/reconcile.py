"""What to do for one job, given what is there. Pure: the same picture gives the same actions.

deleted, or managed by others ─► nothing; the garbage collector takes what it owns
another operator at work      ─► nothing, and it is said
finished                      ─► clean up
suspended                     ─► take everything away
edited while pods run         ─► what they were told stays in force, and it is said
otherwise: size ─► outcome ─► status, PodGroup, protection, pods that go, pods that come
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import condition, moment
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.problem import Problem, listed
from volcano_elastic.api.pytorchjob import (
    CONTROLLER,
    PyTorchJob,
    outline,
    time_to_live,
)
from volcano_elastic.api.pytorchjob_validation import manager
from volcano_elastic.api.role import Role
from volcano_elastic.podgroup import podgroup, protection
from volcano_elastic.podgroup.pod_annotation import PREEMPTABLE, preemptable
from volcano_elastic.pytorchjob import (
    autoscaler,
    cleanup,
    coordinator,
    event,
    neighbour,
    outcome,
    placement,
    rendezvous,
    size,
    status,
)
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
from volcano_elastic.pytorchjob.label import (
    coordinator_name,
    is_first,
    owner_reference,
    replica_name,
)
from volcano_elastic.pytorchjob.observed import Observed, Replica, State, replicas
from volcano_elastic.pytorchjob.pod import RESTARTS, PodTemplate, requests
from volcano_elastic.pytorchjob.service import ServiceTemplate
from volcano_elastic.pytorchjob.settings import DEFAULTS, Settings
from volcano_elastic.pytorchjob.size import Size

# With none at all the API server forgets a pod whose processes still run.
_SHORTEST_GRACE = timedelta(seconds=1)
_UNTIL_RESUMED = (
    ". Running pods keep what they were made with, and the others must meet them; to change it, "
    "suspend the job and resume it"
)


def reconcile(
    job: PyTorchJob, observed: Observed, now: datetime, settings: Settings = DEFAULTS
) -> list[Action]:
    if job.deleting or not job.ours:
        return []
    if (standing := neighbour.stand_off(job, observed.pods, now)) is not None:
        return _stand_off(job, standing, now)
    view = replicas(job, observed.pods)
    if job.finished:
        counted = status.counted(dict(job.status), job, view)
        completed = job.completed or now
        return [
            *status.change(job.status, counted, now),
            *cleanup.clean_up(job, view, observed, completed, now),
        ]
    begin = [] if condition.is_true(job.conditions, "Created") else event.at_begin(job)
    if job.run_policy.suspend:
        return [*begin, *_suspend(job, view, observed, now)]
    # Of a type that an edit took out; nothing of theirs decides about the job.
    unasked = [r for r in view if r.role.name not in job.replicas]
    view = [r for r in view if r.role.name in job.replicas]
    known = rendezvous.in_force(job, _first(view, observed))
    if known.torn:
        return _refused(job.status, "; ".join(known.differs), now)
    job = known.job
    wanted = size.size(job, view, observed.resize)
    restarts = status.restarts(job, view)
    result = outcome.outcome(job, view, wanted, restarts, now)
    new = status.sized(status.counted(status.begun(job, now), job, view), job, view, wanted, now)
    new = status.queued(status.progressed(new, job, view, now), job, observed.podgroup)
    if result is not None:
        told = (State.LOST,) if result.succeeded else (State.LOST, State.RETRY)
        return [
            *begin,
            *status.change(job.status, status.ended(new, result, now), now),
            *event.exited(job, [r for r in view if r.state in told]),
            *cleanup.clean_up(job, [*view, *unasked], observed, now, now),
        ]
    burst = any(r.live and not r.ready for r in view)
    actions: list[Action] = [*begin, *status.change(job.status, new, now, burst=burst)]
    if known.differs:
        message = "; ".join(known.differs) + _UNTIL_RESUMED
        actions.append(EmitEvent("RendezvousUnchanged", message, True, standing=True))
    actions += status.scale_ignored(job)
    plan = placement.place(job, view, wanted, now)
    actions += _hand_on(plan, restarts - sum(r.restarts for r in view))
    plan.leave += [r for r in unasked if r.live]
    plan.clear += [r for r in unasked if not r.live and r.state is not State.LEAVING]
    failed = [r for r in plan.clear if r.state is State.RETRY]
    if wanted is not None and wanted.changed:
        actions.append(EmitEvent(wanted.reason, wanted.message))
        if wanted.reason == size.REPLICAS_FAILED:
            failed += size.newly_lost(job, view)
    actions += event.exited(job, failed)
    if not observed.pods and observed.admission_wait:
        plan.create.clear()
        actions.append(Requeue(observed.admission_wait))
    actions += _gang(job, observed, plan.keep)
    actions += autoscaler.keep(job, observed.autoscaler)
    if observed.pods or plan.create:
        actions += coordinator.keep(job, observed, create=bool(plan.create))
    actions += _replicas(job, plan, wanted, observed, [*view, *unasked], settings)
    if plan.retry_at is not None:
        actions.append(Requeue(plan.retry_at - now))
    deadline, start = job.run_policy.active_deadline, moment.parse(new["startTime"])
    if deadline is not None:
        actions.append(Requeue(start + deadline - now))
    return actions


def refuse(
    obj: Mapping[str, Any],
    problems: Sequence[Problem],
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
) -> list[Action]:
    """For a job that cannot be carried out: it fails, saying what would be right. One that
    was accepted before goes on as it is until it is right again; its edit is refused."""
    job = outline(obj)
    if job.deleting or manager(obj) != CONTROLLER:
        return []
    if (standing := neighbour.stand_off(job, pods, now)) is not None:
        return _stand_off(job, standing, now)
    if job.finished:
        return cleanup.expire(time_to_live(obj), job.completed or now, now)
    message = listed(problems)
    if condition.is_true(job.conditions, "Created"):
        return _refused(job.status, message, now)
    # As in Kubeflow: Failed is for good.
    message += "; a failed job stays failed: correct it and create it anew"
    new = dict(job.status) | {
        "conditions": condition.with_condition(
            job.conditions, "Failed", "PyTorchJobInvalid", message, now
        ),
        "completionTime": moment.timestamp(now),
    }
    return status.change(job.status, new, now)


def _refused(old: Mapping[str, Any], why: str, now: datetime) -> list[Action]:
    """Of an edit that can't be carried out."""
    message = status.REFUSED + why
    new = dict(old) | {"elastic": (old.get("elastic") or {}) | {"message": message}}
    actions = status.change(old, new, now)
    return [*actions, EmitEvent("PyTorchJobInvalid", message, True)] if actions else []


def _first(view: Sequence[Replica], observed: Observed) -> Mapping[str, Any] | None:
    """Return the pod that the job's others go by: the elastic role's pod 0 hosts the rendezvous."""
    live = (r for r in view if r.live)
    first = min(live, key=lambda r: (not r.role.elastic, -r.role.priority, r.index), default=None)
    found = (pod for pod in observed.pods if first and pod["metadata"]["name"] == first.name)
    return next(found, None)


def _stand_off(job: PyTorchJob, standing: neighbour.StandOff, now: datetime) -> list[Action]:
    actions: list[Action] = [EmitEvent("ForeignController", standing.message, True, standing=True)]
    if standing.until is not None:
        return [*actions, Requeue(standing.until - now)]
    elastic = job.status.get("elastic") or {}
    new = dict(job.status) | {"elastic": elastic | {"message": standing.message}}
    return [*actions, *status.change(job.status, new, now)]


def _gang(job: PyTorchJob, observed: Observed, keep: Sequence[Replica]) -> list[Action]:
    if not job.uses_volcano:
        return []
    each = _requests(job, observed, keep)
    if observed.podgroup is None:
        return [CreatePodGroup(podgroup.build(job, owner_reference(job), each))]
    actions: list[Action] = []
    patch = podgroup.patch(job, observed.podgroup, len(keep), each)
    if patch is not None:
        actions.append(PatchPodGroup(job.name, patch))
    kept = podgroup.queue_in_force(job, observed.podgroup)
    if kept != job.queue:
        message = (
            f"The job asks for queue {job.queue}, but its PodGroup stays in {kept}: a queue is "
            f"chosen once; to move the job, delete it and create it anew"
        )
        actions.append(EmitEvent("QueueUnchanged", message, True, standing=True))
    return actions


def _requests(
    job: PyTorchJob, observed: Observed, keep: Sequence[Replica]
) -> dict[str, dict[str, int]]:
    """What one pod of each type asks for: as the API server made it, else as it is going to be."""
    one_of = {r.name: r.role.name for r in {r.role: r for r in reversed(keep)}.values()}
    made = {
        one_of[name]: api_pod.requests(pod.get("spec") or {})
        for pod in observed.pods
        if (name := pod["metadata"]["name"]) in one_of
    }
    missing = (spec.role for name, spec in job.replicas.items() if name not in made)
    return made | {role.name: requests(job, role) for role in missing}


def _protected_count(job: PyTorchJob) -> int:
    return max(job.min_members, podgroup.min_member(job))


def _protect(job: PyTorchJob, plan: placement.Placement) -> protection.Change:
    if job.elastic is None or not job.uses_volcano:
        return protection.Change()
    members = [
        protection.Member(
            r.name,
            vital=_vital(job, r.role, r.index),
            rank=rank,
            protected=r.protected,
            running=r.running,
        )
        for rank, r in enumerate(sorted(plan.keep, key=lambda r: (-r.role.priority, r.index)))
    ]
    return protection.rebalance(members, _protected_count(job), demote=plan.calm)


def _vital(job: PyTorchJob, role: Role, index: int) -> bool:
    # Where another role leads, the elastic role's pod 0 is no more vital than the others.
    return role.vital or is_first(job, role, index)


def _replicas(
    job: PyTorchJob,
    plan: placement.Placement,
    wanted: Size | None,
    observed: Observed,
    view: Sequence[Replica],
    settings: Settings,
) -> list[Action]:
    change = _protect(job, plan)
    actions: list[Action] = [
        *(_annotate(name, protected=True) for name in change.promote),
        *(_annotate(name, protected=False) for name in change.demote),
    ]
    actions += [DeletePod(r.name, r.uid, _grace(r, wanted, observed)) for r in plan.leave]
    # Its processes are gone; without grace its index is free at once.
    actions += [DeletePod(r.name, r.uid, timedelta(0)) for r in plan.clear]
    protected_now = sum(r.protected or r.name in change.promote for r in plan.keep)
    templates = {role: PodTemplate(job, role, settings) for role in {n.role for n in plan.create}}
    created: list[str] = []
    for new in sorted(plan.create, key=lambda n: (-n.role.priority, n.index)):
        protected = _vital(job, new.role, new.index) or protected_now < _protected_count(job)
        protected_now += protected
        body = templates[new.role].pod(
            new.index,
            protected=protected,
            restarts=new.restarts,
            failures=new.failures,
            protect=observed.protect,
        )
        actions.append(CreatePod(body))
        created.append(body["metadata"]["name"])
    actions += _services(job, plan, observed, view)
    actions += event.done("Create", "Pod", created)
    stuck = [r.name for r in plan.clear if r.state is State.LEAVING]
    actions += event.done("Delete", "Pod", [r.name for r in plan.leave] + stuck)
    return actions


def _grace(replica: Replica, wanted: Size | None, observed: Observed) -> timedelta | None:
    """A surplus pod gets the policy's grace where that is shorter than its own."""
    if not replica.role.elastic or wanted is None or observed.grace is None:
        return None
    grace = max(observed.grace, _SHORTEST_GRACE)
    return grace if grace < replica.grace else None


def _hand_on(plan: placement.Placement, restarts: int) -> list[Action]:
    heir = plan.hand_on(restarts) if restarts > 0 else None
    if heir is None:
        return []
    told = {RESTARTS: str(heir.taken_over + restarts)}
    return [PatchPod(heir.name, {"metadata": {"annotations": told}})]


def _annotate(name: str, *, protected: bool) -> PatchPod:
    value = preemptable(protected=protected)
    return PatchPod(name, {"metadata": {"annotations": {PREEMPTABLE: value}}})


def _services(
    job: PyTorchJob, plan: placement.Placement, observed: Observed, view: Sequence[Replica]
) -> list[Action]:
    dismissed = {r.name for r in [*plan.leave, *plan.clear]}
    needed = {
        r.name: (r.role, r.index)
        for r in view
        # A leaving pod is still spoken to until it has gone.
        if r.name not in dismissed
        and r.role.name in job.replicas
        and r.state in (State.LIVE, State.RETRY, State.SUCCEEDED)
    }
    needed |= {replica_name(job.name, n.role, n.index): (n.role, n.index) for n in plan.create}
    present = {s["metadata"]["name"] for s in observed.services}
    held = {r.name for r in view} | {coordinator_name(job)}
    templates = {spec.role: ServiceTemplate(job, spec.role) for spec in job.replicas.values()}
    missing = [
        templates[role].service(index)
        for name, (role, index) in needed.items()
        if name not in present
    ]
    surplus = [
        (s["metadata"]["name"], s["metadata"]["uid"])
        for s in observed.services
        if s["metadata"]["name"] not in needed
        and s["metadata"]["name"] not in held
        and not s["metadata"].get("deletionTimestamp")
    ]
    return [
        *(CreateService(body) for body in missing),
        *(DeleteService(name, uid) for name, uid in surplus),
        *event.done("Create", "Service", [body["metadata"]["name"] for body in missing]),
        *event.done("Delete", "Service", [name for name, _ in surplus]),
    ]


def _suspend(
    job: PyTorchJob, view: Sequence[Replica], observed: Observed, now: datetime
) -> list[Action]:
    # It is not begun here: a suspended job must not resume for a moment, and has no startTime.
    new = status.accepted(job, now)
    new["conditions"] = condition.with_condition(
        new["conditions"],
        "Suspended",
        "PyTorchJobSuspended",
        f"PyTorchJob {job.name} is suspended.",
        now,
    )
    if job.elastic is not None and job.sized is not None:
        # It comes back at its minimum, and grows from there.
        new["elastic"] = dict(new.get("elastic") or {}) | {
            "desired": job.least_size,
            "ready": 0,
            "min": job.least_size,
            "max": job.elastic.max,
            "replicas": job.sized.replicas,
        }
    new = status.counted(new, job, [r for r in view if not r.live])
    new = status.queued(new, job, observed.podgroup)
    return [*status.change(job.status, new, now), *cleanup.take_away(job, view, observed)]
