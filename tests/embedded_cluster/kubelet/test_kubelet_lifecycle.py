"""The decisions of a kubelet about a pod: starts, restarts, ends; and how it tells."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded_cluster.kubelet.container import Container, Running, Terminated, Waiting
from embedded_cluster.kubelet.lifecycle import Action, ContainerCommand, Lifecycle, PodEvent
from embedded_cluster.kubelet.pod_status import PodFailure, phase_of

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _pod(*containers: dict[str, Any], policy: str = "Always", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "restartPolicy": policy,
            "containers": list(containers) or [{"name": "main"}],
            **spec,
        },
    }


class World:
    """A pod, a clock, and processes that do as the test says."""

    def __init__(self, pod: dict[str, Any]) -> None:
        self.pod, self.now = pod, _NOW
        self.life = Lifecycle(pod, _NOW)
        self.running: dict[str, Container] = {}
        self.told: list[PodEvent] = []
        self.terminated: list[str] = []
        self.killed: list[str] = []
        self.starts: Counter[str] = Counter()

    def go(self, seconds: float = 0.0) -> World:
        """Lets time pass, and does at each moment what the lifecycle asks for at that moment."""
        end = self.now + timedelta(seconds=seconds)
        while True:
            for action in self.life.advance(self.now):
                self._do(action)
            if self.life.wake is None or self.life.wake > end:
                break
            self.now = max(self.life.wake, self.now)
        self.now = end
        return self

    def _do(self, action: Action) -> None:
        match action:
            case ContainerCommand("start", container):
                assert container.name not in self.running
                self.starts[container.name] += 1
                self.running[container.name] = container
                self.life.started(container, "process://1", self.now)
                self.go()
            case ContainerCommand("terminate", container):
                assert container.name in self.running
                self.terminated.append(container.name)
            case ContainerCommand(_, container):
                self.killed.append(container.name)
                self.end(container.name, 137)
            case PodEvent():
                self.told.append(action)

    def end(self, name: str, code: int) -> World:
        self.life.ended(self.running.pop(name), code, self.now)
        return self.go()

    @property
    def status(self) -> dict[str, Any]:
        return self.life.status(self.pod, "127.16.0.1", self.now)

    def container(self, index: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.status["containerStatuses"][index]
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found


def test_the_first_restart_is_at_once_and_the_next_ones_double_to_five_minutes() -> None:
    world = World(_pod()).go()
    pauses = []
    for _ in range(8):
        world.end("main", 1)
        begun = world.now
        while not world.running:
            assert world.container()["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            assert world.container()["lastState"]["terminated"]["exitCode"] == 1
            assert world.status["phase"] == "Running"
            world.go(1)
        pauses.append((world.now - begun).total_seconds())
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    assert world.container()["restartCount"] == 8
    text = "back-off 10s restarting failed container=main pod=p_ns(u)"
    assert PodEvent("BackOff", text, warning=True) in world.told


def test_ten_minutes_without_an_end_are_forgiven() -> None:
    world = World(_pod()).go()
    for _ in range(3):
        world.end("main", 1).go(20)
    assert world.running
    world.go(601).end("main", 1)
    assert world.running, "at once, as the first time"


@pytest.mark.parametrize(
    ("policy", "code", "restarts", "phase"),
    [
        ("Always", 0, True, "Running"),
        ("Always", 1, True, "Running"),
        ("OnFailure", 0, False, "Succeeded"),
        ("OnFailure", 1, True, "Running"),
        ("Never", 0, False, "Succeeded"),
        ("Never", 1, False, "Failed"),
    ],
)
def test_the_restart_policy_decides(policy: str, code: int, restarts: bool, phase: str) -> None:
    world = World(_pod(policy=policy)).go().end("main", code)
    assert bool(world.running) == restarts
    assert world.status["phase"] == phase
    assert world.life.over == (phase in ("Succeeded", "Failed"))


def test_init_containers_run_one_after_the_other() -> None:
    world = World(_pod(policy="Never", initContainers=[{"name": "a"}, {"name": "b"}])).go()
    assert set(world.running) == {"a"} and world.status["phase"] == "Pending"
    assert world.container()["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert world.condition("Initialized")["message"] == "containers with incomplete status: [a b]"
    world.end("a", 0)
    assert set(world.running) == {"b"}
    world.end("b", 0)
    assert set(world.running) == {"main"} and world.status["phase"] == "Running"
    assert world.condition("Initialized")["status"] == "True"
    assert [s["ready"] for s in world.status["initContainerStatuses"]] == [True, True]


def test_an_init_container_that_fails_is_repeated_unless_nothing_ever_is() -> None:
    world = World(_pod(initContainers=[{"name": "a"}])).go().end("a", 1)
    assert set(world.running) == {"a"} and world.status["phase"] == "Pending"
    world = World(_pod(policy="Never", initContainers=[{"name": "a"}])).go().end("a", 1)
    assert not world.running and world.status["phase"] == "Failed"


def test_an_end_is_sigterm_then_sigkill_and_the_shorter_grace_holds() -> None:
    world = World(_pod({"name": "a"}, {"name": "b"})).go()
    world.life.stop(30, world.now)
    world.go()
    assert world.terminated == ["a", "b"]
    world.end("a", 0)
    world.life.stop(5, world.now)
    world.go(4.9)
    assert not world.killed and not world.life.over
    world.go(0.2)
    assert world.killed == ["b"] and world.life.over
    assert world.status["phase"] == "Failed"


def test_two_seconds_are_the_least_grace_but_for_a_pod_that_is_gone() -> None:
    world = World(_pod()).go()
    world.life.stop(1, world.now)
    assert not world.go(1.9).killed
    assert world.go(0.2).killed
    world = World(_pod()).go()
    world.life.stop(0, world.now)
    assert world.go().killed


def test_a_pod_deleted_while_it_starts_starts_nothing_more() -> None:
    life = Lifecycle(_pod(initContainers=[{"name": "a"}]), _NOW)
    (start,) = life.advance(_NOW)
    assert isinstance(start, ContainerCommand) and start.what == "start"
    life.stop(30, _NOW)
    assert life.advance(_NOW) == [] and not life.over
    life.given_up(start.container)
    assert life.advance(_NOW) == [] and life.over


def test_a_pod_deleted_between_two_tries_has_its_latest_end_as_its_last() -> None:
    world = World(_pod()).go().end("main", 1).end("main", 7)
    assert "waiting" in world.container()["state"]
    world.life.stop(30, world.now)
    world.go()
    assert world.life.over and world.status["phase"] == "Failed"
    assert world.container()["state"]["terminated"]["exitCode"] == 7


def test_a_deadline_fails_the_pod_whatever_its_exit_code() -> None:
    world = World(_pod(activeDeadlineSeconds=60)).go(59)
    assert not world.terminated
    world.go(1.5)
    assert world.terminated == ["main"]
    world.end("main", 0)
    status = world.status
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    assert world.life.over


def test_an_eviction_says_so_in_a_condition() -> None:
    world = World(_pod()).go()
    world.life.fail(PodFailure("Evicted", "why", disruption=True), world.now)
    world.go().end("main", 143)
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "Evicted")
    assert world.condition("DisruptionTarget")["reason"] == "TerminationByKubelet"


def test_what_a_lost_kubelet_ran_has_ended_with_255_and_its_history_goes_on() -> None:
    first = World(_pod(policy="OnFailure")).go().end("main", 1)
    second = World(first.pod | {"status": first.status})
    assert second.status["startTime"] == first.status["startTime"]
    assert second.container()["state"]["terminated"]["exitCode"] == 255
    second.go()
    assert second.container()["restartCount"] == 2 and second.running
    never = World(_pod(policy="Never")).go()
    after = World(never.pod | {"status": never.status}).go()
    assert after.status["phase"] == "Failed" and not after.running


def test_what_cannot_be_made_is_tried_again_ever_more_seldom() -> None:
    life = Lifecycle(_pod(), _NOW)
    now, pauses = _NOW, []
    for _ in range(7):
        (start,) = life.advance(now)
        assert isinstance(start, ContainerCommand) and start.what == "start"
        life.not_made(start.container, "why", now)
        assert life.advance(now) == [] and life.wake is not None
        pauses.append((life.wake - now).total_seconds())
        now = life.wake
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    status = life.status(_pod(), "", now)
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.parametrize("mounting", [True, False])
def test_what_a_deleted_pod_lacks_is_not_told(mounting: bool) -> None:
    life = Lifecycle(_pod(), _NOW)
    (start,) = life.advance(_NOW)
    assert isinstance(start, ContainerCommand) and start.what == "start"
    life.stop(30, _NOW)
    assert life.not_made(start.container, "gone with it", _NOW, mounting=mounting) == []
    assert life.advance(_NOW) == [] and life.over


def test_conditions_keep_their_time_and_those_of_others() -> None:
    world = World(_pod()).go()
    world.pod["status"] = {"conditions": [{"type": "example.com/mine", "status": "True"}]}
    world.pod["status"] = first = world.status
    world.now += timedelta(seconds=5)
    assert world.status == first
    assert {c["type"]: c["status"] for c in first["conditions"]} == dict.fromkeys(
        (
            *("PodReadyToStartContainers", "Initialized", "Ready"),
            *("ContainersReady", "PodScheduled", "example.com/mine"),
        ),
        "True",
    )


def _ended(code: int) -> Container:
    return Container({"name": "c"}, state=Terminated(code, "", _NOW, _NOW))


_RUNNING = Container({"name": "c"}, state=Running(_NOW))
_WAITING = Container({"name": "c"})
_CRASHED = Container(
    {"name": "c"}, state=Waiting("CrashLoopBackOff"), last=Terminated(1, "Error", _NOW, _NOW)
)


@pytest.mark.parametrize(
    ("containers", "policy", "expected"),
    [
        ([_WAITING], "Always", "Pending"),
        ([_WAITING, _RUNNING], "Always", "Pending"),
        ([_RUNNING], "Never", "Running"),
        ([_RUNNING, _ended(1)], "Never", "Running"),
        ([_CRASHED], "OnFailure", "Running"),
        ([_ended(0)], "Always", "Running"),
        ([_ended(0), _ended(0)], "OnFailure", "Succeeded"),
        ([_ended(0), _ended(3)], "Never", "Failed"),
        ([_ended(0), _ended(3)], "OnFailure", "Running"),
    ],
)
def test_a_pods_phase_follows_from_its_containers(
    containers: list[Container], policy: str, expected: str
) -> None:
    assert phase_of([], containers, policy) == expected


_PODS = st.builds(
    lambda containers, inits, policy, deadline: _pod(
        *({"name": f"c{i}"} for i in range(containers)),
        policy=policy,
        initContainers=[{"name": f"i{i}"} for i in range(inits)],
        **({"activeDeadlineSeconds": deadline} if deadline else {}),
    ),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.sampled_from([None, 30]),
)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 400)),
        st.tuples(st.just("end"), st.sampled_from([0, 1, 137])),
        st.tuples(st.just("stop"), st.integers(0, 40)),
        st.tuples(st.just("evict"), st.just(0)),
    ),
    max_size=25,
)
_ORDER = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}


@given(_PODS, _EVENTS)
def test_whatever_happens_a_pod_goes_forward_and_ends_when_it_is_told_to(
    pod: dict[str, Any], events: list[tuple[str, Any]]
) -> None:
    world = World(pod).go()
    phase, restarts = "Pending", 0
    for what, value in events:
        match what:
            case "pass":
                world.go(value)
            case "end" if world.running:
                world.end(next(iter(world.running)), value)
            case "stop":
                world.life.stop(value, world.now)
                world.go()
            case "evict":
                world.life.fail(PodFailure("Evicted", ""), world.now)
                world.go()
        status = world.status
        statuses = [*status["containerStatuses"], *status.get("initContainerStatuses", ())]
        assert _ORDER[status["phase"]] >= _ORDER[phase], "a phase never goes back"
        assert phase not in ("Succeeded", "Failed") or status["phase"] == phase
        phase = status["phase"]
        count = sum(one["restartCount"] for one in statuses)
        assert count >= restarts
        restarts = count
        assert all(len(one["state"]) == 1 for one in statuses)
        running = {one["name"] for one in statuses if "running" in one["state"]}
        assert running == set(world.running), "the status says what runs, and nothing else"
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")["status"] == "True"
        assert not ready or all(one["ready"] for one in status["containerStatuses"])
        inits = {c["name"] for c in pod["spec"]["initContainers"]}
        assert not (running & inits and running - inits), "init containers first"
    world.life.stop(30, world.now)
    world.go(40)
    assert world.life.over and not world.running
    assert world.status["phase"] in ("Succeeded", "Failed")
    starts = world.starts.copy()
    world.go(1000)
    assert world.starts == starts, "nothing starts again"
