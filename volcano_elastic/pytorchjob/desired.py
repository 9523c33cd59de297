"""Decides from a view of what there is of a job what there should be. Pure.

finished   pods by cleanPodPolicy, and no more; after its time to live not even the job
suspended  nothing, once its pods have gone
torn       all as it is: an edit made the job elastic, or fixed, under running pods
over       as finished, and the status says how it ended
else       size ─► gang and protection ─► pods that go ─► pods that come ─► services
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from volcano_elastic.api import condition, moment
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import Role
from volcano_elastic.podgroup import podgroup, protection
from volcano_elastic.podgroup.pod_annotation import PREEMPTABLE, preemptable
from volcano_elastic.pytorchjob import (
    autoscaler,
    event,
    exclusion,
    first_pod,
    in_place,
    out_of_memory,
    outcome,
    placement,
    size,
    status,
)
from volcano_elastic.pytorchjob.action import EmitEvent, ResizePod
from volcano_elastic.pytorchjob.label import coordinator_name, is_first, replica_name
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.pod import RESTARTS, PodTemplate, requests
from volcano_elastic.pytorchjob.settings import Settings
from volcano_elastic.pytorchjob.status import Status
from volcano_elastic.pytorchjob.view import View

# With none at all the API server forgets a pod whose processes still run.
_SHORTEST_GRACE = timedelta(seconds=1)
# An elastic job's pods end within moments of each other; one that hangs would keep its GPUs.
_TO_END_BY_ITSELF = timedelta(seconds=30)
_UNTIL_RESUMED = (
    ". Running pods keep what they were made with, and the others must meet them; to change it, "
    "suspend the job and resume it"
)

_STILL_THERE = (State.LEAVING, State.NODE_LOST)
_NAMED = (State.LIVE, State.RETRY, State.SUCCEEDED, State.OUT_OF_MEMORY)

Object = dict[str, Any]


class Keep(Enum):
    """Leaves what is there as it is."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Leave:
    """A pod that is to go."""

    name: str
    uid: str
    grace: timedelta | None = None
    """None: its own. Zero: the object goes at once, since its processes have ended."""
    announced: bool = True
    """Its deletion is worth an event."""


@dataclass(frozen=True, slots=True)
class Services:
    needed: Mapping[str, tuple[Role, int]] = field(default_factory=dict)
    """By name, the role and index that each is for."""
    held: frozenset[str] = frozenset()
    """Names that stay if they are there, and are not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """A job as it should be. Pods that are not named stay."""

    status: Status
    burst: bool = False
    """Pods are coming up, so that their count may be written a second late."""
    events: tuple[EmitEvent, ...] = ()
    create: tuple[Object, ...] = ()
    """Pods to come, in falling task priority."""
    leave: tuple[Leave, ...] = ()
    annotations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By pod's name, what is to be annotated on one that is there."""
    resize: tuple[ResizePod, ...] = ()
    """Running pods that are to ask for something else."""
    services: Services | Keep = KEEP
    podgroup: Object | Keep | None = KEEP
    """Its spec; None: there should be no PodGroup."""
    autoscaler: Object | Keep | None = KEEP
    """Its spec; None: there should be no HorizontalPodAutoscaler."""
    coordinator: bool | Keep = KEEP
    """True if there should be a coordinator, wherever it has its place."""
    job: bool = True
    """False once the job's time to live is over."""
    look_again: tuple[timedelta, ...] = ()
    """After which times to look at the job again even if nothing changes."""


def desired(view: View, settings: Settings) -> Desired:
    """Return what there should be of the job that is seen."""
    job = view.job
    if job.finished:
        counted = status.counted(dict(job.status), job, view.all_replicas)
        return _cleaned_up(view, counted, job.completed or view.now)
    new = [] if condition.is_true(job.conditions, "Created") else event.at_begin(job)
    if job.run_policy.suspend:
        return _suspended(view, new)
    if view.in_force.torn:
        refused, events = status.refused_edit(job, "; ".join(view.in_force.differs))
        return Desired(status=refused, events=tuple(events))
    wanted = size.size(job, view.replicas, view.observed.resize)
    new_status = _status(view, wanted)
    needed, restarts = view.observed.needs_first, status.restarts(job, view.replicas)
    alone = first_pod.goes_on_without(job, view.replicas, wanted, needed=needed)
    result = outcome.outcome(job, view.replicas, wanted, restarts, view.now, without_first=alone)
    if result is None:
        return _running(view, settings, wanted, new_status, new, without_first=alone)
    states = (State.LOST,) if result.succeeded else (State.LOST, State.RETRY)
    new += event.exited(job, [r for r in view.replicas if r.state in states])
    ended = status.ended(new_status, result, view.now)
    return _cleaned_up(view, ended, view.now, new)


