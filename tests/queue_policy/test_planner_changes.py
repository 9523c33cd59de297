"""A planner that remembers says what a new one says, whatever has changed since its last plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.queue_policy.random_snapshots import everything, history
from tests.queue_policy.test_plan_everything import thorough
from tests.queue_policy.world import NOW, gpus, job, node, pod, pods, world
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Pod, Queue, Snapshot

STEPS = 8


@thorough
@given(everything(), st.integers(0, 1 << 30))
def test_a_planner_that_remembers_says_what_a_new_one_says(snapshot: Snapshot, seed: int) -> None:
    planner = Planner()

    def checked(seen: Snapshot, now: datetime) -> Plan:
        made = planner.plan(seen, now)
        assert made == plan(seen, now)
        return made

    history(snapshot, Random(seed), checked, STEPS)


def test_what_waits_in_a_full_cluster_is_told_why_and_starts_in_order_once_there_is_room() -> None:
    """Each of one kind is told what the one before it was, until room changes hands."""
    runs = job("runs", 4, 4)
    waiting = [
        job(f"w{i}", 1 + i % 2, 1 + i % 2, created=NOW + timedelta(seconds=i)) for i in range(8)
    ]
    mine = [p for one in waiting for p in pods(one, *[None] * one.min)]
    planner = Planner()
    full = world([node("n1", 4)], [runs, *waiting], pods(runs, *["n1"] * 4), mine)
    made = both(planner, full)
    assert made.blocked.keys() == {one.key for one in waiting}
    assert made.queues["default"].owed_to_minimums == 12_000
    assert len(set(made.blocked.values())) == 2
    # Two of one GPU and one of two fit; the next of one GPU finds nothing left.
    free = replace(full, jobs=tuple(waiting), pods=tuple(mine))
    made = both(planner, free)
    assert {one.key for one in waiting} - made.blocked.keys() == {"ns/w0", "ns/w1", "ns/w2"}
    assert both(planner, full).blocked.keys() == {one.key for one in waiting}


def test_who_waits_behind_many_that_are_too_large_is_served_in_its_turn() -> None:
    large = [job(f"l{i}", 3, 3, created=NOW + timedelta(seconds=2 * i)) for i in range(4)]
    small = [job(f"s{i}", 1, 1, created=NOW + timedelta(seconds=2 * i + 1)) for i in range(4)]
    made = both(Planner(), world([node("n1", 2)], [*large, *small]))
    assert made.admitted == {"ns/s0", "ns/s1"}
    assert "the nodes have too little room" in made.blocked["ns/l3"]


def test_a_queue_that_is_too_full_even_without_its_surplus_says_so() -> None:
    queues = (Queue("default", capability=gpus(2)), Queue("other"))
    surplus = job("surplus", 1, 2, 2, queue="other")
    runs, waits = job("runs", 1, 2, 2), [job(f"w{i}", 2, 2) for i in range(3)]
    seen = world(
        [node("n1", 8)],
        [runs, surplus, *waits],
        pods(runs, "n1", "n1"),
        pods(surplus, "n1", "n1"),
        queues=queues,
    )
    made = both(Planner(), seen)
    assert set(made.blocked) == {"ns/w0", "ns/w1", "ns/w2"}
    assert all("queue default has too little room" in why for why in made.blocked.values())
    assert all(decision.new >= decision.old for decision in made.decisions)


def both(planner: Planner, snapshot: Snapshot) -> Plan:
    """Return what the planner says, which is what a new one says."""
    made = planner.plan(snapshot, NOW)
    assert made == plan(snapshot, NOW)
    return made


def test_a_cluster_whose_nodes_are_all_replaced_again_and_again_is_planned_as_a_new_one() -> None:
    planner = Planner()
    for generation in range(200):
        names = [f"g{generation}-{i}" for i in range(3)]
        one = job("a", 1, 9)
        snapshot = world([node(name, 2) for name in names], [one], pods(one, names[0]))
        assert both(planner, snapshot).decisions[0].new == 6


def test_a_node_that_comes_is_more_to_guarantee_from() -> None:
    """Two of the GPUs that all nodes offer are guaranteed to others."""
    queues = (Queue("default"), Queue("other", guarantee=gpus(2)))
    one = job("a", 1, 9)
    small = world([node("n1", 4)], [one], pods(one, "n1"), queues=queues)
    planner = Planner()
    assert both(planner, small).decisions[0].new == 2
    larger = replace(small, nodes=(*small.nodes, node("n2", 3)))
    assert both(planner, larger).decisions[0].new == 5
    assert both(planner, small).decisions[0].new == 2


def test_steps_are_aligned_to_the_nodes_of_now() -> None:
    """Four GPUs more are a whole step while the largest node has four, and half a one once there is
    a node of eight: too little for a pause of a minute."""
    one = job("a", 1, 16, 8, pause=timedelta(minutes=1))
    mine = pods(one, *["n1"] * 4, *["n2"] * 4)
    small = world([node(f"n{i}", 4) for i in (1, 2, 3)], [one], mine)
    planner = Planner()
    assert both(planner, small).decisions[0].new == 12
    taken = Pod(key="ns/x", uid="x", requests=gpus(8), node="n8", running=True)
    larger = replace(small, nodes=(*small.nodes, node("n8", 8)), pods=(*mine, taken))
    made = both(planner, larger)
    assert made.decisions == ()
    assert made.unchanged[one.key].why_not_more is Reason.NOT_WORTH_A_PAUSE


def test_a_job_whose_pods_are_leaving_waits_for_them_and_may_give_more() -> None:
    one, other = job("a", 1, 4, 3), job("b", 1, 1)
    mine = (*pods(one, *["n1"] * 3), pod(one, 3, "n1", terminating=True))
    planner = Planner()
    leaving = world([node("n1", 4)], [one], mine)
    stay = both(planner, leaving).unchanged[one.key]
    assert stay == NoChange(Reason.WAITING_FOR_PODS, Reason.NOBODY_WAITS)
    # What is leaving is enough for the first of two that wait, not for both.
    two = replace(leaving, jobs=(one, other, job("c", 1, 1)))
    assert both(planner, two).decisions[0].new == 2


def test_surplus_pods_that_change_are_told_apart_by_what_they_are_now() -> None:
    one, other = job("a", 1, 3, 3), job("b", 1, 1)
    mine = pods(one, "n1", "n1", "n2")
    planner = Planner()
    calm = world([node("n1", 2), node("n2", 1)], [one], mine)
    assert planner.plan(calm, NOW).decisions == ()
    moved = replace(calm, pods=(*mine[:2], replace(mine[2], running=False)))
    assert planner.plan(moved, NOW).decisions == ()
    waiting = replace(moved, jobs=(one, other))
    assert planner.plan(waiting, NOW).decisions[0].remove == (pod(one, 2, None).key,)
