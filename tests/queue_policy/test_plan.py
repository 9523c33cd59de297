"""The planner's promises, situation by situation: sizes, newcomers, growth."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    applied,
    by_job,
    job,
    node,
    pod,
    pods,
    settled,
    world,
)
from volcano_elastic.api.queue_policy import Mode, QueuePolicy, Rebalance
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import plan


def test_the_demo_story_grow_alone_shrink_for_the_newcomer_grow_again() -> None:
    a = job("a", 1, 4)
    start = world(TWO_BY_TWO, [a])

    first = plan(start, NOW)
    assert [(d.job, d.old, d.new, d.reason) for d in first.decisions] == [
        ("ns/a", 1, 4, Reason.GREW_INTO_IDLE)
    ]
    assert "3 GPUs" in first.decisions[0].message
    assert first.admitted == {"ns/a"}
    full = settled(applied(start, first, NOW))
    assert sum(p.node is not None for p in full.pods) == 4
    assert plan(full, NOW + timedelta(seconds=1)).decisions == ()

    b = job("b", 2, 4, created=NOW)
    later = NOW + timedelta(seconds=5)
    arrival = replace(full, jobs=(*full.jobs, b))
    shrunk = plan(arrival, later)
    (decision,) = shrunk.decisions
    assert (decision.old, decision.new) == (4, 2)
    assert decision.reason is Reason.SHRUNK_FOR_MINIMUM
    assert decision.remove == ("ns/a-worker-3", "ns/a-worker-2")
    assert decision.message == "b needs 2 GPUs to start; a gives back 2 of its 3 surplus workers"
    assert shrunk.admitted == {"ns/a", "ns/b"}

    leaving = applied(arrival, shrunk, later)
    assert plan(leaving, later).decisions == ()
    both = settled(leaving)
    assert sum(p.node is not None for p in both.pods if p.job == "ns/b") == 2
    assert plan(both, later).decisions == ()

    alone = replace(
        both,
        jobs=tuple(j for j in both.jobs if j.key == "ns/b"),
        pods=tuple(p for p in both.pods if p.job == "ns/b"),
    )
    last = by_job(plan(alone, later))["b"]
    assert (last.old, last.new) == (2, 4)


def test_a_newcomer_starts_at_its_size_but_takes_no_room_of_another_minimum() -> None:
    a, b = job("a", 1, 4), job("b", 2, 2, created=NOW)
    made = plan(world(TWO_BY_TWO, [a, b]), NOW)
    assert [(d.job, d.new) for d in made.decisions] == [("ns/a", 2)]
    assert made.admitted == {"ns/a", "ns/b"}


def test_what_a_newcomer_starts_with_costs_it_no_pause() -> None:
    a = job("a", 1, 4, pause=timedelta(hours=10))
    assert by_job(plan(world(TWO_BY_TWO, [a]), NOW))["a"].new == 4
    running = world(TWO_BY_TWO, [a], pods(a, "n1"))
    assert plan(running, NOW).unchanged["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE


def test_a_newcomer_whose_minimum_finds_no_room_does_not_grow() -> None:
    a, b = job("a", 5, 6), job("b", 1, 4, created=NOW)
    made = plan(world(TWO_BY_TWO, [a, b]), NOW)
    assert [(d.job, d.new) for d in made.decisions] == [("ns/b", 4)]


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.HOLD_AND_DRAIN, Mode.OFF])
def test_a_newcomer_starts_at_its_minimum_where_nothing_grows(mode: Mode) -> None:
    seen = world(TWO_BY_TWO, [job("a", 1, 4)])
    seen = replace(seen, policies=(QueuePolicy("default", mode=mode),))
    assert plan(seen, NOW).decisions == ()


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        ({"last_scale": NOW - timedelta(seconds=5), "last_reason": "GaveUpMinimum"}, 0),
        ({"unmodelled": "resourceClaims"}, 0),
        ({"desired": 3}, 0),
        ({}, 1),
    ],
    ids=["cooling down", "unmodelled", "its surplus waits", "it runs, and pays a pause"],
)
def test_who_has_room_for_its_minimum_does_not_always_grow(
    more: dict[str, Any], bound: int
) -> None:
    a = replace(job("a", 2, 4), **more)
    mine = [pod(a, i, "n1" if i < bound else None, age=5) for i in range(a.desired)]
    assert plan(world(TWO_BY_TWO, [a], mine), NOW).decisions == ()


def test_who_gives_up_surplus_that_found_no_place_does_not_grow_at_once() -> None:
    a = job("a", 2, 4, 3)
    (made,) = plan(world(TWO_BY_TWO, [a], pods(a, None, None, None)), NOW).decisions
    assert (made.new, made.reason) == (2, Reason.SURPLUS_UNPLACED)


def test_who_gives_to_a_claim_gives_the_rest_of_a_step_to_who_gains_more() -> None:
    """In one pause, and with a reason that names both."""
    a = job("a", 1, 8, 8, gpu_hours=99.0)
    new = job("new", 1, 8, created=NOW)
    on = pods(a, *["n1"] * 4, *["n2"] * 4)
    seen = world([node("n1", 4), node("n2", 4)], [a, new], on)
    (made,) = plan(seen, NOW).decisions
    assert (made.job, made.old, made.new) == ("ns/a", 8, 4)
    assert made.reason is Reason.REBALANCED
    assert made.message == (
        "new needs 1 GPU to start, and gains more from the rest; a gives 4 workers"
    )
    steady = replace(seen, policies=(QueuePolicy("default", rebalance=Rebalance(gap=0)),))
    assert [d.new for d in plan(steady, NOW).decisions] == [7]


def test_growth_waits_until_leaving_pods_are_gone() -> None:
    a = job("a", 1, 4, 2)
    finished = job("gone", 1, 1)
    dying = [pod(finished, 0, "n2", terminating=True)]
    made = plan(world(TWO_BY_TWO, [a], pods(a, "n1", "n1"), dying), NOW)
    assert by_job(made)["a"].new == 3


def test_a_size_off_node_unit_is_rounded_down_at_once() -> None:
    a = job("a", 2, 4, 3, node_unit=2, last_scale=NOW)
    decision = by_job(plan(world(TWO_BY_TWO, [a], pods(a, "n1", "n1", "n2")), NOW))["a"]
    assert (decision.new, decision.reason) == (2, Reason.ROUNDED_TO_UNIT)
    assert decision.remove == ("ns/a-worker-2",)


@pytest.mark.parametrize(
    ("desired", "new", "reason"),
    [(4, 3, Reason.LOWERED_TO_MAX), (1, 2, Reason.RAISED_TO_MIN)],
)
def test_a_size_outside_min_and_max_is_put_right(desired: int, new: int, reason: Reason) -> None:
    a = job("a", 2, 3, desired)
    where = ("n1", "n1", "n2", "n2")[:desired]
    decision = by_job(plan(world(TWO_BY_TWO, [a], pods(a, *where)), NOW))["a"]
    assert (decision.new, decision.reason) == (new, reason)


def test_the_first_growth_has_no_cooldown_the_second_has() -> None:
    a = job("a", 1, 4, 2)
    fresh = world(TWO_BY_TWO, [a], pods(a, "n1", "n1"))
    assert by_job(plan(fresh, NOW))["a"].new == 4
    scaled = replace(a, last_scale=NOW - timedelta(seconds=59))
    cooling = replace(fresh, jobs=(scaled,))
    assert plan(cooling, NOW).unchanged["ns/a"].why_not_more is Reason.COOLING_DOWN
    assert by_job(plan(cooling, NOW + timedelta(seconds=1)))["a"].new == 4


def test_growth_that_waits_is_not_taken_back_for_whoever_may_go_anywhere() -> None:
    tainted = replace(node("n2", 4), taints=(("dedicated", "x", "NoSchedule"),))
    anywhere = ({"key": "dedicated", "operator": "Exists"},)
    a = job("a", 1, 4, 4, created=NOW - timedelta(hours=1), tolerations=anywhere)
    b = job("b", 1, 3, 3)
    held = [*pods(a, "n2", None, None, None), *pods(b, "n1", None, None)]
    grown = [replace(p, created=NOW) for p in held]
    made = plan(world([node("n1", 4), tainted], [a, b, job("c", 1, 1)], grown), NOW)
    assert made.decisions == () and made.admitted == {"ns/a", "ns/b", "ns/c"}


def test_growth_is_shared_equally_by_equal_jobs() -> None:
    nodes = [node(f"n{i}", 4) for i in range(2)]
    a, b = job("a", 1, 8), job("b", 1, 8)
    made = by_job(plan(world(nodes, [a, b], pods(a, "n0"), pods(b, "n1")), NOW))
    assert (made["a"].new, made["b"].new) == (4, 4)


def test_growth_stops_at_max_and_the_rest_goes_to_others() -> None:
    a, b = job("a", 1, 2), job("b", 1, 8)
    made = by_job(plan(world([node("n0", 8)], [a, b], pods(a, "n0"), pods(b, "n0")), NOW))
    assert (made["a"].new, made["b"].new) == (2, 6)


def test_a_pod_of_another_scheduler_that_waits_keeps_growth_out() -> None:
    a = job("a", 1, 4)
    stranger = pod(job("x", 1, 1), 0, None, job=None, gang=None)
    made = plan(world([node("n1")], [a], pods(a, "n1"), [stranger]), NOW)
    assert made.decisions == ()


def test_a_job_whose_workers_finish_does_not_grow() -> None:
    a = job("a", 1, 4, 2, succeeded=1)
    made = plan(world(TWO_BY_TWO, [a], [pod(a, 0, "n1")]), NOW)
    assert made.unchanged["ns/a"].why_not_more is Reason.FINISHING


def test_a_plan_does_not_depend_on_the_order_of_its_input() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 1, 4), job("c", 1, 1, priority=1)
    first = world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2"))
    second = replace(first, nodes=first.nodes[::-1], pods=first.pods[::-1], jobs=first.jobs[::-1])
    assert plan(first, NOW) == plan(second, NOW)
