"""Which surplus leaves for a claim whose pods are larger than those that leave, or ask for
something else: the fewest pods that make it fit, and of several ways the one that costs least.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.queue_policy.world import NOW, gpus, job, node, pod, pods, ruled, seconds, world
from volcano_elastic.api.queue_policy import ForOtherQueues, QueuePolicy, Shrink
from volcano_elastic.cluster_state.queue_state import LeastSurplus
from volcano_elastic.queue_policy import plan as planning
from volcano_elastic.queue_policy import victims
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.draft import Draft
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Pod, Queue, Snapshot

TWO = gpus(2)
DEFAULT = (Queue("default"),)


def claim(requests: dict[str, int] = TWO, **more: Any) -> Job:
    return job("b", 1, 1, pod_requests=requests, **more)


def leave(
    nodes: dict[str, int],
    jobs: list[Job],
    *on: tuple[Pod, ...] | list[Pod],
    queues: tuple[Queue, ...] = DEFAULT,
    policies: tuple[QueuePolicy, ...] = (),
) -> list[str]:
    """Return who leaves, by bare name, where nodes have so many GPUs."""
    listed = [node(name, count) for name, count in nodes.items()]
    seen = replace(world(listed, jobs, *on, queues=queues), policies=policies)
    found = [key for decision in plan(seen, NOW).decisions for key in decision.remove]
    return sorted(key.removeprefix("ns/").replace("-worker-", "") for key in found)


def test_the_node_where_the_fewest_have_to_leave_is_chosen() -> None:
    a, c = job("a", 1, 8, 3), job("c", 1, 8, 5)
    on = (pods(a, "n1", "n1", "n1"), pods(c, *["n2"] * 5))
    assert leave({"n1": 4, "n2": 5}, [a, c, claim()], *on) == ["a2"]


def test_one_large_pod_leaves_rather_than_two_small_ones() -> None:
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 2, pod_requests=TWO)
    on = (pods(a, *["n1"] * 5), pods(c, "n2", "n2"))
    assert leave({"n1": 5, "n2": 4}, [a, c, claim()], *on) == ["c1"]


def test_one_large_pod_leaves_for_two_small_ones_of_a_claim() -> None:
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 2, pod_requests=TWO)
    on = (pods(a, *["n1"] * 5), pods(c, "n2", "n2"))
    b = job("b", 2, 2)
    assert leave({"n1": 5, "n2": 4}, [a, c, b], *on) == ["c1"]
    # But what frees more than is needed is not cheaper for it: who has most surplus gives.
    assert leave({"n1": 5, "n2": 4}, [a, c, job("b", 1, 1)], *on) == ["a4"]


@pytest.mark.parametrize("protect", [0, 1])
def test_a_job_whose_worker_0_gets_room_has_surplus_again(protect: float) -> None:
    """`c` had its turn before and looked at them in vain. With `protect` all nodes are compared;
    without, the queue's first victim is taken at once."""
    tainted = node("x", 1, taints=(("dedicated", "x", "NoSchedule"),))
    a = job("a", 2, 3, 3, tolerations=({"key": "dedicated", "operator": "Exists"},))
    c, d, e = job("c", 2, 2, priority=1), job("d", 1, 2, 2), job("e", 1, 2, 2)
    lost = [pod(a, 1, "n2"), pod(a, 2, "n2"), pod(c, 1, "n1")]
    nodes, jobs = [node("n1", 5), node("n2", 2), tainted], [a, c, d, e, claim(gpus(1))]
    seen = world(nodes, jobs, lost, pods(d, "n1", "n1"), pods(e, "n1", "n1"))
    made = plan(ruled(seen, shrink=Shrink(protect=seconds(protect))), NOW)
    assert {key for decision in made.decisions for key in decision.remove} == {
        "ns/a-worker-2",
        "ns/d-worker-1",
    }


