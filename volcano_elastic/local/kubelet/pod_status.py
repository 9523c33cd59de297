"""A pod's status from what its containers did: pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import Object

HOST_IP = "127.0.0.1"
BACK_OFF_START = 1.0
BACK_OFF_CAP = 30.0
# A container that ran this long starts again with the shortest back-off.
BACK_OFF_FORGIVEN = 60.0
_OURS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    started: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started: datetime
    finished: datetime
    message: str = ""


@dataclass(slots=True)
class ContainerRecord:
    """One container's past and present."""

    name: str
    image: str = ""
    state: Waiting | Running | Terminated = field(default_factory=Waiting)
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""


def terminated_reason(exit_code: int) -> str:
    return "Completed" if exit_code == 0 else "Error"


def restart_delay(policy: str, exit_code: int, quick_ends: int) -> float | None:
    """Seconds until a container that ended starts again, or None if it stays ended.

    Args:
        quick_ends: how many times in a row it ended before BACK_OFF_FORGIVEN, this time included.
    """
    if policy == "Never" or (policy == "OnFailure" and exit_code == 0):
        return None
    return float(min(BACK_OFF_START * 2.0 ** max(quick_ends - 1, 0), BACK_OFF_CAP))


Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


def phase_of(
    init: list[ContainerRecord],
    containers: list[ContainerRecord],
    policy: str,
    *,
    stopped: bool = False,
) -> Phase:
    """The kubelet's own rules; with `stopped` nothing starts again, whatever the policy."""
    for record in init:
        if isinstance(record.state, Terminated) and record.state.exit_code == 0:
            continue
        failed = isinstance(record.state, Terminated) and (policy == "Never" or stopped)
        if failed or (stopped and not isinstance(record.state, Running)):
            return "Failed"
        return "Pending"
    ends = [record.state for record in containers if isinstance(record.state, Terminated)]
    if stopped and not any(isinstance(record.state, Running) for record in containers):
        done = len(ends) == len(containers) and all(end.exit_code == 0 for end in ends)
        return "Succeeded" if done else "Failed"
    if any(isinstance(r.state, Waiting) and r.last is None for r in containers):
        return "Pending"
    if len(ends) < len(containers) or policy == "Always":
        return "Running"
    if all(end.exit_code == 0 for end in ends):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _state(state: Waiting | Running | Terminated, container_id: str) -> dict[str, Any]:
    match state:
        case Waiting():
            waiting = {"reason": state.reason}
            return {"waiting": waiting | ({"message": state.message} if state.message else {})}
        case Running():
            return {"running": {"startedAt": timestamp(state.started)}}
        case Terminated():
            ended: dict[str, Any] = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(state.started),
                "finishedAt": timestamp(state.finished),
                "containerID": container_id,
            }
            return {"terminated": ended | ({"message": state.message} if state.message else {})}


def _container_status(record: ContainerRecord, *, init: bool) -> Object:
    state = record.state
    done = isinstance(state, Terminated) and state.exit_code == 0
    return {
        "name": record.name,
        "image": record.image,
        "imageID": "",
        "containerID": record.container_id,
        "ready": done if init else isinstance(state, Running),
        "started": isinstance(state, Running),
        "restartCount": record.restarts,
        "state": _state(state, record.container_id),
        "lastState": _state(record.last, record.container_id) if record.last else {},
    }


def _condition(
    kind: str, ok: bool, reason: str, old: dict[str, Object], now: datetime
) -> dict[str, Any]:
    status = "True" if ok else "False"
    before = old.get(kind, {})
    same = before.get("status") == status and before.get("lastTransitionTime")
    condition = {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": before["lastTransitionTime"] if same else timestamp(now),
    }
    return condition if ok or not reason else condition | {"reason": reason}


def pod_status(
    pod: Object,
    init: list[ContainerRecord],
    containers: list[ContainerRecord],
    *,
    address: str,
    started: datetime,
    now: datetime,
    stopped: bool = False,
) -> Object:
    """The whole `status` a kubelet owns; conditions others wrote are kept as they are."""
    policy = pod["spec"].get("restartPolicy", "Always")
    phase = phase_of(init, containers, policy, stopped=stopped)
    old = {condition["type"]: condition for condition in pod["status"].get("conditions") or []}
    initialized = all(
        isinstance(record.state, Terminated) and record.state.exit_code == 0 for record in init
    )
    ready = phase == "Running" and all(isinstance(r.state, Running) for r in containers)
    unready = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    if phase == "Failed":
        unready = "PodFailed"
    conditions = [
        _condition("PodScheduled", True, "", old, now),
        _condition("Initialized", initialized, "ContainersNotInitialized", old, now),
        _condition("ContainersReady", ready, unready, old, now),
        _condition("Ready", ready, unready, old, now),
    ]
    conditions += [condition for kind, condition in old.items() if kind not in _OURS]
    status: Object = {
        "phase": phase,
        "startTime": timestamp(started),
        "hostIP": HOST_IP,
        "hostIPs": [{"ip": HOST_IP}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "qosClass": pod["status"].get("qosClass", "BestEffort"),
        "conditions": conditions,
        "containerStatuses": [_container_status(record, init=False) for record in containers],
    }
    if init:
        status["initContainerStatuses"] = [_container_status(r, init=True) for r in init]
    return status
