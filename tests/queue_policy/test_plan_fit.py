"""Which nodes have room for which pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.queue_policy.world import (
    NOW,
    by_job,
    gpus,
    job,
    node,
    pods,
    world,
)
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Requirement


def test_idle_gpus_on_a_node_without_cpus_are_no_room() -> None:
    starved = replace(node("n2"), allocatable=gpus(2, cpus=1))
    a = job("a", 1, 4, pod_requests=gpus(1, cpus=4))
    made = plan(world([node("n1", 1), starved], [a], pods(a, "n1")), NOW)
    assert made.unchanged["ns/a"] == NoChange(Reason.NO_ROOM, Reason.AT_MIN)


@pytest.mark.parametrize(
    "bad",
    [
        {"ready": False},
        {"unschedulable": True},
        {"taints": (("dedicated", "x", "NoSchedule"),)},
        {"allocatable": {"nvidia.com/gpu": 2000, "pods": 0}},
    ],
)
def test_a_node_that_takes_no_pods_is_no_room(bad: dict[str, object]) -> None:
    a = job("a", 1, 4)
    made = plan(world([node("n1", 1), node("n2", **bad)], [a], pods(a, "n1")), NOW)
    assert made.decisions == ()


def test_a_tolerated_taint_is_no_obstacle() -> None:
    a = job("a", 1, 4, tolerations=({"key": "dedicated", "operator": "Exists"},))
    tainted = node("n2", taints=(("dedicated", "x", "NoSchedule"),))
    assert by_job(plan(world([node("n1", 1), tainted], [a], pods(a, "n1")), NOW))["a"].new == 3


def test_a_taint_of_another_value_is_an_obstacle() -> None:
    tainted = replace(node("n1", 4), taints=(("team", "x", "NoSchedule"),))
    for value, started in (("x", {"ns/a"}), ("y", set())):
        a = job("a", 1, 1, tolerations=({"key": "team", "value": value},))
        assert plan(world([tainted], [a]), NOW).admitted == started


def test_not_in_is_met_where_the_label_is_missing() -> None:
    a = job("a", 1, 1, node_affinity=((Requirement("zone", "NotIn", ("x",)),),))
    assert plan(world([node("n1")], [a]), NOW).admitted == {"ns/a"}
    assert plan(world([node("n1", labels={"zone": "x"})], [a]), NOW).admitted == set()