def test_only_what_holds_what_is_lacking_leaves() -> None:
    """There are GPUs enough, and too few CPUs."""
    a = job("a", 1, 8, 5)
    c = job("c", 1, 8, 2, pod_requests=gpus(1, cpus=30))
    on = (pods(a, *["n1"] * 5), pods(c, "n1", "n1"))
    assert leave({"n1": 8}, [a, c, claim(gpus(1, cpus=20))], *on) == ["c1"]


def test_some_of_each_leave_where_both_are_lacking() -> None:
    a = job("a", 1, 8, 3)
    c = job("c", 1, 8, 2, pod_requests={"cpu": 30_000})
    on = (pods(a, "n1", "n1", "n1"), pods(c, "n1", "n1"))
    assert leave({"n1": 3}, [a, c, claim(gpus(1, cpus=20))], *on) == ["a2", "c1"]


def test_who_holds_both_leaves_rather_than_one_of_each() -> None:
    a = job("a", 1, 8, 5)
    c = job("c", 1, 8, 2, pod_requests={"cpu": 15_000})
    d = job("d", 1, 2, 2, pod_requests=gpus(1, cpus=15))
    on = (pods(a, *["n1"] * 5), pods(c, "n1", "n1"), pods(d, "n1", "n1"))
    assert leave({"n1": 7}, [a, c, d, claim(gpus(1, cpus=19))], *on) == ["d1"]


def test_few_that_hold_some_of_each_leave_rather_than_many_that_hold_one() -> None:
    a = job("a", 1, 8, 5)
    c = job("c", 1, 8, 3, pod_requests={"cpu": 10_000})
    d = job("d", 1, 3, 3, pod_requests=gpus(1, cpus=10))
    on = (pods(a, *["n1"] * 5), pods(c, *["n1"] * 3), pods(d, *["n1"] * 3))
    assert leave({"n1": 8}, [a, c, d, claim(gpus(2, cpus=24))], *on) == ["d1", "d2"]


def test_who_turns_out_not_to_be_needed_stays() -> None:
    """`d` holds some of both, and in the end those who hold all of one are enough."""
    a = job("a", 1, 2, 2, pod_requests=TWO)
    c = job("c", 1, 2, 2, pod_requests={"cpu": 10_000})
    d = job("d", 1, 2, 2, pod_requests=gpus(1, cpus=7))
    on = tuple(pods(each, "n1", "n1") for each in (a, c, d))
    assert leave({"n1": 6}, [a, c, d, claim(gpus(2, cpus=40))], *on) == ["a1", "c1"]


def test_nobody_leaves_who_holds_nothing_of_what_is_lacking() -> None:
    a, rigid = job("a", 1, 8, 5), job("rigid", 1, 1, pod_requests={"cpu": 60_000})
    on = (pods(a, *["n1"] * 5), pods(rigid, "n1"))
    assert leave({"n1": 8}, [a, rigid, claim(gpus(1, cpus=20))], *on) == []


def test_what_an_earlier_claim_was_given_is_not_given_again() -> None:
    a = job("a", 1, 8, 4)
    first = job("first", 1, 1, priority=1)
    assert leave({"n1": 4}, [a, first, claim()], pods(a, *["n1"] * 4)) == ["a1", "a2", "a3"]


def test_a_job_without_worker_0_asks_its_own_surplus_first_however_small() -> None:
    a, c = job("a", 1, 3, 3), job("c", 1, 8, 6)
    on = ([pod(a, 1, "n1"), pod(a, 2, "n1")], pods(c, *["n2"] * 6))
    assert leave({"n1": 2, "n2": 6}, [a, c], *on) == ["a2"]


def test_nobody_leaves_where_minimums_are_in_the_way() -> None:
    a, c = job("a", 2, 8, 3), job("c", 1, 8, 2)
    on = (pods(a, "n1", "n1", "n1"), pods(c, "n2", "n2"))
    assert leave({"n1": 3, "n2": 2}, [a, c, claim()], *on) == []


def test_surplus_of_several_jobs_leaves_together() -> None:
    a, c = job("a", 1, 8, 2), job("c", 1, 8, 2)
    on = (pods(a, "n1", "n1"), pods(c, "n1", "n1"))
    assert leave({"n1": 4}, [a, c, claim()], *on) == ["a1", "c1"]


