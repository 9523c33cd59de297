"""One container's past and present, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from volcano_elastic.kube.resource import Object

_LOST = "its node, or the kubelet that ran it, was lost"


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
    container_id: str = ""


@dataclass(slots=True)
class Stop:
    """An end that was asked for: SIGTERM at once, SIGKILL when its time has come."""

    kill_at: datetime
    told: bool = False
    killed: bool = False


@dataclass(slots=True)
class Container:
    spec: Object
    init: bool = False
    state: Waiting | Running | Terminated = field(default_factory=Waiting)
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""
    starting: bool = False
    """Its start was asked for, and is neither done nor given up."""
    retry_at: datetime | None = None
    """It could not be made; the next try."""
    failures: int = 0
    """To be made, in a row."""
    back_off: float = 0.0
    """Seconds between its latest end and its next start; 0: none yet."""
    restarted: datetime | None = None
    stop: Stop | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def ready(self) -> bool:
        return self.succeeded if self.init else self.running

    @property
    def succeeded(self) -> bool:
        return isinstance(self.state, Terminated) and self.state.exit_code == 0

    @property
    def running(self) -> bool:
        return isinstance(self.state, Running)


def containers_of(pod: Object, now: datetime, *, init: bool) -> list[Container]:
    """Fresh ones; where an earlier kubelet ran the container, its history goes on.

    Its processes died with it, as those of a node that was switched off: a container runtime
    then knows no exit code, and says 255 and Unknown.
    """
    field_of_spec = "initContainers" if init else "containers"
    field_of_status = "initContainerStatuses" if init else "containerStatuses"
    statuses = {s["name"]: s for s in pod.get("status", {}).get(field_of_status) or ()}
    found = []
    for spec in pod["spec"].get(field_of_spec) or ():
        status = statuses.get(spec["name"], {})
        state, last = status.get("state", {}), status.get("lastState", {})
        container = Container(
            spec,
            init=init,
            last=_terminated(last["terminated"]) if "terminated" in last else None,
            restarts=int(status.get("restartCount", 0)),
            container_id=status.get("containerID", ""),
        )
        if "running" in state:
            started = datetime.fromisoformat(state["running"]["startedAt"])
            container.state = Terminated(
                255, "Unknown", started, now, _LOST, container.container_id
            )
        elif "terminated" in state:
            container.state = _terminated(state["terminated"])
        found.append(container)
    return found


def _terminated(state: Object) -> Terminated:
    return Terminated(
        int(state["exitCode"]),
        state.get("reason", ""),
        datetime.fromisoformat(state["startedAt"]),
        datetime.fromisoformat(state["finishedAt"]),
        state.get("message", ""),
        state.get("containerID", ""),
    )