def time_left(ttl: timedelta | None, completed: datetime, now: datetime) -> timedelta | None:
    """Return for how long a finished job is kept yet; zero: no longer; None: for ever."""
    return None if ttl is None else max(timedelta(0), completed + ttl - now)


def _excluded(view: View) -> exclusion.Exclusions:
    observed = view.observed
    return exclusion.decide(
        view.job, view.replicas, observed.failed_nodes, observed.exclude_for, view.now
    )


def _status(view: View, wanted: size.Size | None) -> Status:
    job, now = view.job, view.now
    found = status.counted(status.begun(job, now), job, view.replicas)
    found = status.sized(found, job, view.replicas, wanted, now)
    found = status.excluding(found, _excluded(view))
    found = status.progressed(found, job, view.replicas, now)
    found = status.with_memory(found, job, view.replicas)
    found = status.with_resources(found, view.observed.at_start)
    found = status.with_servers(found, view.observed.servers, job)
    return status.queued(found, job, view.observed.podgroup)


def _cleaned_up(
    view: View, new_status: Status, completed: datetime, events: Sequence[EmitEvent] = ()
) -> Desired:
    """Pods go by cleanPodPolicy, the PodGroup after the last active pod, the job after its time to
    live."""
    job, now = view.job, view.now
    policy, found = job.run_policy.clean_pod_policy, view.all_replicas
    live = [r for r in found if r.live]
    going: list[Replica] = []
    look_again = []
    if policy == "All":
        going = [r for r in found if r.state is not State.LEAVING]
    elif policy == "Running":
        going = live
    elif job.elastic is not None:
        # A pod that never started has nothing to finish.
        late = now >= completed + _TO_END_BY_ITSELF
        going = [r for r in live if late or not r.running or not r.role.trains]
        if len(going) < len(live):
            look_again.append(completed + _TO_END_BY_ITSELF - now)
    else:
        # A server ends by itself in no case.
        going = [r for r in live if not r.role.trains]
    active = bool(live) or any(r.state is State.LEAVING for r in found)
    rest = time_left(job.run_policy.ttl, completed, now)
    if rest:
        look_again.append(rest)
    return Desired(
        status=new_status,
        events=tuple(events),
        leave=tuple(Leave(r.name, r.uid) for r in going),
        services=KEEP if policy == "None" else Services(),
        podgroup=KEEP if active else None,
        autoscaler=None,
        coordinator=KEEP if active else False,
        job=rest is None or rest > timedelta(0),
        look_again=tuple(look_again),
    )


def _suspended(view: View, events: Sequence[EmitEvent]) -> Desired:
    """Pods on their way out still write their last checkpoint, so names and places stay until they
    are gone."""
    found = view.all_replicas
    return Desired(
        status=status.suspended(view.job, found, view.observed.podgroup, view.now),
        events=tuple(events),
        leave=tuple(Leave(r.name, r.uid) for r in found if r.state is not State.LEAVING),
        services=KEEP if found else Services(),
        podgroup=KEEP if found else None,
        autoscaler=None,
        coordinator=KEEP if found else False,
    )


