"""A job's status, from what is observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from volcano_elastic.api import condition, merge_patch, moment
from volcano_elastic.api.pytorchjob import MASTER, WORKER, PyTorchJob
from volcano_elastic.pytorchjob import label
from volcano_elastic.pytorchjob.action import Action, EmitEvent, PatchStatus
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.outcome import Outcome
from volcano_elastic.pytorchjob.size import Size

Status = dict[str, Any]


def restarts(job: PyTorchJob, view: Sequence[Replica]) -> int:
    """So far; never falls, though pods that leave take their counts with them."""
    before = int((job.status.get("elastic") or {}).get("restarts") or 0)
    return max(before, sum(r.restarts for r in view))


def begun(job: PyTorchJob, now: datetime) -> Status:
    """The status with the job accepted, and resumed if it was suspended."""
    status = dict(job.status)
    conditions = job.conditions
    if not condition.is_true(conditions, "Created"):
        conditions = condition.with_condition(
            conditions, "Created", "PyTorchJobCreated", f"PyTorchJob {job.name} is created.", now
        )
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


def counted(status: Status, job: PyTorchJob, view: Sequence[Replica]) -> Status:
    """The status with its pods counted."""
    return status | {
        "replicaStatuses": {
            kind: {
                "active": sum(r.live and r.running for r in view if r.kind == kind),
                "succeeded": sum(r.state is State.SUCCEEDED for r in view if r.kind == kind),
                "failed": sum(_failed(r) for r in view if r.kind == kind),
                "selector": ",".join(
                    f"{name}={value}"
                    for name, value in sorted(label.selector(job, kind, 0).items())
                    if name != label.REPLICA_INDEX
                ),
            }
            for kind in job.replicas
        }
    }


def sized(
    status: Status, job: PyTorchJob, view: Sequence[Replica], size: Size | None, now: datetime
) -> Status:
    """The status with an elastic job's size."""
    policy = job.elastic
    if policy is None or size is None:
        return status
    elastic = dict(job.status.get("elastic") or {}) | {
        "desired": size.desired,
        "ready": sum(r.live and r.ready for r in view if r.kind == WORKER),
        "min": policy.min,
        "max": policy.max,
        "restarts": restarts(job, view),
    }
    if size.changed:
        elastic |= {
            "lastScaleTime": moment.micro_timestamp(now),
            "lastScaleReason": size.reason,
            "message": size.message,
        }
    return status | {"elastic": elastic}


def progressed(status: Status, job: PyTorchJob, view: Sequence[Replica], now: datetime) -> Status:
    """The status with Running or Restarting."""
    conditions: list[condition.Condition] = status["conditions"]
    active = [r for r in view if r.live and r.running]
    failed = [r for r in view if r.state is State.RETRY]
    was_running = condition.is_true(conditions, "Running")
    if job.elastic is not None:
        workers = sum(r.kind == WORKER for r in active)
        running = workers >= job.elastic.min and (
            job.master is None or any(r.kind == MASTER for r in active)
        )
        why = f"{workers} replicas run, and it needs {job.elastic.min}."
    else:
        kind = MASTER if job.master is not None else WORKER
        running = any(r.kind == kind for r in active) and not failed
        why = ""
    if failed:
        kind = failed[0].kind
        why = f"{sum(r.kind == kind for r in failed)} {kind} replica(s) failed."
    if running:
        name = job.name if job.master is not None else job.key
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


def ended(status: Status, outcome: Outcome, now: datetime) -> Status:
    """The status of a job that is over."""
    word: condition.ConditionType = "Succeeded" if outcome.succeeded else "Failed"
    return status | {
        "conditions": condition.with_condition(
            status["conditions"], word, f"PyTorchJob{word}", outcome.message, now
        ),
        "completionTime": moment.timestamp(now),
    }


def change(old: Mapping[str, Any], new: Status, now: datetime) -> list[Action]:
    """The patch from `old` to `new`, and an event for each condition that came true."""
    patch = merge_patch.difference(old, new)
    if not patch:
        return []
    patch["lastReconcileTime"] = moment.timestamp(now)
    actions: list[Action] = [PatchStatus(patch)]
    before = {(c["type"], c["status"], c.get("reason")) for c in old.get("conditions") or ()}
    for c in new.get("conditions") or ():
        told = (c["type"], c["status"], c.get("reason")) in before
        if told or (c["type"] == "Running" and c["status"] == "False"):
            continue
        warning = c["type"] in ("Failed", "Restarting")
        actions.append(EmitEvent(c["reason"], c["message"], warning))
    return actions


def _failed(replica: Replica) -> bool:
    return replica.state in (State.RETRY, State.LOST, State.EVICTED)
