"""Eviction, as sentences: who goes so that others can come; tables over the pure session."""

from __future__ import annotations

from datetime import timedelta

import pytest

from embedded_cluster.scheduler.configuration import DEFAULT
from embedded_cluster.scheduler.duration import go_duration
from embedded_cluster.scheduler.plugins.proportion import share_out
from embedded_cluster.scheduler.scheduler import next_look
from tests.embedded_cluster.scheduler.world import GPU, OVERCOMMIT, PROPORTION, START, cluster


def test_a_newcomer_takes_the_surplus_of_its_queue_highest_index_first() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert c.evicted == ["a-worker-3 by preempt", "a-worker-2 by preempt"]
    assert (c.members_of("a"), c.members_of("b")) == ([0, 1], [0, 1])


def test_unprotected_pods_are_still_kept_to_the_minimum() -> None:
    c = cluster(4)
    c.gang("a", 2, 4, preemptable="unset")
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert c.members_of("a") == [0, 1]


def test_a_newcomer_larger_than_the_surplus_evicts_nobody() -> None:
    c = cluster(4)
    c.gang("a", 3, 4)
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert c.evicted == []
    assert c.phase("b") == "Pending"


def test_nobody_is_evicted_for_half_a_gang() -> None:
    c = cluster(4)
    c.gang("a", 1, 2)
    c.gang("c", 1, 2, preemptable="none")
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert (c.phase("b"), c.evicted) == ("Inqueue", [])


def test_a_pod_for_which_others_go_is_nominated_to_their_node() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.settle()
    c.gang("b", 1)
    c.step()
    assert c.evicted == ["a-worker-3 by preempt"]
    assert c.pods["default/b-worker-0"]["status"]["nominatedNodeName"] == "n1"


def test_a_gang_whose_pods_never_preempt_evicts_nobody() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.settle()
    c.gang("b", 1, podSpec={"preemptionPolicy": "Never"})
    c.settle()
    assert c.evicted == []


def test_what_it_does_not_do_is_refused_and_said() -> None:
    c = cluster(4)
    c.gang("a", 1, spec={"networkTopology": {"mode": "hard"}})
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    insists = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    c.pod("p", affinity={"podAntiAffinity": insists})
    c.settle()
    assert c.placed() == {}
    assert "has no networkTopology" in c.condition("a", "Unschedulable")["message"]
    (told,) = c.pods["default/p"]["status"]["conditions"]
    assert "has no podAntiAffinity" in told["message"]


def test_the_clusters_own_critical_pods_stay() -> None:
    c = cluster(3)
    c.classes = {"system-node-critical": 9}
    c.gang("a", 1, 3, podSpec={"priorityClassName": "system-node-critical"})
    c.settle()
    c.gang("b", 1)
    c.settle()
    assert c.evicted == []


def test_a_job_in_a_queue_with_queues_below_it_waits_and_is_told_why() -> None:
    conf = DEFAULT.read_text().replace(
        "name: capacity", "name: capacity\n    enableHierarchy: true"
    )
    c = cluster(2, conf=conf)
    c.queue("lab")
    c.queue("qa", parent="lab")
    c.gang("a", 1, queue="lab")
    c.gang("b", 1, queue="qa")
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([], [0])
    assert "has queues below it" in c.condition("a", "Unschedulable")["message"]


def test_nobody_is_evicted_for_surplus() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.settle()
    c.gang("b", 1, 4)
    c.settle()
    assert c.evicted == ["a-worker-3 by preempt"]


def test_what_is_leaving_counts_as_coming() -> None:
    c = cluster(4)
    c.gang("a", 1, 4)
    c.settle()
    for index in (2, 3):
        c.pods[f"default/a-worker-{index}"]["metadata"]["deletionTimestamp"] = "soon"
    c.gang("b", 2)
    c.settle()
    assert (c.evicted, c.members_of("b")) == ([], [])
    for index in (2, 3):
        del c.pods[f"default/a-worker-{index}"]
    c.members("a", [2, 3])
    c.settle()
    assert (c.evicted, c.members_of("b")) == ([], [0, 1])


def test_surplus_does_not_take_the_room_that_a_larger_pod_waits_for() -> None:
    conf = DEFAULT.read_text().replace(", backfill, preempt, reclaim", "")
    c = cluster(3, conf=conf)
    # Room in the queue, but not on the node.
    c.node("n2", 1, unschedulable=True)
    c.gang("a", 1)
    c.pod("x", gpu=1)
    c.settle()
    c.pods["default/x"]["metadata"]["deletionTimestamp"] = "soon"
    c.gang("b", 1, gpu=2)
    c.members("a", [1])
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([0], [])
    del c.pods["default/x"]
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([0], [0])


def test_cooling_surplus_stays_until_it_has_cooled() -> None:
    c = cluster(4)
    c.gang("a", 1, 4, cooldown="12s")
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert (c.evicted, c.phase("b")) == ([], "Inqueue")
    c.now += timedelta(seconds=12)
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([0, 1], [0, 1])


def test_the_next_look_is_when_the_first_protection_of_surplus_ends() -> None:
    c = cluster(6)
    c.gang("a", 1, 2, cooldown="60s", preemptable="none")
    c.gang("b", 1, 2, cooldown="90s")
    c.gang("c", 1, 2, cooldown="2m")
    c.settle()
    assert next_look(c.snapshot(), c.now) is None
    c.gang("d", 1)
    c.settle()
    # What is protected for good doesn't count.
    assert next_look(c.snapshot(), c.now) == START + timedelta(seconds=90)
    c.now = START + timedelta(seconds=90)
    assert next_look(c.snapshot(), c.now) == START + timedelta(seconds=120)
    c.settle()
    assert c.evicted == ["b-worker-1 by preempt"]


