"""Mode Live: pods that run follow what is recommended, where they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pytorchjob.test_at_start import WHY, asked, events, recommend, world
from tests.pytorchjob.world import Object, World
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.in_place import pending, resized


def running(**resources: Any) -> World:
    """A job in mode Live whose pods were made as the template says, as nothing was recommended."""
    w = world(BrainMode.LIVE, **resources)
    recommend(w)
    w.settle()
    w.run_all()
    w.settle()
    return w


def resizes(done: list[a.Action]) -> list[str]:
    return [one.name for one in done if isinstance(one, a.ResizePod)]


def test_running_pods_are_resized_once_and_later_ones_are_made_so() -> None:
    w = running()
    uids = {name: pod["metadata"]["uid"] for name, pod in w.pods.items()}
    recommend(w, Worker=("3", "20Gi"))
    done = w.settle()
    assert resizes(done) == ["a-worker-0", "a-worker-1"], "each once"
    expected = {
        "requests": {"cpu": "3", "memory": "20Gi"},
        "limits": {"nvidia.com/gpu": 1, "memory": "40Gi"},
    }
    assert asked(w, "a-worker-0") == asked(w, "a-worker-1") == expected
    assert uids == {name: pod["metadata"]["uid"] for name, pod in w.pods.items()}, "none went"
    assert events(done, "ResourcesApplied") == [
        f"Worker pods ask for 3 CPU, 20Gi instead of 8 CPU, 16Gi: {WHY}"
    ]
    w.grow(3)
    assert asked(w, "a-worker-2") == expected
    again = w.settle()
    assert not resizes(again) and not events(again, "ResourcesApplied")


@pytest.mark.parametrize(("quality", "memory"), [("Burstable", "4Gi"), ("Guaranteed", "16Gi")])
def test_a_running_pod_may_ask_for_less_memory_but_its_limit_stays(
    quality: str, memory: str
) -> None:
    w = running()
    for pod in w.pods.values():
        pod["status"]["qosClass"] = quality
    recommend(w, Worker=("2", "4Gi"))
    w.settle()
    assert asked(w)["requests"] == {"cpu": "2", "memory": memory}
    assert asked(w)["limits"]["memory"] == "32Gi"
    w.grow(3)
    assert asked(w, "a-worker-2")["requests"] == {"cpu": "2", "memory": "4Gi"}


@pytest.mark.parametrize("mode", [BrainMode.AT_START, BrainMode.RECOMMEND, None])
def test_in_other_modes_running_pods_stay_as_they_are(mode: BrainMode | None) -> None:
    w = running()
    w.brain_mode = mode
    recommend(w, Worker=("3", "20Gi"))
    assert not resizes(w.settle())
    assert asked(w)["requests"] == {"cpu": "8", "memory": "16Gi"}


@pytest.mark.parametrize("state", ["pending", "leaving", "best effort"])
def test_only_pods_that_run_and_stay_are_resized(state: str) -> None:
    w = running()
    pod = w.pods["a-worker-1"]
    if state == "pending":
        pod["status"]["phase"] = "Pending"
    elif state == "leaving":
        w.leaving("a-worker-1")
    else:
        pod["status"]["qosClass"] = "BestEffort"
    recommend(w, Worker=("3", "20Gi"))
    assert resizes(w.settle()) == ["a-worker-0"]


@pytest.mark.parametrize(
    ("current", "wanted", "target"),
    [
        ({}, {"requests": {"cpu": "1", "memory": "1Gi"}}, None),
        ({"requests": {"cpu": "1000m"}}, {"requests": {"cpu": "1", "memory": "1Gi"}}, None),
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}),
        (
            {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "1Gi", "x/y": 1}},
            {"requests": {"cpu": "2", "memory": "3Gi"}, "limits": {"memory": "3Gi", "x/y": 1}},
            {"requests": {"cpu": "2", "memory": "3Gi"}, "limits": {"memory": "3Gi", "x/y": 1}},
        ),
        (
            {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}},
            {"requests": {"memory": "3Gi"}, "limits": {"memory": "3Gi"}},
            None,
        ),
    ],
    ids=["nothing named", "equal amounts", "less CPU", "more memory", "less memory"],
)
def test_what_a_running_container_gets(
    current: Object, wanted: Object, target: Object | None
) -> None:
    assert resized(current, wanted) == target


def test_the_kubelets_reasons_are_told_once_each_with_the_pods() -> None:
    def pod(name: str, reason: str, message: str, status: str = "True") -> Object:
        found = {"type": "PodResizePending", "status": status, "reason": reason}
        conditions = [found | {"message": message}]
        return {"metadata": {"name": name}, "status": {"conditions": conditions}}

    found = pending(
        [
            pod("b", "Deferred", "Node didn't have enough resource: cpu"),
            pod("a", "Deferred", "Node didn't have enough resource: cpu"),
            pod("c", "Infeasible", "Node didn't have enough capacity: memory"),
            pod("d", "Infeasible", "x", status="False"),
            {"metadata": {"name": "e"}, "status": {}},
        ]
    )
    assert [(one.reason, one.message) for one in found] == [
        (
            "ResizeDeferred",
            "a, b: wait for room on their nodes to be resized; the kubelet: Node didn't have "
            "enough resource: cpu",
        ),
        (
            "ResizeInfeasible",
            "c: can't be resized where they are, and get it when they are made anew; the "
            "kubelet: Node didn't have enough capacity: memory",
        ),
    ]
    assert all(one.deduplicated for one in found)


def test_a_pod_that_was_put_off_is_not_resized_once_the_mode_is_at_start() -> None:
    w = running()
    w.pods["a-worker-1"]["status"]["phase"] = "Pending"
    recommend(w, Worker=("3", "20Gi"))
    w.settle()
    w.brain_mode = BrainMode.AT_START
    w.pods["a-worker-1"]["status"]["phase"] = "Running"
    assert not resizes(w.settle())
