"""What is left of a job that has finished, or is suspended, and when it goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob import autoscaler, coordinator, event
from volcano_elastic.pytorchjob.action import (
    Action,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    Requeue,
)
from volcano_elastic.pytorchjob.observed import Observed, Replica, State

# An elastic job's pods end within moments of each other; one that hangs would keep its GPUs.
_TO_END_BY_ITSELF = timedelta(seconds=30)


def clean_up(
    job: PyTorchJob,
    view: Sequence[Replica],
    observed: Observed,
    completed: datetime,
    now: datetime,
) -> list[Action]:
    """Of a finished job: the autoscaler, pods by cleanPodPolicy, the PodGroup after the last
    active pod, the job after its time to live."""
    actions = autoscaler.remove(observed.autoscaler)
    policy = job.run_policy.clean_pod_policy
    live = [r for r in view if r.live]
    going: list[Replica] = []
    if policy == "All":
        going = [r for r in view if r.state is not State.LEAVING]
    elif policy == "Running":
        going = live
    elif job.elastic is not None:
        # A pod that never started has nothing to finish.
        late = now >= completed + _TO_END_BY_ITSELF
        going = [r for r in live if late or not r.running]
        if len(going) < len(live):
            actions.append(Requeue(completed + _TO_END_BY_ITSELF - now))
    actions += _pods(going)
    if policy != "None":
        actions += _services(observed)
    active = [r for r in view if r.live or r.state is State.LEAVING]
    if not active:
        actions += _podgroup(observed)
        actions += coordinator.remove(job, observed)
    return actions + expire(job.run_policy.ttl, completed, now)


def expire(ttl: timedelta | None, completed: datetime, now: datetime) -> list[Action]:
    """Of a finished job: itself, once its time to live is over."""
    if ttl is None:
        return []
    rest = completed + ttl - now
    return [DeleteJob() if rest <= timedelta(0) else Requeue(rest)]


def take_away(job: PyTorchJob, view: Sequence[Replica], observed: Observed) -> list[Action]:
    """Of a suspended job: everything. Pods on their way out still write their last checkpoint, so
    names and places stay until they are gone."""
    actions = autoscaler.remove(observed.autoscaler)
    actions += _pods([r for r in view if r.state is not State.LEAVING])
    if not view:
        actions += coordinator.remove(job, observed)
        actions += _services(observed)
        actions += _podgroup(observed)
    return actions


def _pods(going: Sequence[Replica]) -> list[Action]:
    actions: list[Action] = [DeletePod(r.name, r.uid) for r in going]
    return [*actions, *event.done("Delete", "Pod", [r.name for r in going])]


def _services(observed: Observed) -> list[Action]:
    going = [
        (s["metadata"]["name"], s["metadata"]["uid"])
        for s in observed.services
        if not s["metadata"].get("deletionTimestamp")
    ]
    actions: list[Action] = [DeleteService(name, uid) for name, uid in going]
    return [*actions, *event.done("Delete", "Service", [name for name, _ in going])]


def _podgroup(observed: Observed) -> list[Action]:
    if observed.podgroup is None or observed.podgroup["metadata"].get("deletionTimestamp"):
        return []
    meta = observed.podgroup["metadata"]
    return [
        DeletePodGroup(meta["name"], meta["uid"]),
        EmitEvent("JobTerminated", "Job has been terminated. Deleting PodGroup"),
        *event.done("Delete", "PodGroup", [meta["name"]]),
    ]