def test_the_largest_surplus_leaves_and_of_it_the_highest_indexes() -> None:
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 3)
    on = (pods(a, *["n1"] * 5), pods(c, *["n2"] * 3))
    assert leave({"n1": 5, "n2": 3}, [a, c, claim()], *on) == ["a3", "a4"]
    assert leave({"n1": 5, "n2": 3}, [replace(a, min=4), c, claim()], *on) == ["c1", "c2"]
    one_node = (pods(a, *["n1"] * 5), pods(c, *["n1"] * 3))
    assert leave({"n1": 8}, [a, c, claim(gpus(1, cpus=1))], *one_node) == ["a4"]


def test_pods_that_do_not_run_yet_leave_before_those_that_do() -> None:
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 3)
    starting = [replace(p, running=p.index == 0) for p in pods(c, *["n2"] * 3)]
    found = leave({"n1": 5, "n2": 3}, [a, c, claim()], pods(a, *["n1"] * 5), starting)
    assert found == ["c1", "c2"]


def test_protected_pods_leave_last_and_only_where_nothing_else_helps() -> None:
    a = job("a", 2, 8, 4)
    spread = [pod(a, 0, "n1"), pod(a, 1, "n1"), pod(a, 2, "n1"), pod(a, 3, "n2")]
    assert leave({"n1": 3, "n2": 1}, [a, claim()], spread) == ["a1", "a2"]
    better = [pod(a, 0, "n2"), pod(a, 1, "n1"), pod(a, 2, "n1"), pod(a, 3, "n1")]
    assert leave({"n1": 3, "n2": 1}, [a, claim()], better) == ["a2", "a3"]


def test_whole_units_count_in_what_a_way_costs() -> None:
    a, c = job("a", 4, 8, 8, node_unit=4), job("c", 1, 3, 3)
    on = (pods(a, *["n1"] * 8), pods(c, *["n2"] * 3))
    assert leave({"n1": 8, "n2": 3}, [a, c, claim()], *on) == ["c1", "c2"]


# Across queues

PQR = (Queue("p"), Queue("q", deserved=gpus(1)), Queue("r", deserved=gpus(2)))


def test_the_claims_own_queue_gives_first() -> None:
    a, c = job("a", 1, 8, 3, queue="p"), job("c", 1, 8, 6, queue="q")
    on = (pods(a, *["n1"] * 3), pods(c, *["n2"] * 6))
    assert leave({"n1": 3, "n2": 6}, [a, c, claim(queue="p")], *on, queues=PQR) == ["a1", "a2"]


def test_what_is_borrowed_goes_before_what_is_deserved() -> None:
    queues = (*PQR[:2], Queue("r", deserved=gpus(8)))
    a, c = job("a", 1, 8, 3, queue="q"), job("c", 1, 8, 6, queue="r")
    on = (pods(a, *["n1"] * 3), pods(c, *["n2"] * 6))
    assert leave({"n1": 3, "n2": 6}, [a, c, claim(queue="p")], *on, queues=queues) == ["a1", "a2"]


def test_who_holds_most_of_its_deserved_gives_first() -> None:
    a, c = job("a", 1, 8, 5, queue="q"), job("c", 1, 8, 7, queue="r")
    on = (pods(a, *["n1"] * 5), pods(c, *["n2"] * 7))
    assert leave({"n1": 5, "n2": 7}, [a, c, claim(queue="p")], *on, queues=PQR) == ["a3", "a4"]


def test_borrowed_keeps_a_queues_own_share_from_claims_of_other_pods() -> None:
    rule = QueuePolicy("r", shrink=Shrink(for_other_queues=ForOtherQueues.BORROWED))
    queues = (Queue("p"), Queue("r", deserved=gpus(4)))
    c = job("c", 1, 8, 5, queue="r")
    found = [
        leave({"n1": 5}, [c, claim(queue=name)], pods(c, *["n1"] * 5), queues=queues, policies=by)
        for name in ("p", "r")
        for by in ((), (rule,))
    ]
    assert found == [["c3", "c4"], [], ["c3", "c4"], ["c3", "c4"]]


