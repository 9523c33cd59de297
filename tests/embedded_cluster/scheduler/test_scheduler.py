"""Whom the scheduler places where, as sentences: tables over the pure session."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from embedded_cluster.scheduler.configuration import DEFAULT
from tests.embedded_cluster.scheduler import volcano_scenario
from tests.embedded_cluster.scheduler.world import GPU, Cluster, cluster


def test_a_gang_that_fits_is_placed_whole_and_runs() -> None:
    c = cluster(2, 2)
    c.gang("a", 4)
    c.settle()
    assert c.members_of("a") == [0, 1, 2, 3]
    assert c.phase("a") == "Running"
    assert c.condition("a", "Scheduled")["status"] == "True"
    assert (c.gpus("default"), c.gpus("root")) == ("4", "4")


def test_a_gang_that_does_not_fit_binds_nothing() -> None:
    c = cluster(3)
    c.gang("a", 4)
    c.settle()
    assert c.members_of("a") == []
    assert c.phase("a") == "Pending"
    assert f"too little {GPU}" in c.condition("a", "Unschedulable")["message"]


def test_a_gang_that_fits_the_queue_but_no_node_binds_nothing() -> None:
    c = cluster(2, 2)
    c.gang("a", 2)
    c.gang("b", 1, gpu=2)
    c.nodes["n2"]["status"]["allocatable"] |= {GPU: "1"}
    c.node("n3", 1)
    del c.podgroups["default/b"]["spec"]["minResources"]
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([0, 1], [])
    assert c.phase("b") == "Inqueue"
    message = c.pods["default/b-worker-0"]["status"]["conditions"][0]["message"]
    assert message == f"0/3 nodes are unavailable: 3 Insufficient {GPU}."


def test_surplus_fills_what_is_left_lowest_index_first() -> None:
    c = cluster(3)
    c.gang("a", 2, 5)
    c.settle()
    assert c.members_of("a") == [0, 1, 2]


def test_indexes_count_as_numbers() -> None:
    c = cluster(3)
    c.gang("a", 1, 12)
    c.settle()
    assert c.members_of("a") == [0, 1, 2]


def test_minimums_come_before_surplus_in_a_queue() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.gang("b", 2, 4)
    c.settle()
    assert c.members_of("b") == [0, 1]
    assert c.members_of("a") == [0, 1]
    assert c.evicted == []


def test_a_low_priority_minimum_comes_before_high_priority_surplus() -> None:
    c = cluster(4)
    c.classes = {"high": 100}
    c.gang("a", 1, 4, priority="high")
    c.gang("b", 2)
    c.settle()
    assert (c.members_of("a"), c.members_of("b"), c.evicted) == ([0, 1], [0, 1], [])


def test_among_minimums_the_higher_priority_comes_first() -> None:
    c = cluster(2)
    c.classes = {"high": 100}
    c.gang("a", 2)
    c.gang("b", 2, priority="high")
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([], [0, 1])


def test_surplus_grows_in_turns() -> None:
    c = cluster(6)
    c.gang("a", 1, 6)
    c.gang("b", 1, 6)
    c.settle()
    assert (len(c.members_of("a")), len(c.members_of("b"))) == (3, 3)


def test_without_the_action_enqueue_allocate_lets_gangs_in() -> None:
    c = cluster(2, conf=DEFAULT.read_text().replace("enqueue, ", ""))
    c.gang("a", 3)
    c.gang("b", 1)
    c.settle()
    assert (c.phase("a"), c.phase("b"), c.members_of("b")) == ("Inqueue", "Running", [0])


def test_a_condition_stays_when_the_other_becomes_true() -> None:
    c = cluster(2)
    c.gang("a", 1)
    c.settle()
    del c.pods["default/a-worker-0"]
    c.nodes.clear()
    c.members("a", [0])
    c.settle()
    assert c.condition("a", "Scheduled")["reason"] == "tasks in gang are ready to be scheduled"
    assert c.condition("a", "Unschedulable")["reason"] == "NotEnoughResources"


def test_queues_are_opened_where_nobody_does_and_count_what_does_not_leave() -> None:
    c = cluster(4)
    c.queue("odd")
    c.queues["odd"]["status"] = {"state": "Unknown", "allocated": {"gone": "3"}}
    c.settle()
    assert {name: queue["status"]["state"] for name, queue in c.queues.items()} == {
        "root": "Open",
        "default": "Open",
        "odd": "Open",
    }
    # A merge patch would leave it as it was.
    assert c.queues["odd"]["status"]["allocated"]["gone"] == "0"
    c.gang("a", 1, 3, queue="odd")
    c.settle()
    c.pods["default/a-worker-2"]["metadata"]["deletionTimestamp"] = "soon"
    c.settle()
    assert (c.gpus("odd"), c.gpus("root")) == ("2", "2")


def test_a_gang_with_fewer_pods_than_its_minimum_waits_for_them() -> None:
    c = cluster(4)
    c.gang("a", 3, 2)
    c.settle()
    assert c.members_of("a") == []
    assert "valid: 2, min: 3" in c.condition("a", "Unschedulable")["message"]


def test_a_role_below_its_minimum_holds_the_gang() -> None:
    c = cluster(4)
    c.gang("a", 2)
    c.podgroups["default/a"]["spec"]["minTaskMember"] = {"master": 1, "worker": 1}
    c.settle()
    assert c.members_of("a") == []
    assert "fewer pods of role master" in c.condition("a", "Unschedulable")["message"]


def test_pods_that_ask_for_nothing_count_in_their_role() -> None:
    c = cluster(4)
    c.gang("a", 2)
    c.podgroups["default/a"]["spec"]["minTaskMember"] = {"idle": 1, "worker": 1}
    idle = c.pods["default/a-worker-0"]
    idle["metadata"]["annotations"]["volcano.sh/task-spec"] = "idle"
    idle["spec"]["containers"][0]["resources"] = {}
    c.settle()
    assert len(c.members_of("a")) == 2


def test_a_lost_member_is_placed_again() -> None:
    c = cluster(4)
    c.gang("a", 2)
    c.settle()
    del c.pods["default/a-worker-1"]
    c.settle()
    assert c.phase("a") == "Unknown"
    c.members("a", [1])
    c.settle()
    assert (c.phase("a"), c.members_of("a")) == ("Running", [0, 1])


def test_a_minimum_raised_above_the_pods_is_unknown_until_they_come() -> None:
    c = cluster(4)
    c.gang("a", 2)
    c.settle()
    c.podgroups["default/a"]["spec"]["minMember"] = 3
    c.settle()
    assert c.phase("a") == "Unknown"
    c.members("a", [2])
    c.settle()
    assert (c.phase("a"), c.members_of("a")) == ("Running", [0, 1, 2])


def test_pods_outside_of_gangs_are_placed_one_by_one() -> None:
    c = cluster(1)
    c.pod("plain", schedulerName="")
    c.pod("alone", gpu=1)
    c.pod("foreign", schedulerName="someone-else")
    c.settle()
    assert c.placed() == {"plain": "n1", "alone": "n1"}
    assert c.gpus("default") == "1"


def test_a_pod_whose_podgroup_is_missing_is_told_so() -> None:
    c = cluster(1)
    c.add_pods(volcano_scenario.pods("default", {"name": "ghost", "min": 1}))
    c.settle()
    assert c.placed() == {}
    (condition,) = c.pods["default/ghost-worker-0"]["status"]["conditions"]
    assert "PodGroup default/ghost" in condition["message"]


def test_a_gated_pod_waits() -> None:
    c = cluster(1)
    c.gang("a", 1, podSpec={"schedulingGates": [{"name": "later"}]})
    c.settle()
    assert c.placed() == {}


IN = {"key": "zone", "operator": "In", "values": ["east"]}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [IN]}]
        }
    }
}
EXPRESSIONS = [
    ({"key": "zone", "operator": "NotIn", "values": ["east"]}, "n1"),
    ({"key": "gpus", "operator": "Exists"}, "n1"),
    ({"key": "gpus", "operator": "DoesNotExist"}, "n2"),
    ({"key": "gpus", "operator": "Gt", "values": ["7"]}, "n1"),
    ({"key": "gpus", "operator": "Lt", "values": ["8"]}, None),
]


@pytest.mark.parametrize(("expression", "node"), EXPRESSIONS)
def test_nodes_are_told_apart_by_their_labels(expression: Any, node: str | None) -> None:
    c = Cluster()
    c.node("n1", 0, labels={"zone": "west", "gpus": "8"})
    c.node("n2", 0, labels={"zone": "east"})
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    c.pod("p", affinity={"nodeAffinity": required})
    c.settle()
    assert c.placed().get("p") == node


def test_a_pod_goes_to_the_node_it_names_prefers_or_that_wants_no_other() -> None:
    c = Cluster()
    c.node("n1", 0, taints=[{"key": "slow", "effect": "PreferNoSchedule"}])
    c.node("n2", 0)
    c.node("n3", 0, labels={"zone": "east"})
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}
    wish = {"weight": 1, "preference": {"matchExpressions": [IN]}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    c.pod("named", affinity={"nodeAffinity": required})
    c.pod("prefers", affinity={"nodeAffinity": preferred})
    c.pod("any")
    c.settle()
    assert c.placed() == {"named": "n1", "prefers": "n3", "any": "n2"}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "pod", "fits"),
    [
        ({"labels": {"zone": "east"}}, {"nodeSelector": {"zone": "east"}}, True),
        ({"labels": {"zone": "west"}}, {"nodeSelector": {"zone": "east"}}, False),
        ({"labels": {"zone": "east"}}, {"affinity": AFFINITY}, True),
        ({}, {"affinity": AFFINITY}, False),
        ({"taints": [TAINT]}, {}, False),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "yes"}]}, True),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "no"}]}, False),
        ({"taints": [TAINT]}, {"tolerations": [{"operator": "Exists"}]}, True),
        ({"unschedulable": True}, {}, False),
    ],
)
def test_a_node_takes_only_pods_that_suit_it(node: Any, pod: Any, fits: bool) -> None:
    c = Cluster()
    c.node("n1", 1, **copy.deepcopy(node))
    c.pod("p", **pod)
    c.settle()
    assert bool(c.placed()) is fits


def test_a_node_that_is_lost_or_has_no_pods_left_takes_none() -> None:
    c = cluster(1, 1)
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
    c.nodes["n1"]["spec"]["taints"] = [lost]
    c.nodes["n2"]["status"]["allocatable"]["pods"] = "1"
    c.pod("p1")
    c.pod("p2")
    c.settle()
    assert c.placed() == {"p1": "n2"}
