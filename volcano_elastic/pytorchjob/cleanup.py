"""What is left of a job that has finished, or is suspended, and when it goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.action import (
    Action,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
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
    """Of a finished job: pods by cleanPodPolicy, the PodGroup after the last active pod, the job
    after its time to live."""
    actions: list[Action] = []
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
    actions += [DeletePod(r.name, r.uid) for r in going]
    if policy != "None":
        actions += _services(observed)
    active = [r for r in view if r.live or r.state is State.LEAVING]
    if observed.podgroup is not None and not active:
        actions.append(_podgroup(observed.podgroup))
    if job.run_policy.ttl is not None:
        rest = completed + job.run_policy.ttl - now
        actions.append(DeleteJob() if rest <= timedelta(0) else Requeue(rest))
    return actions


def take_away(view: Sequence[Replica], observed: Observed) -> list[Action]:
    """Of a suspended job: everything."""
    actions: list[Action] = [DeletePod(r.name, r.uid) for r in view if r.state is not State.LEAVING]
    actions += _services(observed)
    if observed.podgroup is not None:
        actions.append(_podgroup(observed.podgroup))
    return actions


def _services(observed: Observed) -> list[Action]:
    return [
        DeleteService(s["metadata"]["name"], s["metadata"]["uid"])
        for s in observed.services
        if not s["metadata"].get("deletionTimestamp")
    ]


def _podgroup(podgroup: object) -> DeletePodGroup:
    assert isinstance(podgroup, dict)
    return DeletePodGroup(podgroup["metadata"]["name"], podgroup["metadata"]["uid"])
