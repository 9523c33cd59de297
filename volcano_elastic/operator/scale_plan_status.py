"""Words a ScalePlan's status. Pure.

can't be parsed                       ─► Failed
its job has ended, or is another now  ─► Expired
its time is over                      ─► Expired
no such job yet                       ─► Pending
another plan counts for the job       ─► Superseded
the job has another size or resources ─► Pending
pods come or go for it                ─► Scaling
else                                  ─► Succeeded
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volcano_elastic.api import condition, moment, role_resources, server_count, status_condition
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import elastic, known
from volcano_elastic.api.scale_plan import (
    InvalidPlan,
    Phase,
    RolePlan,
    ScalePlan,
)
from volcano_elastic.cluster_state.reason import WORDS, NoChange
from volcano_elastic.pytorchjob.label import replica_name

Status = dict[str, Any]
Object = Mapping[str, Any]
ACCEPTED, REPLICAS, RESOURCES, PODS = "Accepted", "Replicas", "Resources", "Pods"


@dataclass(frozen=True, slots=True)
class Seen:
    """The plan's job as the newest plan of the queues saw it."""

    job: Object | None
    """None: there is none of its name."""
    parsed: PyTorchJob | None = None
    """None: it wants no pods from Volcano now, or cannot be carried out."""
    counts: ScalePlan | None = None
    """The one of its plans that counts."""
    stays: NoChange | None = None
    """Why its size is not changed."""
    pods: Mapping[str, str] = field(default_factory=dict)
    """Uids of its Workers that are not on their way out, by name."""


@dataclass(frozen=True, slots=True)
class _Finding:
    type: str
    true: bool
    reason: str
    message: str
    phase: Phase = Phase.SUCCEEDED
    """The phase of the plan, as far as this goes."""


def status(obj: Object, plan: ScalePlan | InvalidPlan, seen: Seen, now: datetime) -> Status:
    """Return the whole status; equal to the old one if there is nothing new to say."""
    old: Object = obj.get("status") or {}
    found = _findings(plan, seen, now)
    new: Status = {"phase": str(_phase(found))}
    if "generation" in obj["metadata"]:
        new["observedGeneration"] = obj["metadata"]["generation"]
    uid = old.get("jobUID") or (seen.job["metadata"]["uid"] if seen.job is not None else "")
    if uid:
        new["jobUID"] = uid
    if isinstance(plan, ScalePlan) and plan.expires is not None:
        new["expires"] = moment.timestamp(plan.expires)
    if pods := _meant(plan, old, seen, accepted=found[0].true):
        new["pods"] = pods
    new["conditions"] = [
        status_condition.dated(
            old, status_condition.make(one.type, one.true, one.reason, one.message), now
        )
        for one in found
    ]
    return new


def _meant(
    plan: ScalePlan | InvalidPlan, old: Object, seen: Seen, *, accepted: bool
) -> dict[str, str]:
    """Return which pods the plan's names mean: those that have them when it first counts."""
    known = dict(old.get("pods") or {})
    if not accepted or isinstance(plan, InvalidPlan):
        return known
    names = (*plan.remove, *plan.migrate)
    return {name: known.get(name, seen.pods.get(name, "")) for name in names}