def test_borrowed_keeps_a_queues_own_share_from_whole_units_too() -> None:
    rule = QueuePolicy("r", shrink=Shrink(for_other_queues=ForOtherQueues.BORROWED))
    c = job("c", 2, 8, 6, queue="r", node_unit=2)
    for deserved, left in ((4, ["c4", "c5"]), (5, [])):
        queues = (Queue("p"), Queue("r", deserved=gpus(deserved)))
        jobs = [c, job("b", 1, 1, queue="p")]
        found = leave({"n1": 6}, jobs, pods(c, *["n1"] * 6), queues=queues, policies=(rule,))
        assert found == left


# Full queues

CPUS = {"nvidia.com/gpu": 1000, "cpu": 5000}


def test_a_full_queue_gives_of_what_it_is_full_of() -> None:
    """Idle nodes are no help then, nor surplus that holds none of it."""
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 2, pod_requests=CPUS)
    queues = (Queue("default", capability=gpus(9, cpus=10)),)
    on = (pods(a, *["n1"] * 5), pods(c, "n1", "n1"))
    found = leave({"n1": 8, "n2": 8}, [a, c, claim(CPUS)], *on, queues=queues)
    assert found == ["c1"]


def test_of_a_full_queues_jobs_the_largest_surplus_gives() -> None:
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 3)
    on = (pods(a, *["n1"] * 5), pods(c, *["n1"] * 3))
    queues = (Queue("default", capability=gpus(9)),)
    assert leave({"n1": 8, "n2": 8}, [a, c, claim()], *on, queues=queues) == ["a4"]


def test_a_full_ancestor_is_relieved_by_those_below_it_only() -> None:
    queues = (
        Queue("top", capability=gpus(4)),
        Queue("left", parent="top"),
        Queue("right", parent="top"),
        Queue("outside"),
    )
    a, c = job("a", 1, 8, 4, queue="right"), job("c", 1, 8, 8, queue="outside")
    on = (pods(a, *["n1"] * 4), pods(c, *["n1"] * 8))
    for size, room in ((1, 16), (2, 16), (1, 12), (2, 12)):
        found = leave({"n1": room}, [a, c, claim(gpus(size), queue="left")], *on, queues=queues)
        assert found == ["a2", "a3"][2 - size :]


def test_of_a_full_queue_protected_pods_and_minimums_stay() -> None:
    a = job("a", 2, 8, 3)
    mine = [replace(p, protected=p.index != 1) for p in pods(a, *["n1"] * 3)]
    queues = (Queue("default", capability=gpus(3)),)
    one = job("b", 1, 1)
    assert leave({"n1": 8}, [a, one], mine, queues=queues) == ["a1"]
    assert leave({"n1": 8}, [a, claim()], mine, queues=queues) == []