def _running(
    view: View,
    settings: Settings,
    wanted: size.Size | None,
    new_status: Status,
    events: list[EmitEvent],
    *,
    without_first: bool,
) -> Desired:
    job, observed, now = view.job, view.observed, view.now
    excluded = _excluded(view)
    to_leave = observed.to_leave if job.elastic is not None else ()
    avoid = exclusion.avoided((one.node for one in excluded.nodes), to_leave)
    moved = (wanted.move if wanted else frozenset()) | observed.servers.move
    moved |= exclusion.outdated(view.replicas, avoid)
    plan = placement.place(job, view.replicas, wanted, now, moved, without_first=without_first)
    plan.leave += [r for r in view.dropped if r.live]
    plan.clear += [r for r in view.dropped if not r.live and r.state is not State.LEAVING]
    look_again = []
    wait = max(observed.admission_wait, observed.at_start.wait)
    if not observed.pods and (wait or observed.at_start.changed or observed.servers.changed):
        # What they ask for has to be durable first: the status that says so brings the next look.
        plan.create.clear()
        look_again.append(wait)
    annotations = _restarts_taken_over(view, plan)
    change = _protection(job, plan)
    for name in (*change.promote, *change.demote):
        value = preemptable(protected=name in change.promote)
        annotations[name] = annotations.get(name, {}) | {PREEMPTABLE: value}
    remembered = out_of_memory.remembered_in(new_status)
    create = _pods(view, plan, change, settings, remembered, avoid)
    if excluded.ends is not None:
        look_again.append(excluded.ends - now)
    if plan.retry_at is not None:
        look_again.append(plan.retry_at - now)
    if observed.lost_at is not None:
        look_again.append(max(timedelta(0), observed.lost_at - now))
    if job.run_policy.active_deadline is not None:
        start = moment.parse(new_status["startTime"])
        look_again.append(start + job.run_policy.active_deadline - now)
    return Desired(
        status=new_status,
        burst=any(r.live and not r.ready for r in view.replicas),
        events=(*events, *_explained(view, plan, wanted), *event.exclusions(excluded)),
        create=create,
        leave=(
            *(Leave(r.name, r.uid, _grace(r, wanted, observed.grace)) for r in plan.leave),
            # Processes of these are gone; without grace their indexes are free at once.
            *(
                Leave(r.name, r.uid, timedelta(0), announced=r.state in _STILL_THERE)
                for r in plan.clear
            ),
        ),
        annotations=annotations,
        resize=_resizes(view, plan),
        services=_services(view, plan),
        podgroup=_gang(view, plan, create) if job.uses_volcano else KEEP,
        autoscaler=autoscaler.spec(job),
        coordinator=True if observed.pods or create else KEEP,
        look_again=tuple(look_again),
    )


def _explained(view: View, plan: placement.Placement, wanted: size.Size | None) -> list[EmitEvent]:
    """Return the events that say what was decided, and what was not."""
    job, events = view.job, list[EmitEvent]()
    if view.in_force.differs:
        message = "; ".join(view.in_force.differs) + _UNTIL_RESUMED
        events.append(EmitEvent("RendezvousUnchanged", message, True, deduplicated=True))
    events += status.scale_ignored(job)
    events += view.observed.at_start.events
    events += view.observed.servers.events
    if view.observed.at_start.live:
        events += in_place.pending(view.observed.pods)
    failed = [r for r in plan.clear if r.state is State.RETRY]
    if wanted is not None and (wanted.changed or wanted.move):
        events.append(EmitEvent(wanted.reason, wanted.message))
        if wanted.reason == size.REPLICAS_FAILED:
            failed += size.newly_lost(job, view.replicas)
    events += event.exited(job, failed)
    gone = [r for r in plan.clear if r.state is State.NODE_LOST]
    events += event.node_lost(gone, view.observed.lost)
    short = [r for r in (*plan.clear, *plan.leave) if r.state is State.OUT_OF_MEMORY]
    events += event.out_of_memory(short)
    events += event.no_more_memory(view.replicas)
    kept = podgroup.queue_in_force(job, view.observed.podgroup)
    if job.uses_volcano and kept != job.queue:
        message = (
            f"The job asks for queue {job.queue}, but its PodGroup stays in {kept}: a queue is "
            f"chosen once; to move the job, delete it and create it anew"
        )
        events.append(EmitEvent("QueueUnchanged", message, True, deduplicated=True))
    return events


def _restarts_taken_over(view: View, plan: placement.Placement) -> dict[str, dict[str, str]]:
    """Have another pod remember the restarts of those that have gone; return its annotations."""
    before = status.restarts(view.job, view.replicas) - sum(r.restarts for r in view.replicas)
    successor = plan.take_over_restarts(before) if before > 0 else None
    if successor is None:
        return {}
    return {successor.name: {RESTARTS: str(successor.taken_over + before)}}


def _protected_count(job: PyTorchJob) -> int:
    return max(job.min_members, podgroup.min_member(job))


def _vital(job: PyTorchJob, plan: placement.Placement, role: Role, index: int) -> bool:
    # Where another role leads, the elastic role's pod 0 is no more vital than the others.
    return role.vital or (is_first(job, role, index) and not plan.without_first)


