"""From what there is to what there should be, as actions in stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volcano_elastic.podgroup import podgroup
from volcano_elastic.pytorchjob import autoscaler, coordinator, event, status
from volcano_elastic.pytorchjob.action import (
    Action,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    PatchPod,
    PatchPodGroup,
    Requeue,
)
from volcano_elastic.pytorchjob.desired import KEEP, Desired, Keep, Services
from volcano_elastic.pytorchjob.label import owner_reference
from volcano_elastic.pytorchjob.service import ServiceTemplate
from volcano_elastic.pytorchjob.view import View

Object = dict[str, Any]


def difference(desired: Desired, view: View) -> list[Action]:
    """Return what makes a job what it should be; nothing but events and requeues if it is."""
    job, observed = view.job, view.observed
    actions: list[Action] = [*desired.events]
    actions += status.change(job.status, desired.status, view.now, burst=desired.burst)
    actions += _podgroup(desired.podgroup, view)
    if desired.autoscaler is not KEEP:
        actions += autoscaler.difference(job, desired.autoscaler, observed.autoscaler)
    if desired.coordinator is not KEEP:
        actions += coordinator.difference(
            job, observed, wanted=desired.coordinator, starting=bool(desired.create)
        )
    actions += _pods(desired)
    if desired.services is not KEEP:
        actions += _services(desired.services, view)
    if not desired.job:
        actions.append(DeleteJob())
    actions += [Requeue(after) for after in desired.look_again]
    return actions


def _podgroup(wanted: Object | Keep | None, view: View) -> list[Action]:
    job, found = view.job, view.observed.podgroup
    if wanted is KEEP:
        return []
    if wanted is None:
        return _without_podgroup(found)
    if found is None:
        return [CreatePodGroup(podgroup.build(job, owner_reference(job), wanted))]
    patch = podgroup.patch(found, wanted)
    return [] if patch is None else [PatchPodGroup(job.name, patch)]


def _without_podgroup(found: Mapping[str, Any] | None) -> list[Action]:
    if found is None or found["metadata"].get("deletionTimestamp"):
        return []
    meta = found["metadata"]
    return [
        DeletePodGroup(meta["name"], meta["uid"]),
        EmitEvent("JobTerminated", "Job has been terminated. Deleting PodGroup"),
        *event.done("Delete", "PodGroup", [meta["name"]]),
    ]


def _pods(desired: Desired) -> list[Action]:
    leave, create = desired.leave, desired.create
    return [
        *(
            PatchPod(name, {"metadata": {"annotations": dict(given)}})
            for name, given in desired.annotations.items()
        ),
        *desired.resize,
        *(DeletePod(pod.name, pod.uid, pod.grace) for pod in leave),
        *(CreatePod(body) for body in create),
        *event.done("Create", "Pod", [body["metadata"]["name"] for body in create]),
        *event.done("Delete", "Pod", [pod.name for pod in leave if pod.announced]),
    ]


def _services(wanted: Services, view: View) -> list[Action]:
    job, found = view.job, view.observed.services
    templates = {spec.role: ServiceTemplate(job, spec.role) for spec in job.replicas.values()}
    present = {service["metadata"]["name"] for service in found}
    missing = [
        templates[role].service(index)
        for name, (role, index) in wanted.needed.items()
        if name not in present
    ]
    surplus = _surplus(wanted, found)
    return [
        *(CreateService(body) for body in missing),
        *(DeleteService(name, uid) for name, uid in surplus),
        *event.done("Create", "Service", [body["metadata"]["name"] for body in missing]),
        *event.done("Delete", "Service", [name for name, _ in surplus]),
    ]


def _surplus(wanted: Services, found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return name and uid of the services that are neither needed nor held."""
    return [
        (service["metadata"]["name"], service["metadata"]["uid"])
        for service in found
        if service["metadata"]["name"] not in wanted.needed
        and service["metadata"]["name"] not in wanted.held
        and not service["metadata"].get("deletionTimestamp")
    ]
