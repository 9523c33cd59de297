"""Decides whether a job is over.

Succeeded  the leader succeeded; without one: any pod of an elastic job's elastic role, all pods of
           a fixed job's roles that train
Failed     deadline or backoff limit passed; of a fixed job, any pod lost for good; of an elastic
           one, a pod of a vital role, or pod 0 where the others don't go on without it, or so
           many that fewer than min can go on

Under our own back end one pod speaks for all: none exits with 0 before the processes of all workers
of its round have ended with 0, as the coordinator says, but a pod that is being deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.size import Size


@dataclass(frozen=True, slots=True)
class Outcome:
    succeeded: bool
    message: str


def outcome(
    job: PyTorchJob,
    view: Sequence[Replica],
    size: Size | None,
    restarts: int,
    now: datetime,
    *,
    without_first: bool = False,
) -> Outcome | None:
    """Return how the job ended; None while it goes on.

    Args:
        restarts: how many there were so far.
        without_first: the others go on without pod 0.
    """
    if _succeeded(job, view):
        if job.leader is not None:
            return Outcome(True, f"PyTorchJob {job.name} is successfully completed.")
        return Outcome(True, f"PyTorchJob {job.key} successfully completed.")
    limit = job.run_policy.backoff_limit
    if limit is not None and restarts > 0 and restarts >= limit:
        return Outcome(
            False, f"Job {job.name} has failed because it has reached the specified backoff limit"
        )
    start, deadline = job.started, job.run_policy.active_deadline
    if start is not None and deadline is not None and now >= start + deadline:
        return Outcome(
            False,
            f"Job {job.name} has failed because it was active longer than specified deadline",
        )
    lost = [r for r in view if r.state is State.LOST]
    vital = [r for r in lost if size is None or r.role.vital or (r.first and not without_first)]
    if vital or (lost and size is not None and not size.enough):
        role = (vital or lost)[0].role
        names = ", ".join(
            f"{r.name} ({'no exit code' if r.exit_code is None else f'exit code {r.exit_code}'})"
            for r in lost
        )
        return Outcome(
            False,
            f"PyTorchJob {job.name} is failed because "
            f"{sum(r.role is role for r in lost)} {role.name} replica(s) failed. {names}",
        )
    return None


def _succeeded(job: PyTorchJob, view: Sequence[Replica]) -> bool:
    done = [r for r in view if r.state is State.SUCCEEDED]
    if job.leader is not None:
        return any(r.role.leads for r in done)
    if job.elastic is not None:
        return any(r.role.elastic for r in done)
    specs = list(job.replicas.values())
    return all(
        len({r.index for r in done if r.role is spec.role and r.index < spec.replicas})
        == spec.replicas
        for spec in [s for s in specs if s.role.trains] or specs
    )
