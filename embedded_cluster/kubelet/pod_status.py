"""A pod's status from what its containers did: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from embedded_cluster.kubelet.container import Container, Running, Terminated, Waiting
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import Object

HOST_IP = "127.0.0.1"
_OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why the kubelet itself ended a pod, such as DeadlineExceeded or Evicted."""

    reason: str
    message: str
    disruption: bool = False
    """Says so in a condition DisruptionTarget too."""


def phase_of(
    init: list[Container], containers: list[Container], policy: str, *, stopped: bool = False
) -> Phase:
    """The kubelet's own rules; with `stopped` nothing starts again, whatever the policy."""
    for container in init:
        if container.succeeded:
            continue
        failed = isinstance(container.state, Terminated) and policy == "Never"
        return "Failed" if failed or (stopped and not container.running) else "Pending"
    ends = [c.state for c in containers if isinstance(c.state, Terminated)]
    if stopped and not any(c.running for c in containers):
        all_well = len(ends) == len(containers) and all(end.exit_code == 0 for end in ends)
        return "Succeeded" if all_well else "Failed"
    if any(isinstance(c.state, Waiting) and c.last is None for c in containers):
        return "Pending"
    if len(ends) < len(containers) or policy == "Always":
        return "Running"
    if all(end.exit_code == 0 for end in ends):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _state(state: Waiting | Running | Terminated) -> dict[str, Any]:
    said: dict[str, Any]
    match state:
        case Running():
            return {"running": {"startedAt": timestamp(state.started)}}
        case Waiting():
            kind, said = "waiting", {"reason": state.reason}
        case Terminated():
            kind = "terminated"
            said = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(state.started),
                "finishedAt": timestamp(state.finished),
                "containerID": state.container_id,
            }
    return {kind: said | ({"message": state.message} if state.message else {})}


_INITIALIZING = Waiting("PodInitializing")
# A container that had run, and of whose end nothing is known once the pod has stopped.
_LOST = "The container could not be located when the pod was terminated"


def _container_status(
    container: Container, started: datetime, now: datetime, *, initialized: bool, stopped: bool
) -> Object:
    state = container.state
    if state == Waiting() and not initialized:
        state = _INITIALIZING
    elif stopped and isinstance(state, Waiting) and initialized and not container.init:
        state = Terminated(137, "ContainerStatusUnknown", started, now, _LOST)
    image = container.spec.get("image", "")
    # By these the API server knows that this kubelet can resize.
    resources = container.spec.get("resources") or {}
    return {
        "name": container.name,
        "image": image,
        "imageID": image,
        "containerID": container.container_id,
        "ready": container.ready,
        "started": container.running,
        "restartCount": container.restarts,
        "state": _state(state),
        "lastState": _state(container.last) if container.last else {},
    } | ({"resources": resources} if container.running else {})


def _incomplete(word: str, containers: Iterable[Container]) -> str:
    return f"containers with {word} status: [{' '.join(c.name for c in containers)}]"


def _condition(kind: str, ok: bool, reason: str = "", message: str = "") -> Object:
    said = {"type": kind, "status": "True" if ok else "False", "lastProbeTime": None}
    why = {"reason": reason, "message": message}
    return said | {name: text for name, text in why.items() if text}


def _conditions(init: list[Container], containers: list[Container], phase: Phase) -> list[Object]:
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    unready = [c for c in containers if not c.ready]
    why = (over or "", "")
    if unready and not over:
        why = ("ContainersNotReady", _incomplete("unready", unready))
    ready = not (over or unready)
    pending = [c for c in init if not c.succeeded]
    initialized = _condition("Initialized", True, "PodCompleted" if phase == "Succeeded" else "")
    if pending and not _has_begun(containers):
        text = _incomplete("incomplete", pending)
        initialized = _condition("Initialized", False, "ContainersNotInitialized", text)
    return [
        _condition("PodReadyToStartContainers", not over),
        initialized,
        _condition("Ready", ready, *why),
        _condition("ContainersReady", ready, *why),
        _condition("PodScheduled", True),
    ]


def _has_begun(containers: list[Container]) -> bool:
    return any(not isinstance(c.state, Waiting) or c.last for c in containers)


def pod_status(
    pod: Object,
    init: list[Container],
    containers: list[Container],
    *,
    address: str,
    started: datetime,
    now: datetime,
    stopped: bool = False,
    failure: PodFailure | None = None,
) -> Object:
    """The whole `status` that a kubelet owns; conditions that others wrote are kept as they are."""
    policy = pod["spec"].get("restartPolicy", "Always")
    phase = phase_of(init, containers, policy, stopped=stopped)
    if failure and stopped:
        phase = "Failed"
    status = pod.get("status", {})
    old = {condition["type"]: condition for condition in status.get("conditions") or ()}
    conditions = _conditions(init, containers, phase)
    if failure and failure.disruption and "DisruptionTarget" not in old:
        target = _condition("DisruptionTarget", True, "TerminationByKubelet", failure.message)
        conditions.append(target)
    for one in conditions:
        before = old.get(one["type"], {})
        same = before.get("status") == one["status"] and before.get("lastTransitionTime")
        one["lastTransitionTime"] = same or timestamp(now)
    conditions += [one for kind, one in old.items() if kind not in _OURS]
    initialized = all(c.succeeded for c in init) or _has_begun(containers)

    def told(container: Container) -> Object:
        return _container_status(container, started, now, initialized=initialized, stopped=stopped)

    body: Object = {
        "phase": phase,
        "startTime": timestamp(started),
        "hostIP": HOST_IP,
        "hostIPs": [{"ip": HOST_IP}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "qosClass": status.get("qosClass", "BestEffort"),
        "conditions": conditions,
        "containerStatuses": [told(container) for container in containers],
    }
    if failure and phase == "Failed":
        body |= {"reason": failure.reason, "message": failure.message}
    if init:
        body["initContainerStatuses"] = [told(container) for container in init]
    return body
