"""Mode Live: running pods are resized where they are (the pod's `resize` subresource, Kubernetes
1.33).

what its role's pods ask for changed ─► a running pod is patched to it, once: its spec has it then
less memory                          ─► of a Burstable pod its request; limits only grow, and who
                                         has more keeps it until it is made anew
Deferred, Infeasible                 ─► the kubelet's words, told once; it tries the first again
BestEffort, or refused by the API    ─► when the pod is made anew

The kubelet changes the control group and restarts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from volcano_elastic.api import pod as api_pod
from volcano_elastic.api import role_resources
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import CONTAINER, PyTorchJob
from volcano_elastic.api.role import labelled
from volcano_elastic.pytorchjob.action import EmitEvent, ResizePod
from volcano_elastic.pytorchjob.label import REPLICA_TYPE

DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
_MOST_NAMES = 8
_THEN = {
    DEFERRED: "wait for room on their nodes to be resized",
    INFEASIBLE: "can't be resized where they are, and get it when they are made anew",
}

Object = Mapping[str, Any]


def resizes(job: PyTorchJob, pods: Iterable[Object]) -> list[ResizePod]:
    """Return what brings the job's running pods to what its status has in force.

    Args:
        job: as it is parsed, so that its templates have that.
    """
    in_force = role_resources.in_force(job.status)
    found = []
    for pod in pods:
        role = labelled((pod["metadata"].get("labels") or {}).get(REPLICA_TYPE, ""))
        if role is None or role.name not in in_force or not _may_be_resized(pod):
            continue
        replica = job.replicas.get(role.name)
        wanted = (replica.container.get("resources") or {}) if replica is not None else {}
        containers, changed = [], False
        for container in pod["spec"]["containers"]:
            # Of a Guaranteed one request and limit have to stay the same.
            lower = (pod.get("status") or {}).get("qosClass") == "Burstable"
            target = resized(container.get("resources") or {}, wanted, lower=lower)
            if container["name"] == CONTAINER and target is not None:
                container, changed = {**container, "resources": target}, True
            containers.append(container)
        if changed:
            meta = pod["metadata"]
            found.append(ResizePod(meta["name"], meta["uid"], {"spec": {"containers": containers}}))
    return found


def resized(current: Object, wanted: Object, *, lower: bool = False) -> dict[str, Any] | None:
    """Return a running container's resources with the CPU that is wanted, and no less of a limit of
    memory than it has; None: they are so. What it doesn't name so far it isn't given.

    Args:
        lower: whether it may ask for less memory than it does.
    """
    target = {**current}
    for field in ("requests", "limits"):
        has, want = current.get(field) or {}, wanted.get(field) or {}
        if not has:
            continue
        new = {**has}
        if "cpu" in has and "cpu" in want and Cpu.parse(has["cpu"]) != Cpu.parse(want["cpu"]):
            new["cpu"] = want["cpu"]
        if "memory" in has and "memory" in want:
            before, then = Bytes.parse(has["memory"]), Bytes.parse(want["memory"])
            if then > before or (then < before and lower and field == "requests"):
                new["memory"] = want["memory"]
        target[field] = new
    return None if target == dict(current) else target


def pending(pods: Iterable[Object]) -> list[EmitEvent]:
    """Return an event for each of the kubelet's reasons not to resize pods yet."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        found = api_pod.condition(pod, "PodResizePending")
        if found is None or found.get("status") != "True" or found.get("reason") not in _THEN:
            continue
        said = (str(found["reason"]), str(found.get("message") or "it says no more"))
        by_reason.setdefault(said, []).append(pod["metadata"]["name"])
    events = []
    for (reason, why), names in sorted(by_reason.items()):
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        listed = ", ".join(sorted(names)[:_MOST_NAMES]) + more
        message = f"{listed}: {_THEN[reason]}; the kubelet: {why[:300]}"
        events.append(EmitEvent(f"Resize{reason}", message, True, deduplicated=True))
    return events


def _may_be_resized(pod: Object) -> bool:
    status = pod.get("status") or {}
    return (
        status.get("phase") == "Running"
        and not pod["metadata"].get("deletionTimestamp")
        # Its quality of service may not change.
        and status.get("qosClass") != "BestEffort"
    )
