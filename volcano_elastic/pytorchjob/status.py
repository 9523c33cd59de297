"""A job's status, from what is observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import condition, merge_patch, moment, role_resources, server_count
from volcano_elastic.api.pytorchjob import PyTorchJob, ReplicaSpec
from volcano_elastic.api.role import Role
from volcano_elastic.podgroup import podgroup
from volcano_elastic.pytorchjob import label
from volcano_elastic.pytorchjob.action import Action, EmitEvent, PatchStatus, Requeue
from volcano_elastic.pytorchjob.at_start import AtStart
from volcano_elastic.pytorchjob.coexistence import ALONE
from volcano_elastic.pytorchjob.exclusion import FIELD, LIFTED, Exclusions
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.out_of_memory import remembered
from volcano_elastic.pytorchjob.outcome import Outcome
from volcano_elastic.pytorchjob.servers import Servers
from volcano_elastic.pytorchjob.size import Size, evictions

Status = dict[str, Any]

# While pods come up in a burst their count need not be told with each of them.
_BURST = timedelta(seconds=1)
REFUSED = "Not carried out: "
"""How the message of an edit begins that asks for the impossible."""
# What of status.elastic only an elastic job has.
_OF_A_SIZE = frozenset(
    (
        "desired",
        "ready",
        "min",
        "max",
        "replicas",
        "lastScaleTime",
        "lastScaleReason",
        "message",
        "evicted",
    )
)


def refused(job: PyTorchJob) -> bool:
    """Return whether an edit of the job was refused, so that it goes on as it was."""
    return str((job.status.get("elastic") or {}).get("message") or "").startswith(REFUSED)


def restarts(job: PyTorchJob, view: Sequence[Replica]) -> int:
    """So far; never falls, though pods that leave take their counts with them."""
    before = int((job.status.get("elastic") or {}).get("restarts") or 0)
    return max(before, sum(r.restarts for r in view))


def accepted(job: PyTorchJob, now: datetime) -> Status:
    """The status of a job that is not refused."""
    conditions = job.conditions
    if not condition.is_true(conditions, "Created"):
        conditions = condition.with_condition(
            conditions, "Created", "PyTorchJobCreated", f"PyTorchJob {job.name} is created.", now
        )
    return dict(job.status) | {"conditions": conditions}


def begun(job: PyTorchJob, now: datetime) -> Status:
    """The status of a job that is to run: resumed if it was suspended."""
    status = accepted(job, now)
    conditions: list[condition.Condition] = status["conditions"]
    if condition.is_true(conditions, "Suspended"):
        conditions = condition.with_condition(
            conditions,
            "Suspended",
            "PyTorchJobResumed",
            f"PyTorchJob {job.name} is resumed.",
            now,
            status="False",
        )
        status.pop("startTime", None)
    status["conditions"] = conditions
    status.setdefault("startTime", moment.timestamp(now))
    return status


def with_memory(status: Status, job: PyTorchJob, view: Sequence[Replica]) -> Status:
    """The status with what pods that ran out of memory ask for from now on."""
    given = {
        r.name: r.shortage.more
        for r in view
        if r.state is State.OUT_OF_MEMORY and r.shortage is not None and r.shortage.more
    }
    if not given:
        return status
    known = remembered(job)
    memory = known | {name: max(more, known.get(name, more)) for name, more in given.items()}
    told = {name: str(memory[name]) for name in sorted(memory)}
    return status | {"elastic": dict(status.get("elastic") or {}) | {"memory": told}}


def with_resources(status: Status, at_start: AtStart) -> Status:
    """The status with what pods made from now on ask for instead of what their templates say."""
    if not at_start.changed:
        return status
    elastic = dict(status.get("elastic") or {})
    elastic.pop(role_resources.FIELD, None)
    if at_start.resources:
        told = {role: one.as_status() for role, one in at_start.resources.items()}
        elastic[role_resources.FIELD] = told
    without = {name: value for name, value in status.items() if name != "elastic"}
    return without | ({"elastic": elastic} if elastic else {})


def with_servers(status: Status, servers: Servers, job: PyTorchJob) -> Status:
    """The status with how many parameter servers there should be instead of what the spec says, and
    with speeds of that many alone."""
    elastic = dict(status.get("elastic") or {})
    if servers.changed:
        elastic.pop(server_count.FIELD, None)
        if servers.count is not None:
            elastic[server_count.FIELD] = servers.count.as_status()
    asked = 0 if job.servers is None else job.servers.asked
    number = asked if servers.count is None else servers.count.replicas
    measured = elastic.pop(server_count.MEASURED, number)
    if servers.changed or measured != number:
        elastic.pop("speeds", None)
    if number and "speeds" in elastic:
        elastic[server_count.MEASURED] = number
    without = {name: value for name, value in status.items() if name != "elastic"}
    return without | ({"elastic": elastic} if elastic else {})


def counted(status: Status, job: PyTorchJob, view: Sequence[Replica]) -> Status:
    """The status with its pods counted. Once the job is over, pods that are cleaned up still
    count as what they were."""
    reported = status.get("replicaStatuses") or {} if job.finished else {}

    def count(role: Role) -> dict[str, Any]:
        mine = [r for r in view if r.role is role]
        before = reported.get(role.name) or {}
        succeeded = sum(r.state is State.SUCCEEDED for r in mine)
        failed = sum(_failed(r) for r in mine)
        return {
            "active": sum(r.live and r.running for r in mine),
            "succeeded": max(succeeded, int(before.get("succeeded") or 0)),
            "failed": max(failed, int(before.get("failed") or 0)),
            "selector": label.selector_of_all(job, role),
        }

    return status | {
        "replicaStatuses": {name: count(spec.role) for name, spec in job.replicas.items()}
    }


def queued(status: Status, job: PyTorchJob, group: Mapping[str, Any] | None) -> Status:
    """The status with the Volcano queue that the job is in; none under another scheduler."""
    rest = {name: value for name, value in status.items() if name != "queue"}
    return rest | ({"queue": podgroup.queue_in_force(job, group)} if job.uses_volcano else {})


def sized(
    status: Status, job: PyTorchJob, view: Sequence[Replica], size: Size | None, now: datetime
) -> Status:
    """The status with an elastic job's size; of a fixed job, its restarts and no size that it
    had while it was elastic."""
    policy, sized, count = job.elastic, job.sized, restarts(job, view)
    elastic = dict(job.status.get("elastic") or {})
    if policy is None or sized is None or size is None:
        rest = {name: value for name, value in elastic.items() if name not in _OF_A_SIZE}
        if count:
            rest["restarts"] = count
        without = {name: value for name, value in status.items() if name != "elastic"}
        return without | ({"elastic": rest} if rest else {})
    if str(elastic.get("message") or "").startswith((REFUSED, ALONE)):
        # It has been put right, or given back, since.
        del elastic["message"]
    elastic |= {
        "desired": size.desired,
        "ready": sum(r.live and r.ready for r in view if r.role.elastic),
        "min": job.least_size,
        "max": policy.max,
        "restarts": count,
        "replicas": sized.replicas,
    }
    if size.changed:
        elastic |= {
            "lastScaleTime": moment.micro_timestamp(now),
            "lastScaleReason": size.reason,
            "message": size.message,
        }
        elastic.pop("evicted", None)
        if gone := evictions(view):
            elastic["evicted"] = gone
    return status | {"elastic": elastic}


def excluding(status: Status, exclusions: Exclusions) -> Status:
    """The status with the nodes that the job keeps away from."""
    before = status.get("elastic") or {}
    elastic = {name: value for name, value in before.items() if name not in (FIELD, LIFTED)}
    elastic |= exclusions.fields()
    without = {name: value for name, value in status.items() if name != "elastic"}
    return without | ({"elastic": elastic} if elastic else {})


def progressed(status: Status, job: PyTorchJob, view: Sequence[Replica], now: datetime) -> Status:
    """The status with Running or Restarting."""
    conditions: list[condition.Condition] = status["conditions"]
    active = [r for r in view if r.live and r.running]
    failed = [r for r in view if r.state in (State.RETRY, State.OUT_OF_MEMORY)]
    was_running = condition.is_true(conditions, "Running")
    if job.elastic is not None:
        size = sum(r.role.elastic for r in active)
        running = size >= job.elastic.min and all(
            _enough(spec, view, was_running=was_running)
            for spec in job.replicas.values()
            if spec.role.vital
        )
        why = f"{size} replicas run, and it needs {job.elastic.min}."
    else:
        leading = job.leader or job.sized or next(iter(job.replicas.values()))
        running = any(r.role is leading.role for r in active) and not failed
        why = ""
    if failed:
        role = failed[0].role
        why = f"{sum(r.role is role for r in failed)} {role.name} replica(s) failed."
    if running:
        name = job.name if job.leader is not None else job.key
        conditions = condition.with_condition(
            conditions, "Running", "PyTorchJobRunning", f"PyTorchJob {name} is running.", now
        )
    elif failed or (was_running and why):
        conditions = condition.with_condition(
            conditions,
            "Restarting",
            "PyTorchJobRestarting",
            f"PyTorchJob {job.name} is restarting because {why}",
            now,
        )
    return status | {"conditions": conditions}


def _enough(spec: ReplicaSpec, view: Sequence[Replica], *, was_running: bool) -> bool:
    """Return whether all pods of a vital role run. A job that runs goes on with the parameter
    servers that it has while further ones come."""
    mine = {r.index: r for r in view if r.role is spec.role}
    runs = {index for index, r in mine.items() if r.live and r.running}
    needed = spec.replicas
    while was_running and spec.role.serves and needed > 1:
        last = mine.get(needed - 1)
        if last is not None and (last.running or last.restarts or last.failures or not last.live):
            break
        needed -= 1
    return runs >= set(range(needed))


def suspended(
    job: PyTorchJob, view: Sequence[Replica], group: Mapping[str, Any] | None, now: datetime
) -> Status:
    """Return the status of a suspended job. It is not begun: a suspended job must not resume for a
    moment, and has no startTime."""
    status = accepted(job, now)
    status["conditions"] = condition.with_condition(
        status["conditions"],
        "Suspended",
        "PyTorchJobSuspended",
        f"PyTorchJob {job.name} is suspended.",
        now,
    )
    if job.elastic is not None and job.sized is not None:
        # It comes back at its minimum, and grows from there.
        status["elastic"] = dict(status.get("elastic") or {}) | {
            "desired": job.least_size,
            "ready": 0,
            "min": job.least_size,
            "max": job.elastic.max,
            "replicas": job.sized.replicas,
        }
    return queued(counted(status, job, [r for r in view if not r.live]), job, group)


def refused_edit(job: PyTorchJob, why: str) -> tuple[Status, list[EmitEvent]]:
    """Return the status of a job whose edit can't be carried out, and the event if that is new."""
    message = REFUSED + why
    elastic = job.status.get("elastic") or {}
    known = elastic.get("message") == message
    events = [] if known else [EmitEvent("PyTorchJobInvalid", message, True)]
    return dict(job.status) | {"elastic": elastic | {"message": message}}, events


