"""What the planner promises, situation by situation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from planner_world import (
    NOW,
    TWO_BY_TWO,
    applied,
    by_job,
    gpus,
    job,
    node,
    pod,
    pods,
    settled,
    world,
)

from volcano_elastic.api.queue_policy import Mode, QueuePolicy, Rebalance
from volcano_elastic.queue_policy.decision import Reason, Stay
from volcano_elastic.queue_policy.explain import WORDS, explain, lines
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.queue_policy.snapshot import Gang, Requirement


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
    assert plan(running, NOW).stays["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE


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


def test_a_claim_that_fits_in_idle_room_shrinks_nobody() -> None:
    a, b = job("a", 1, 4, 2), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1")), NOW)
    assert made.decisions == ()
    assert made.stays["ns/a"] == Stay(Reason.ROOM_OWED_TO_MINIMUM, Reason.NOT_NEEDED)


def test_terminating_pods_count_as_coming_so_nobody_shrinks_twice() -> None:
    a, b = job("a", 1, 4, 2), job("b", 2, 4)
    dying = [pod(a, i, "n2", terminating=True) for i in (2, 3)]
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1"), dying), NOW)
    assert made.decisions == ()
    assert "ns/b" in made.admitted


def test_a_terminating_pod_past_its_grace_is_not_counted_as_coming() -> None:
    a, b = job("a", 1, 4, 2), job("b", 1, 4)
    stuck = [
        pod(a, i, "n2", terminating=True, leaves_by=NOW - timedelta(seconds=6)) for i in (2, 3)
    ]
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1"), stuck), NOW)
    assert by_job(made)["a"].new == 1


def test_a_shrink_under_way_is_not_repeated() -> None:
    a, b = job("a", 1, 4, 2, last_scale=NOW), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert made.decisions == ()
    assert made.admitted == {"ns/a", "ns/b"}


def test_growth_waits_until_leaving_pods_are_gone() -> None:
    a = job("a", 1, 4, 2)
    finished = job("gone", 1, 1)
    dying = [pod(finished, 0, "n2", terminating=True)]
    made = plan(world(TWO_BY_TWO, [a], pods(a, "n1", "n1"), dying), NOW)
    assert by_job(made)["a"].new == 3


def test_minimums_are_never_taken_and_the_newcomer_is_blocked_holding_nothing() -> None:
    a, c, b = job("a", 2, 4), job("c", 1, 4), job("b", 2, 4)
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1"), pods(c, "n2")), NOW)
    assert set(made.blocked) == {"ns/b"}
    assert "2 GPUs" in made.blocked["ns/b"]
    assert made.admitted == {"ns/a", "ns/c"}
    # The blocked claim holds nothing: c may have the idle GPU.
    assert by_job(made)["c"].new == 2


def test_largest_surplus_gives_first() -> None:
    nodes = [node(f"n{i}") for i in range(4)]
    a, c = job("a", 1, 8, 5), job("c", 1, 8, 3)
    b = job("b", 2, 2)
    made = plan(
        world(nodes, [a, b, c], pods(a, "n0", "n0", "n1", "n1", "n2"), pods(c, "n2", "n3", "n3")),
        NOW,
    )
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 3}


def test_a_pod_that_waits_leaves_before_one_that_runs() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1)
    made = plan(
        world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", None)),
        NOW + timedelta(seconds=-290),
    )
    decision = by_job(made)["a"]
    assert decision.remove == ("ns/a-worker-3",)
    assert decision.reason is Reason.SHRUNK_FOR_MINIMUM


def test_a_bound_pod_leaves_before_a_running_one_of_higher_index() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1)
    mine = [p if p.index != 1 else replace(p, running=False) for p in pods(a, *["n1"] * 4)]
    made = plan(world([node("n1", 4)], [a, b], mine), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-1",)


def test_the_node_is_chosen_so_that_a_big_pod_really_fits() -> None:
    nodes = [node("n1"), node("n2")]
    a = job("a", 1, 3, 3)
    # n1 holds worker 0 and worker 2; n2 worker 1: only emptying n2 lets a 2-GPU pod in.
    b = job("b", 1, 1, pod_requests=gpus(2))
    mine = [pod(a, 0, "n1"), pod(a, 1, "n2"), pod(a, 2, "n1")]
    made = plan(world(nodes, [a, b], mine), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-1",)


def test_a_protected_pod_leaves_only_if_nothing_else_helps() -> None:
    nodes = [node("n1", labels={"zone": "x"}), node("n2")]
    a = job("a", 2, 4, 4)
    b = job("b", 1, 1, node_selector={"zone": "x"})
    mine = [pod(a, 0, "n1"), pod(a, 1, "n1"), pod(a, 2, "n2"), pod(a, 3, "n2")]
    decision = by_job(plan(world(nodes, [a, b], mine), NOW))["a"]
    assert decision.remove == ("ns/a-worker-1",)
    assert decision.new == 3


def test_worker_0_never_leaves() -> None:
    nodes = [node("n1", 1, labels={"zone": "x"}), node("n2")]
    a = job("a", 1, 3, 3)
    b = job("b", 1, 1, node_selector={"zone": "x"})
    made = plan(world(nodes, [a, b], pods(a, "n1", "n2", "n2")), NOW)
    assert made.decisions == ()
    assert "ns/b" in made.blocked


def test_whole_node_units_leave() -> None:
    a, b = job("a", 2, 8, 4, node_unit=2), job("b", 1, 1)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-3", "ns/a-worker-2")


def test_a_job_of_single_nodes_gives_rather_than_a_whole_unit() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    a, c = job("a", 2, 8, 4, node_unit=2), job("c", 3, 8, 4)
    b = job("b", 1, 1)
    made = plan(world(nodes, [a, b, c], pods(a, *["n1"] * 4), pods(c, *["n2"] * 4)), NOW)
    assert {name: d.new for name, d in by_job(made).items()} == {"c": 3}


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


def test_a_running_job_without_worker_0_takes_its_own_surplus_and_goes_first() -> None:
    c = job("c", 1, 4, 3, created=NOW - timedelta(hours=1))
    a = job("a", 1, 4, 3)
    b = job("b", 1, 1, priority=100)
    mine = [pod(a, 1, "n1"), pod(a, 2, "n1")]
    nodes = [node("n1"), node("n2", 3)]
    made = plan(world(nodes, [a, b, c], mine, pods(c, "n2", "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-2",)
    assert by_job(made)["a"].new == 2
    assert by_job(made)["c"].remove == ("ns/c-worker-2",)
    assert made.blocked == {}


def test_worker_0_keeps_its_turn_while_the_pod_that_made_way_for_it_terminates() -> None:
    older = job("older", 1, 1, created=NOW - timedelta(hours=1))
    a = job("a", 1, 3, 2)
    start = world([node("n1", 1)], [a, older], [pod(a, 1, "n1")])
    made = plan(start, NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/a"}, {"ns/older"})
    next_made = plan(applied(start, made, NOW), NOW)
    assert (next_made.admitted, set(next_made.blocked)) == ({"ns/a"}, {"ns/older"})


def test_priority_then_creation_decide_who_gets_the_last_room() -> None:
    early = job("early", 2, 2, created=NOW - timedelta(hours=2))
    vip = job("vip", 2, 2, priority=10, created=NOW)
    made = plan(world([node("n1")], [early, vip]), NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/vip"}, {"ns/early"})
    same = replace(vip, priority=0)
    made = plan(world([node("n1")], [early, same]), NOW)
    assert (made.admitted, set(made.blocked)) == ({"ns/early"}, {"ns/vip"})


def test_a_claim_that_cannot_start_does_not_stop_a_smaller_one_behind_it() -> None:
    big = job("big", 5, 5, created=NOW - timedelta(hours=2))
    small = job("small", 2, 2)
    made = plan(world(TWO_BY_TWO, [big, small]), NOW)
    assert made.admitted == {"ns/small"}


def test_what_a_claim_in_vain_would_have_taken_still_helps_a_smaller_one_behind_it() -> None:
    a, b = job("a", 2, 4, 3, pod_requests=gpus(2)), job("b", 2, 5, 3)
    big = job("big", 2, 2, pod_requests=gpus(2), created=NOW - timedelta(hours=2))
    small = job("small", 1, 1)
    nodes, held = [node("n1", 4), node("n2", 4)], pods(a, "n1", "n1", "n2")
    made = plan(world(nodes, [a, b, big, small], held, pods(b, "n2", "n2")), NOW)
    assert by_job(made)["a"].remove == ("ns/a-worker-2",)
    assert made.admitted == {"ns/a", "ns/b", "ns/small"}


def test_the_first_growth_has_no_cooldown_the_second_has() -> None:
    a = job("a", 1, 4, 2)
    fresh = world(TWO_BY_TWO, [a], pods(a, "n1", "n1"))
    assert by_job(plan(fresh, NOW))["a"].new == 4
    scaled = replace(a, last_scale=NOW - timedelta(seconds=59))
    cooling = replace(fresh, jobs=(scaled,))
    assert plan(cooling, NOW).stays["ns/a"].why_not_more is Reason.COOLING_DOWN
    assert by_job(plan(cooling, NOW + timedelta(seconds=1)))["a"].new == 4


def test_cooldown_never_protects_surplus_from_a_minimum() -> None:
    a = job("a", 1, 4, 4, last_scale=NOW, cooldown=timedelta(hours=1))
    b = job("b", 2, 2)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].new == 2


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


def test_idle_gpus_on_a_node_without_cpus_are_no_room() -> None:
    starved = replace(node("n2"), allocatable=gpus(2, cpus=1))
    a = job("a", 1, 4, pod_requests=gpus(1, cpus=4))
    made = plan(world([node("n1", 1), starved], [a], pods(a, "n1")), NOW)
    assert made.stays["ns/a"] == Stay(Reason.NO_ROOM, Reason.AT_MIN)


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


def test_surplus_unbound_for_30_seconds_lowers_the_size_even_if_we_think_it_fits() -> None:
    a = job("a", 1, 4, 2, last_scale=NOW - timedelta(minutes=1))
    waits = world(TWO_BY_TWO, [a], [pod(a, 0, "n1"), pod(a, 1, None, age=29)])
    assert plan(waits, NOW).stays["ns/a"].why_not_more is Reason.WAITING_FOR_PODS
    decision = by_job(plan(waits, NOW + timedelta(seconds=2)))["a"]
    assert (decision.new, decision.reason) == (1, Reason.SURPLUS_UNPLACED)
    assert decision.remove == ("ns/a-worker-1",)
    after = applied(waits, plan(waits, NOW + timedelta(seconds=2)), NOW + timedelta(seconds=2))
    assert plan(after, NOW + timedelta(seconds=3)).decisions == ()


def test_evicted_surplus_that_has_no_place_any_more_is_given_up_at_once() -> None:
    a, c = job("a", 1, 4, 3), job("c", 1, 1)
    made = plan(
        world(
            TWO_BY_TWO,
            [a, c],
            pods(a, "n1", "n1"),
            pods(c, "n2"),
            [pod(job("other", 1, 1), 0, "n2", job=None, gang=None)],
        ),
        NOW,
    )
    assert by_job(made)["a"].reason is Reason.SURPLUS_UNPLACED
    assert by_job(made)["a"].remove == ()


def test_a_crashed_surplus_worker_keeps_its_place() -> None:
    a = job("a", 1, 4, 4)
    b = job("b", 1, 4)
    made = plan(
        world([*TWO_BY_TWO, node("n3", 1)], [a, b], pods(a, "n1", "n1", "n2"), pods(b, "n3")), NOW
    )
    assert made.decisions == ()
    assert made.stays["ns/b"].why_not_more is Reason.NO_ROOM


def test_a_pod_of_another_scheduler_that_waits_keeps_growth_out() -> None:
    a = job("a", 1, 4)
    stranger = pod(job("x", 1, 1), 0, None, job=None, gang=None)
    made = plan(world([node("n1")], [a], pods(a, "n1"), [stranger]), NOW)
    assert made.decisions == ()


def test_no_surplus_leaves_for_a_pod_without_a_gang() -> None:
    a = job("a", 1, 2, 2)
    stranger = pod(job("x", 1, 1), 0, None, job=None, gang=None)
    made = plan(world([node("n1")], [a], pods(a, "n1", "n1"), [stranger]), NOW)
    assert made.decisions == ()


def test_a_gang_of_another_controller_is_a_claim_once_its_pods_exist() -> None:
    a = job("a", 1, 4, 4)
    full = world(TWO_BY_TWO, [a], pods(a, "n1", "n1", "n2", "n2"))
    gang = Gang("ns/vc", "default", 2, created=NOW)
    owner = job("vc", 2, 2)
    waiting = [pod(owner, i, None, job=None) for i in range(2)]
    half = replace(full, gangs=(gang,), pods=(*full.pods, waiting[0]))
    assert plan(half, NOW).decisions == ()
    whole = replace(full, gangs=(gang,), pods=(*full.pods, *waiting))
    assert by_job(plan(whole, NOW))["a"].new == 2
    pending = replace(full, gangs=(replace(gang, pod_requests=gpus(1)),))
    assert by_job(plan(pending, NOW))["a"].new == 2


def test_a_job_with_a_master_claims_room_for_it_too() -> None:
    a = job("a", 1, 4, 4)
    b = job("b", 1, 1, master_requests=gpus(1))
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert by_job(made)["a"].new == 2


def test_workers_that_have_finished_are_no_claim() -> None:
    rigid = job("r", 3, 3, succeeded=2)
    a = job("a", 1, 4, 3)
    made = plan(
        world(TWO_BY_TWO, [rigid, a], [pod(rigid, 2, "n1")], pods(a, "n1", "n2", "n2")), NOW
    )
    assert made.decisions == () and made.blocked == {}


def test_a_job_whose_workers_finish_does_not_grow() -> None:
    a = job("a", 1, 4, 2, succeeded=1)
    made = plan(world(TWO_BY_TWO, [a], [pod(a, 0, "n1")]), NOW)
    assert made.stays["ns/a"].why_not_more is Reason.FINISHING


# Words


def test_every_code_has_words() -> None:
    assert set(WORDS) == set(Reason)


def test_explain_says_what_happens_to_each_job() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 2, 4), job("c", 9, 9)
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert explain("ns/a", made).startswith("4 -> 2 workers: b needs 2 GPUs")
    assert "does not grow" in explain("ns/b", made)
    assert "9 GPUs" in explain("ns/c", made)
    assert len(lines(made)) == 3


def test_several_claims_are_named_together() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 1, 1), replace(job("c", 2, 2), key="team/c")
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    (decision,) = made.decisions
    assert decision.message == (
        "ns/b and team/c need 3 GPUs to start; a gives back 3 of its 3 surplus workers"
    )


def test_a_plan_does_not_depend_on_the_order_of_its_input() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 1, 4), job("c", 1, 1, priority=1)
    first = world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2"))
    second = replace(first, nodes=first.nodes[::-1], pods=first.pods[::-1], jobs=first.jobs[::-1])
    assert plan(first, NOW) == plan(second, NOW)