def _findings(plan: ScalePlan | InvalidPlan, seen: Seen, now: datetime) -> list[_Finding]:
    if isinstance(plan, InvalidPlan):
        return [_refused("Invalid", f"the plan is not carried out: {plan}", Phase.FAILED)]
    if plan.expires is not None and plan.expires <= now:
        when = moment.timestamp(plan.expires)
        return [_refused("Expired", f"it counted until {when}", Phase.EXPIRED)]
    job = seen.job
    if job is None:
        if plan.job_uid:
            return [_refused("JobGone", f"PyTorchJob {plan.owner_job} is gone", Phase.EXPIRED)]
        message = (
            f"expected a PyTorchJob {plan.owner_job} in namespace {plan.namespace}, found none"
        )
        return [_refused("JobNotFound", message, Phase.PENDING)]
    if plan.job_uid not in ("", job["metadata"]["uid"]):
        message = f"PyTorchJob {plan.owner_job} is another one now; make a plan for it"
        return [_refused("JobGone", message, Phase.EXPIRED)]
    if condition.finished((job.get("status") or {}).get("conditions") or ()):
        return [_refused("JobEnded", f"PyTorchJob {plan.owner_job} has ended", Phase.EXPIRED)]
    if seen.parsed is None:
        message = (
            f"PyTorchJob {plan.owner_job} has no pods that Volcano places now: it is suspended, "
            "another controller's or scheduler's, or refused"
        )
        return [_refused("JobNotSized", message, Phase.PENDING)]
    first = seen.counts
    if first is not None and first.name != plan.name:
        message = (
            f"ScalePlan {first.name} counts for the job: {first.kind}, and {_before(first, plan)}"
        )
        return [_refused("Superseded", message, Phase.SUPERSEDED)]
    accepted = _Finding(ACCEPTED, True, "Counts", f"a plan of type {plan.kind} that counts")
    return [accepted, *_carried_out(plan, seen.parsed, seen.stays), *_named(plan, seen)]


def _before(first: ScalePlan, plan: ScalePlan) -> str:
    return f"this one is {plan.kind}" if first.manual != plan.manual else "newer than this one"


def _carried_out(plan: ScalePlan, job: PyTorchJob, stays: NoChange | None) -> Iterator[_Finding]:
    sizes = [one for role in known() if (one := _size(role.name, plan, job, stays))]
    resources = [one for name, role in plan.roles.items() if (one := _resources(name, role, job))]
    for found in (sizes, resources):
        if found:
            # One condition for all roles: that of which least is done, with what is said of all.
            worst = min(found, key=lambda one: (one.true, _ORDER.index(one.phase)))
            message = "; ".join(one.message for one in found)
            yield _Finding(worst.type, worst.true, worst.reason, message, worst.phase)


def _named(plan: ScalePlan, seen: Seen) -> Iterator[_Finding]:
    """Yield what became of the pods that the plan names, and of what is not carried out."""
    said = [f"{name} is not carried out: {why}" for name, why in plan.not_carried_out.items()]
    waits, fails = False, bool(said)
    for name in (*plan.remove, *plan.migrate):
        uid = plan.pods.get(name)
        if uid == "":
            fails = True
            said.append(f"{name}: there was no such {elastic().name}")
        elif seen.parsed is not None and name in plan.remove and name == _first(seen.parsed):
            fails = True
            said.append(f"{name} stays: the others need it")
        elif uid is None or seen.pods.get(name) == uid:
            waits = True
            job = seen.parsed
            least = name in plan.remove and job is not None and job.desired == _least(job)
            why = f": {_least(job)} is the job's least" if least and job is not None else ""
            said.append(f"{name} has not left yet{why}")
        else:
            said.append(f"{name} left")
    if not said:
        return
    message = "; ".join(said)
    if waits:
        yield _Finding(PODS, False, "Waiting", message, Phase.PENDING)
    elif fails:
        yield _Finding(PODS, False, "NotAll", message)
    else:
        yield _Finding(PODS, True, "AsPlanned", message)


def _first(job: PyTorchJob) -> str:
    return replica_name(job.name, elastic(), 0)


def _least(job: PyTorchJob) -> int | None:
    return None if job.elastic is None else job.least_size


