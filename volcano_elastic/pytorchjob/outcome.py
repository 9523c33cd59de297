"""Whether a job is over.

Succeeded  the Master succeeded; without one: every Worker of a fixed job, any of an elastic one
Failed     deadline or backoff limit passed; a Master or worker 0 lost for good; any Worker of
           a fixed job; so many of an elastic one that fewer than min can go on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from volcano_elastic.api.pytorchjob import MASTER, WORKER, PyTorchJob
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.size import Size


@dataclass(frozen=True, slots=True)
class Outcome:
    succeeded: bool
    message: str


def outcome(
    job: PyTorchJob, view: Sequence[Replica], size: Size | None, restarts: int, now: datetime
) -> Outcome | None:
    """None while it goes on; `restarts` is how many there were so far."""
    if _succeeded(job, view):
        if job.master is not None:
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
    vital = [r for r in lost if size is None or r.kind == MASTER or r.first]
    if vital or (lost and size is not None and not size.enough):
        kind = (vital or lost)[0].kind
        names = ", ".join(
            f"{r.name} ({'no exit code' if r.exit_code is None else f'exit code {r.exit_code}'})"
            for r in lost
        )
        return Outcome(
            False,
            f"PyTorchJob {job.name} is failed because "
            f"{sum(r.kind == kind for r in lost)} {kind} replica(s) failed. {names}",
        )
    return None


def _succeeded(job: PyTorchJob, view: Sequence[Replica]) -> bool:
    done = [r for r in view if r.state is State.SUCCEEDED]
    if job.master is not None:
        return any(r.kind == MASTER for r in done)
    if job.elastic is not None:
        return bool(done)
    worker = job.replicas[WORKER]
    return len({r.index for r in done if r.index < worker.replicas}) == worker.replicas