def test_a_full_queue_gives_on_a_node_where_the_claim_then_fits() -> None:
    """Full nodes too; another queue's surplus would make room on one, and none in the queue."""
    a, c = job("a", 1, 8, 4), job("c", 1, 8, 8, queue="other")
    queues = (Queue("default", capability=gpus(4)), Queue("other"))
    on = (pods(a, "n1", "n2", "n1", "n2"), pods(c, *["n3"] * 8))
    found = leave({"n1": 2, "n2": 2, "n3": 8}, [a, c, claim()], *on, queues=queues)
    assert found == ["a1", "a3"]


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 30))
def test_queues_that_are_passed_over_have_nothing_cheaper(seed: int) -> None:
    """Nodes full of surplus of three queues, and newcomers to each."""
    chance = Random(seed)
    queues = ("q0", "q1", "q2")
    nodes, jobs, on = [], [], []
    for n in range(chance.randint(2, 6)):
        size, large = chance.randint(2, 4), chance.choice((1, 1, 2))
        giver = job(
            f"a{n}",
            1 if large * size % 2 else chance.choice((1, 2)),
            8,
            size,
            queue=chance.choice(queues),
            pod_requests=gpus(large),
        )
        if size % 2 == giver.min % 2 == 0 and chance.random() < 0.5:
            giver = replace(giver, node_unit=2)
        nodes.append(node(f"n{n}", size * large + chance.choice((0, 0, 1))))
        starting = chance.random() < 0.3
        mine = pods(giver, *[f"n{n}"] * size)
        on.append([replace(p, running=p.index == 0 or not starting) for p in mine])
        jobs.append(giver)
    for n in range(chance.randint(1, 3)):
        least = chance.randint(1, 5)
        asks = gpus(chance.choice((1, 1, 2)))
        jobs.append(job(f"b{n}", least, least, queue=chance.choice(queues), pod_requests=asks))
    deserved = [gpus(chance.randint(1, 6)) if chance.random() < 0.5 else None for _ in queues]
    listed = tuple(Queue(name, deserved=d) for name, d in zip(queues, deserved, strict=True))
    seen = world(nodes, jobs, *on, queues=listed)
    with pytest.MonkeyPatch.context() as patch:
        # As in a cluster of many nodes.
        patch.setattr(victims, "FEW", 0)
        assert plan(seen, NOW) == plan_of_all_nodes(seen)


def plan_of_all_nodes(seen: Snapshot) -> Plan:
    """With all nodes compared for each pod that leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeastSurplus, "least_cost", lambda *_: (0.0, 0, 0, 0))
        return plan(seen, NOW)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_pod_that_is_taken_at_once_is_the_cheapest_of_all_nodes(seed: int) -> None:
    """Jobs that share nodes, and newcomers to their queues that need many of their pods."""
    chance = Random(seed)
    queues = tuple(Queue(f"q{n}", deserved=gpus(chance.randint(1, 9))) for n in range(2))
    names = [f"n{n}" for n in range(chance.randint(1, 4))]
    held = dict.fromkeys(names, 0)
    jobs, on = [], []
    for n in range(chance.randint(2, 5)):
        size, large = chance.randint(2, 6), chance.choice((1, 1, 1, 2))
        giver = job(
            f"a{n}",
            chance.randint(1, 3),
            8,
            size,
            queue=chance.choice(queues).name,
            pod_requests=gpus(large),
            priority=chance.randint(0, 1),
        )
        mine = list(pods(giver, *(chance.choice(names) for _ in range(size))))
        if chance.random() < 0.2:
            # Its worker 0 has lost its node: its claim asks its own surplus first.
            mine[0] = replace(mine[0], node=None, running=False)
        jobs.append(giver)
        on.append([replace(p, running=p.node is not None and chance.random() < 0.9) for p in mine])
        for one in mine:
            if one.node is not None:
                held[one.node] += large
    for n in range(chance.randint(1, 4)):
        least = chance.randint(1, 4)
        asks = gpus(chance.choice((1, 1, 2, 3)))
        queue = chance.choice(queues).name
        jobs.append(job(f"b{n}", least, least, queue=queue, pod_requests=asks))
    nodes = [node(name, held[name] + chance.choice((0, 0, 1))) for name in names]
    seen = world(nodes, jobs, *on, queues=queues)
    assert plan(seen, NOW) == plan_of_all_nodes(seen)


def test_a_plan_that_is_made_lets_its_draft_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no search for garbage, which takes the longer the larger the cluster is."""
    drafts: list[weakref.ref[Draft]] = []

    class Noted(Draft):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            drafts.append(weakref.ref(self))

    monkeypatch.setattr(planning, "Draft", Noted)
    a = job("a", 1, 8, 5)
    gc.disable()
    try:
        assert leave({"n1": 5}, [a, job("b", 1, 1)], pods(a, *["n1"] * 5)) == ["a4"]
        assert [draft() for draft in drafts] == [None]
    finally:
        gc.enable()