def ended(status: Status, outcome: Outcome, now: datetime) -> Status:
    """The status of a job that is over."""
    word: condition.ConditionType = "Succeeded" if outcome.succeeded else "Failed"
    return status | {
        "conditions": condition.with_condition(
            status["conditions"], word, f"PyTorchJob{word}", outcome.message, now
        ),
        "completionTime": moment.timestamp(now),
    }


def scale_ignored(job: PyTorchJob) -> list[EmitEvent]:
    """Return a warning if somebody set the elastic role's replicas where they don't count, e.g. by
    kubectl scale."""
    policy, reported = job.elastic, (job.status.get("elastic") or {}).get("replicas")
    sized = job.sized
    if policy is None or sized is None or policy.scaler == "hpa" or job.kueue or reported is None:
        return []
    asked = sized.replicas
    if asked == reported:
        return []
    return [
        EmitEvent(
            "ScaleIgnored",
            f"{sized.role.name}.replicas went from {reported} to {asked}, which changes nothing: "
            f"scaler {policy.scaler} has the queue's policy size this job between {policy.min} "
            f"and {policy.max}; set elasticPolicy.minReplicas and maxReplicas, or scaler: hpa",
            warning=True,
        )
    ]


def change(
    old: Mapping[str, Any], new: Status, now: datetime, *, burst: bool = False
) -> list[Action]:
    """The patch from `old` to `new`, and an event for each condition that came true. In a burst,
    what only counts pods is told once a second."""
    patch = merge_patch.difference(old, new)
    if not patch:
        return []
    if burst and _only_counts(patch):
        reported = moment.parse_optional(old.get("lastReconcileTime"))
        if reported is not None and reported <= now < reported + _BURST:
            return [Requeue(reported + _BURST - now)]
    patch["lastReconcileTime"] = moment.timestamp(now)
    actions: list[Action] = [PatchStatus(patch)]
    before = {(c["type"], c["status"], c.get("reason")) for c in old.get("conditions") or ()}
    for c in new.get("conditions") or ():
        known = (c["type"], c["status"], c.get("reason")) in before
        if known or (c["type"] == "Running" and c["status"] == "False"):
            continue
        warning = c["type"] in ("Failed", "Restarting")
        actions.append(EmitEvent(c["reason"], c["message"], warning))
    return actions


def _only_counts(patch: Mapping[str, Any]) -> bool:
    return patch.keys() <= {"replicaStatuses", "elastic"} and (
        patch.get("elastic") or {}
    ).keys() <= {"ready"}


def _failed(replica: Replica) -> bool:
    if replica.state is State.OUT_OF_MEMORY:
        return not replica.running
    return replica.state in (State.RETRY, State.LOST, State.EVICTED)