def _size(name: str, plan: ScalePlan, job: PyTorchJob, stays: NoChange | None) -> _Finding | None:
    wanted = plan.replicas(name, _has(name, job))
    if wanted is None:
        return None
    if name not in job.replicas:
        return _Finding(REPLICAS, False, "NoSuchRole", f"the job has no {name} pods")
    if job.replicas[name].role.serves:
        return _servers(name, wanted, job)
    policy = job.elastic
    if name != elastic().name or policy is None or job.kueue:
        has = job.replicas[name].replicas
        why = f"{name}: {wanted} asked for, {has} stay: only {elastic().name} pods of elastic jobs"
        return _Finding(REPLICAS, has == wanted, "NotElastic", f"{why} (not Kueue's) are sized")
    whole = wanted - wanted % policy.node_unit
    target = min(max(whole, job.least_size), policy.max)
    bounds = ""
    if target != wanted:
        unit = f" in steps of {policy.node_unit}" if policy.node_unit > 1 else ""
        bounds = f"; {wanted} are asked for, {job.least_size} to {policy.max}{unit} may be"
    desired = job.desired or 0
    ready = int((job.status.get("elastic") or {}).get("ready") or 0)
    if desired != target:
        why = f": {WORDS[_why(stays, desired, target)]}" if stays is not None else ""
        message = f"{name}: {desired} of {target} pods{why}{bounds}"
        reason = str(_why(stays, desired, target)) if stays is not None else "Waiting"
        return _Finding(REPLICAS, False, reason, message, Phase.PENDING)
    if ready != desired:
        message = f"{name}: {ready} of {desired} pods are ready{bounds}"
        return _Finding(REPLICAS, False, "PodsNotReady", message, Phase.SCALING)
    reason = "OutsideOfRange" if bounds else "AsPlanned"
    return _Finding(REPLICAS, not bounds, reason, f"{name}: {desired} pods{bounds}")


def _has(name: str, job: PyTorchJob) -> int:
    """Return how many pods of a role there are to be."""
    replica = job.replicas.get(name)
    if replica is None:
        return 0
    return replica.replicas if replica.role.serves else job.desired or 0


def _servers(name: str, wanted: int, job: PyTorchJob) -> _Finding:
    """Say how far the number of parameter servers is, which no queue's policy holds up."""
    has = job.replicas[name].replicas
    target = min(max(wanted, 1), server_count.MOST)
    bounds = (
        "" if target == wanted else f"; {wanted} are asked for, 1 to {server_count.MOST} may be"
    )
    if has != target:
        message = f"{name}: {has} of {target} pods{bounds}"
        return _Finding(REPLICAS, False, "Waiting", message, Phase.PENDING)
    counts = (job.status.get("replicaStatuses") or {}).get(name) or {}
    runs = int(counts.get("active") or 0)
    if runs != target:
        message = f"{name}: {runs} of {target} pods run{bounds}"
        return _Finding(REPLICAS, False, "PodsNotReady", message, Phase.SCALING)
    reason = "OutsideOfRange" if bounds else "AsPlanned"
    return _Finding(REPLICAS, not bounds, reason, f"{name}: {target} pods{bounds}")


def _why(stays: NoChange, desired: int, target: int) -> Any:
    return stays.why_not_more if desired < target else stays.why_not_less


def _resources(name: str, role: RolePlan, job: PyTorchJob) -> _Finding | None:
    if not role.has_resources:
        return None
    if name not in job.replicas:
        return _Finding(RESOURCES, False, "NoSuchRole", f"the job has no {name} pods")
    given = role_resources.in_force(job.status).get(name)
    asked = role_resources.requested(job.replicas[name].pod_spec)
    if not (role.cpu or asked.cpu) or not (role.memory or asked.memory):
        message = f"{name} pods ask for {asked}: the plan must say both cpu and memory"
        return _Finding(RESOURCES, False, "Incomplete", message)
    if given is None or (
        role.cpu not in (None, given.cpu) or role.memory not in (None, given.memory)
    ):
        has = asked if given is None else given
        message = f"{name} pods ask for {has}{'' if given is None else f': {given.message}'}"
        bounded = given is not None and ";" in given.message
        if bounded:
            return _Finding(RESOURCES, False, "BoundedByNode", message)
        return _Finding(RESOURCES, False, "Waiting", message, Phase.PENDING)
    return _Finding(RESOURCES, True, "AsPlanned", f"{name} pods ask for {given}")


def _refused(reason: str, message: str, phase: Phase) -> _Finding:
    return _Finding(ACCEPTED, False, reason, message, phase)


_ORDER = (
    Phase.FAILED,
    Phase.EXPIRED,
    Phase.SUPERSEDED,
    Phase.PENDING,
    Phase.SCALING,
    Phase.SUCCEEDED,
)


def _phase(found: list[_Finding]) -> Phase:
    return min((one.phase for one in found), key=_ORDER.index)
