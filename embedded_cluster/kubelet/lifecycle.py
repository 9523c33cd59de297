"""A pod's life, decided: what its containers did and the time in, what to do next out.

No I/O and no clock. The edge (pod_worker.py) tells it what happened, carries out the actions that
`advance` returns, writes `status`, and comes back at `wake` or when something else has happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from embedded_cluster.kubelet.container import (
    Container,
    Running,
    Stop,
    Terminated,
    Waiting,
    containers_of,
)
from embedded_cluster.kubelet.pod_status import PodFailure, phase_of, pod_status
from volcano_elastic.kube.resource import Object

# A container whose grace is over sooner would have no chance to end by itself.
_LEAST_GRACE = timedelta(seconds=2)
# As multiples of the first back-off: the longest one, and a run after which it begins anew.
_LONGEST, _FORGIVEN = 30, 60
_FIRST_RETRY, _LAST_RETRY = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """To terminate is SIGTERM."""

    what: Literal["start", "terminate", "kill"]
    container: Container


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event about the pod."""

    reason: str
    message: str
    warning: bool = False


Action = ContainerCommand | PodEvent


class Lifecycle:
    """Decides the next actions for one pod, by uid. Times are datetimes of one clock.

    Args:
        pod: as it was when this kubelet first saw it; an earlier life is read from its status.
        back_off: seconds; between restarts: none before the first, then so many, doubling.
    """

    def __init__(self, pod: Object, now: datetime, back_off: float = 10.0) -> None:
        self._pod = pod
        self._spec = pod["spec"]
        self._policy = self._spec.get("restartPolicy", "Always")
        self._back_off = back_off
        status = pod.get("status", {})
        started = status.get("startTime")
        self.start_time = datetime.fromisoformat(started) if started else now
        self.init = containers_of(pod, now, init=True)
        self.containers = containers_of(pod, now, init=False)
        self._all = [*self.init, *self.containers]
        self.finished = status.get("phase") in ("Succeeded", "Failed")
        """Ended under an earlier kubelet, or by somebody else's failure: nothing is left to do."""
        self._kill_at: datetime | None = None
        """Set while the pod is stopping."""
        self._failure: PodFailure | None = None
        self.wake: datetime | None = None
        """When `advance` has something to do next, if nothing happens before."""

    @property
    def stopping(self) -> bool:
        return self._kill_at is not None

    @property
    def quiet(self) -> bool:
        """No process of it runs, or is about to."""
        return not any(c.running or c.starting for c in self._all)

    @property
    def over(self) -> bool:
        """Nothing runs, nor ever will again."""
        if self.finished:
            return True
        return self.quiet and (self.stopping or self._phase() in ("Succeeded", "Failed"))

    # What happened

    def stop(self, grace: float, now: datetime) -> None:
        """The pod is to end within `grace` seconds; the earliest of several ends holds."""
        kill_at = now + timedelta(seconds=grace)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        for container in self._all:
            if container.stop is not None:
                container.stop.kill_at = min(container.stop.kill_at, kill_at)

    def fail(self, failure: PodFailure, now: datetime) -> None:
        """The pod is Failed from now on, whatever its containers' exit codes."""
        if self._failure is None and not self.over:
            self._failure = failure
            self.stop(self._grace(), now)

    def started(self, container: Container, container_id: str, now: datetime) -> None:
        container.starting = False
        self._begin(container, now)
        container.container_id = container_id
        container.state = Running(now)

    def not_made(
        self, container: Container, message: str, now: datetime, *, mounting: bool = False
    ) -> list[PodEvent]:
        """It, or with `mounting` a volume of it, can't be made as things are; it is tried again."""
        container.starting = False
        if self.stopping:
            # Deleted along with what it reads.
            return []
        what = Waiting() if mounting else Waiting("CreateContainerConfigError", message)
        self._wait(container, what)
        seconds = min(_FIRST_RETRY * 2.0**container.failures, _LAST_RETRY)
        container.failures += 1
        container.retry_at = now + timedelta(seconds=seconds)
        if mounting:
            return [PodEvent("FailedMount", message, warning=True)]
        return [self._failed(container, message)]

    def not_started(self, container: Container, message: str, now: datetime) -> list[PodEvent]:
        """Its command can't be run, which counts as its end."""
        container.starting = False
        self._begin(container, now)
        container.state = Terminated(127, "StartError", now, now, message)
        return [self._failed(container, message)]

    @staticmethod
    def _failed(container: Container, message: str) -> PodEvent:
        return PodEvent("Failed", f"container {container.name}: {message}", warning=True)

    def given_up(self, container: Container) -> None:
        """Its start was not carried out, since the pod is stopping."""
        container.starting = False

    def ended(
        self,
        container: Container,
        code: int,
        now: datetime,
        *,
        oom: bool = False,
        message: str = "",
    ) -> None:
        assert isinstance(container.state, Running)
        reason = "OOMKilled" if oom else "Completed" if code == 0 else "Error"
        started = container.state.started
        container.state = Terminated(code, reason, started, now, message, container.container_id)
        container.stop = None

    def _grace(self) -> float:
        """Return the pod's own grace in seconds."""
        named = self._spec.get("terminationGracePeriodSeconds")
        return 30.0 if named is None else float(named)

    @staticmethod
    def _begin(container: Container, now: datetime) -> None:
        container.failures = 0
        container.retry_at = None
        ended = container.state if isinstance(container.state, Terminated) else container.last
        if ended is not None:
            container.restarts += 1
            container.last = ended
            container.restarted = now

    @staticmethod
    def _wait(container: Container, state: Waiting) -> None:
        if isinstance(container.state, Terminated):
            container.last = container.state
        container.state = state

    @staticmethod
    def _stop(container: Container, grace: timedelta, now: datetime) -> None:
        # Only a pod that is gone already has none at all.
        container.stop = Stop(now + (max(grace, _LEAST_GRACE) if grace else grace))

    # What to do

    def advance(self, now: datetime) -> list[Action]:
        """Each action is asked for once. Sets `wake`."""
        self.wake = None
        if self.finished:
            return []
        actions: list[Action] = []
        limit = self._spec.get("activeDeadlineSeconds")
        if limit is not None and self._failure is None and not self.over:
            end = self.start_time + timedelta(seconds=limit)
            if self._reached(end, now):
                message = "Pod was active on the node longer than the specified deadline"
                self.fail(PodFailure("DeadlineExceeded", message), now)
                actions.append(PodEvent("DeadlineExceeded", message))
        if self.stopping:
            self._stop_some(now)
        else:
            for container in self._wanted():
                actions += self._start(container, now)
        for container in self._all:
            if container.running:
                actions += self._attend(container, now)
        return actions

    def _reached(self, moment: datetime, now: datetime) -> bool:
        if now >= moment:
            return True
        self.wake = moment if self.wake is None else min(self.wake, moment)
        return False

    def _wanted(self) -> list[Container]:
        """Those that may run: init containers one after the other, then all others."""
        if self._phase() in ("Succeeded", "Failed"):
            return []
        pending = next((container for container in self.init if not container.succeeded), None)
        return self.containers if pending is None else [pending]

    def _start(self, container: Container, now: datetime) -> list[Action]:
        if container.starting or container.running:
            return []
        ended = container.state
        if isinstance(ended, Terminated):
            if not self._restarts(container, ended):
                return []
            ran = ended.finished - (container.restarted or ended.started)
            if ran.total_seconds() > self._back_off * _FORGIVEN:
                container.back_off = 0.0
            due = ended.finished + timedelta(seconds=container.back_off)
            if now < due:
                meta = self._pod["metadata"]
                message = (
                    f"back-off {container.back_off:g}s restarting failed container="
                    f"{container.name} pod={meta['name']}_{meta['namespace']}({meta['uid']})"
                )
                self._wait(container, Waiting("CrashLoopBackOff", message))
                container.retry_at = due
                self._reached(due, now)
                return [PodEvent("BackOff", message, warning=True)]
        if container.retry_at is not None and not self._reached(container.retry_at, now):
            return []
        if not container.failures and (isinstance(ended, Terminated) or container.last):
            longest = self._back_off * _LONGEST
            container.back_off = min(container.back_off * 2 or self._back_off, longest)
        container.starting = True
        return [ContainerCommand("start", container)]

    def _restarts(self, container: Container, ended: Terminated) -> bool:
        policy = self._policy
        if container.init and policy == "Always":
            # An init container that succeeded is done, even where the others always restart.
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)

    def _stop_some(self, now: datetime) -> None:
        assert self._kill_at is not None
        for container in self._all:
            if isinstance(container.state, Waiting) and container.last and not container.starting:
                # It was to start again; now its latest end is its last.
                container.state = container.last
        for container in self._all:
            if container.running and container.stop is None:
                self._stop(container, max(self._kill_at - now, timedelta()), now)

    def _attend(self, container: Container, now: datetime) -> list[Action]:
        """Carries on its stop."""
        stop = container.stop
        if stop is None:
            return []
        end: list[Action] = []
        if not stop.told:
            stop.told = True
            end = [
                PodEvent("Killing", f"Stopping container {container.name}"),
                ContainerCommand("terminate", container),
            ]
        if not stop.killed and self._reached(stop.kill_at, now):
            stop.killed = True
            end.append(ContainerCommand("kill", container))
        return end

    # What it amounts to

    def _phase(self) -> str:
        stopped = self.stopping and self.quiet
        return phase_of(self.init, self.containers, self._policy, stopped=stopped)

    def status(self, pod: Object, address: str, now: datetime) -> Object:
        """For the pod as it is now: conditions that others wrote are kept."""
        return pod_status(
            pod,
            self.init,
            self.containers,
            address=address,
            started=self.start_time,
            now=now,
            stopped=self.stopping and self.quiet,
            failure=self._failure,
        )