def test_surplus_on_several_nodes_makes_room_for_a_gang() -> None:
    c = cluster(2, 2, 2)
    c.gang("a", 2, 6, taskPriority=True)
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert len(c.evicted) == 2
    assert {0, 1} <= set(c.members_of("a"))
    assert c.members_of("b") == [0, 1]


DUE = {"deserved": {GPU: "2"}}


@pytest.mark.parametrize("conf", [None, PROPORTION])
def test_what_was_borrowed_is_reclaimed_up_to_what_is_deserved(conf: str | None) -> None:
    c = cluster(4, conf=conf)
    for name in ("qa", "qb"):
        c.queue(name, weight=1, **DUE)
    c.gang("a", 1, 4, queue="qa")
    c.settle()
    assert c.gpus("qa") == "4"
    c.gang("b", 2, 4, queue="qb")
    c.settle()
    assert c.evicted == ["a-worker-3 by reclaim", "a-worker-2 by reclaim"]
    assert (c.gpus("qa"), c.gpus("qb"), c.gpus("root")) == ("2", "2", "4")


def test_a_queue_that_is_not_reclaimable_gives_nothing_back() -> None:
    c = cluster(4)
    c.queue("qa", reclaimable=False, **DUE)
    c.queue("qb", **DUE)
    c.gang("a", 1, 4, queue="qa")
    c.settle()
    c.gang("b", 2, queue="qb")
    c.settle()
    assert c.evicted == []


def test_a_capability_caps_surplus() -> None:
    c = cluster(8)
    c.queue("qa", capability={GPU: "3"})
    c.gang("a", 2, 6, queue="qa")
    c.settle()
    assert c.members_of("a") == [0, 1, 2]


def test_a_guarantee_is_kept_free() -> None:
    c = cluster(4)
    c.queue("qa", deserved={GPU: "4"})
    c.queue("qb", deserved={GPU: "2"}, guarantee={"resource": {GPU: "2"}})
    c.gang("a", 1, 4, queue="qa")
    c.settle()
    assert c.members_of("a") == [0, 1]


def test_a_parent_caps_its_children_where_hierarchy_is_on() -> None:
    conf = DEFAULT.read_text().replace(
        "name: capacity", "name: capacity\n    enableHierarchy: true"
    )
    c = cluster(8, conf=conf)
    c.queue("lab", capability={GPU: "3"})
    for name in ("qa", "qb"):
        c.queue(name, parent="lab")
        c.gang(f"in-{name}", 1, 4, queue=name)
    c.settle()
    assert c.gpus("lab") == "3"


def test_overcommit_holds_a_newcomer_though_surplus_could_make_room() -> None:
    c = cluster(4, conf=OVERCOMMIT)
    c.gang("a", 1, 4)
    c.settle()
    c.gang("b", 2)
    c.settle()
    assert (c.phase("b"), c.evicted) == ("Pending", [])


def test_nothing_is_placed_in_a_closed_or_missing_queue() -> None:
    c = cluster(4)
    c.queue("shut")
    c.queues["shut"]["status"] = {"state": "Closed", "allocated": {}}
    c.gang("a", 1, queue="shut")
    c.gang("b", 1, queue="nowhere")
    c.settle()
    assert c.placed() == {}
    assert "Closed" in c.condition("a", "Unschedulable")["message"]
    assert "does not exist" in c.condition("b", "Unschedulable")["message"]


def test_a_queue_with_an_unreadable_amount_holds_its_own_jobs_only() -> None:
    c = cluster(4)
    c.queue("typo", capability={GPU: "many"})
    c.gang("a", 1, queue="typo")
    c.gang("b", 1)
    c.settle()
    assert (c.members_of("a"), c.members_of("b")) == ([], [0])
    assert "'many'" in c.condition("a", "Unschedulable")["message"]


def test_what_somebody_wrote_into_a_queues_status_is_written_anew() -> None:
    c = cluster(4)
    c.queue("odd")
    c.queues["odd"]["status"] = {"state": "Open", "allocated": {GPU: "garbage", "cpu": {}}}
    c.gang("a", 1, queue="odd")
    c.settle()
    assert c.members_of("a") == [0]
    assert c.queues["odd"]["status"]["allocated"][GPU] == "1"


@pytest.mark.parametrize(
    ("amount", "weights", "caps", "expected"),
    [
        (4, {"a": 1, "b": 1}, {"a": 4, "b": 4}, {"a": 2, "b": 2}),
        (4, {"a": 1, "b": 3}, {"a": 4, "b": 4}, {"a": 1, "b": 3}),
        (4, {"a": 1, "b": 1}, {"a": 1, "b": 4}, {"a": 1, "b": 3}),
        (4, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        (4, {"a": 1}, {"a": 0}, {"a": 0}),
    ],
)
def test_a_share_nobody_uses_goes_to_the_others(
    amount: int, weights: dict[str, int], caps: dict[str, int], expected: dict[str, int]
) -> None:
    floors = dict.fromkeys(weights, 0)
    assert share_out(amount, weights=weights, caps=caps, floors=floors) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12s", 12),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("", None),
        ("12", None),
        ("2562048h", None),
        (f"{'9' * 400}h", None),
    ],
)
def test_go_durations(text: str, seconds: float | None) -> None:
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert go_duration(text) == expected