def _protection(job: PyTorchJob, plan: placement.Placement) -> protection.Change:
    if job.elastic is None or not job.uses_volcano:
        return protection.Change()
    members = [
        protection.Member(
            r.name,
            vital=_vital(job, plan, r.role, r.index),
            rank=rank,
            protected=r.protected,
            running=r.running,
        )
        for rank, r in enumerate(sorted(plan.keep, key=lambda r: (-r.role.priority, r.index)))
    ]
    return protection.rebalance(members, _protected_count(job), demote=plan.complete)


def _pods(
    view: View,
    plan: placement.Placement,
    change: protection.Change,
    settings: Settings,
    memory: Mapping[str, Bytes],
    avoid: Sequence[str],
) -> tuple[Object, ...]:
    """Return the pods that come; those that the minimum still lacks are protected.

    Args:
        memory: by name, what those that once ran out of memory ask for.
    """
    job, observed = view.job, view.observed
    protected_now = sum(r.protected or r.name in change.promote for r in plan.keep)
    running = {r.index: r.node for r in plan.keep if r.role.elastic and r.running}
    templates = {
        role: PodTemplate(job, role, settings, avoid, trainer=observed.trainer, running=running)
        for role in {n.role for n in plan.create}
    }
    made = []
    for new in sorted(plan.create, key=lambda n: (-n.role.priority, n.index)):
        vital = _vital(job, plan, new.role, new.index)
        protected = vital or protected_now < _protected_count(job)
        protected_now += protected
        name = replica_name(job.name, new.role, new.index)
        body = templates[new.role].pod(
            new.index,
            protected=protected,
            restarts=new.restarts,
            failures=new.failures,
            protect=observed.protect,
            resources=observed.resources.get(name),
            memory=memory.get(name),
        )
        made.append(body)
    return tuple(made)


def _resizes(view: View, plan: placement.Placement) -> tuple[ResizePod, ...]:
    """Return what brings running pods that stay to what is in force for new ones."""
    at_start = view.observed.at_start
    if not at_start.live or at_start.changed:
        return ()
    staying = {r.uid for r in plan.keep}
    pods = (pod for pod in view.observed.pods if pod["metadata"].get("uid") in staying)
    return tuple(in_place.resizes(view.job, pods))


def _grace(
    replica: Replica, wanted: size.Size | None, policys: timedelta | None
) -> timedelta | None:
    """Return the policy's grace for a surplus pod where that is shorter than its own."""
    if not replica.role.elastic or wanted is None or policys is None:
        return None
    grace = max(policys, _SHORTEST_GRACE)
    return grace if grace < replica.grace else None


def _gang(view: View, plan: placement.Placement, create: Sequence[Object]) -> Object:
    job, observed = view.job, view.observed
    live = {
        name: sum(r.role is spec.role for r in plan.keep) for name, spec in job.replicas.items()
    }
    members = podgroup.members(job, observed.podgroup, live)
    asked = _requests(view, plan, create, podgroup.shares(job, members.total))
    return podgroup.spec(job, members, asked)


def _requests(
    view: View,
    plan: placement.Placement,
    create: Sequence[Object],
    shares: Mapping[str, int],
) -> dict[str, podgroup.Requests]:
    """Return what each role's first pods ask for: those that are there as the API server made them
    (LimitRange, overhead, injected sidecars), those that come as they are going to be made."""
    specs = {pod["metadata"]["name"]: pod.get("spec") or {} for pod in view.observed.pods}
    specs |= {body["metadata"]["name"]: body["spec"] for body in create}
    there = [(r.role, r.index) for r in plan.keep] + [(n.role, n.index) for n in plan.create]
    found = {}
    for name, share in shares.items():
        role = view.job.replicas[name].role
        indexes = sorted(index for other, index in there if other is role)[:share]
        names = [replica_name(view.job.name, role, index) for index in indexes]
        each = api_pod.requests_of_each([specs[one] for one in names])
        further = requests(view.job, role) if share > len(names) else {}
        found[name] = podgroup.Requests(tuple(each), further)
    return found


def _services(view: View, plan: placement.Placement) -> Services:
    job = view.job
    dismissed = {r.name for r in [*plan.leave, *plan.clear]}
    needed = {
        r.name: (r.role, r.index)
        for r in view.replicas
        # A leaving pod is still spoken to until it has gone.
        if r.name not in dismissed and r.state in _NAMED
    }
    needed |= {replica_name(job.name, n.role, n.index): (n.role, n.index) for n in plan.create}
    held = {r.name for r in view.all_replicas} | {coordinator_name(job)}
    return Services(needed, frozenset(held))
