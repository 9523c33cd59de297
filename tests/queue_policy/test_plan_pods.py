"""Pods outside jobs and gangs, of a Deployment for instance, that no scheduler finds a node for:
surplus of no higher priority leaves for them, and nothing but surplus."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.queue_policy.random_snapshots import with_pods
from tests.queue_policy.test_plan_everything import active, policy_of, thorough
from tests.queue_policy.world import (
    EIGHT,
    NOW,
    WEB,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pods,
    ruled,
    seconds,
    web,
    world,
)
from volcano_elastic.api.queue_policy import ForOtherQueues, ForPods, Mode, Shrink
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Gang, Pod, Queue, Snapshot

FULL = job("a", 1, 8, 8, cooldown=seconds(0))


def beside(*asking: Pod, size: int = 8, **more: object) -> Snapshot:
    """Pods that wait beside job a with so many workers, which fill the node where size is 8."""
    a = replace(FULL, desired=size, **more)  # type: ignore[arg-type]
    return world(EIGHT, [a], pods(a, *["n1"] * size), asking)


def test_surplus_leaves_for_pods_of_a_deployment_and_says_whose_they_are() -> None:
    (decision,) = plan(beside(web(0), web(1)), NOW).decisions
    assert (decision.new, decision.reason) == (6, Reason.SHRUNK_FOR_POD)
    assert decision.remove == ("ns/a-worker-7", "ns/a-worker-6")
    assert decision.message == (
        "2 pods of ReplicaSet shop/web-5d9 need 2 GPUs to start; "
        "a gives back 2 of its 7 surplus workers"
    )


def test_a_pod_of_nobody_is_named_itself() -> None:
    (decision,) = plan(beside(web(0, owner=None)), NOW).decisions
    assert decision.message.startswith("pod shop/web-5d9-0 needs 1 GPU to start; ")


@pytest.mark.parametrize(
    ("rule", "priority", "leaves"),
    [
        (ForPods.NOT_LOWER, 5, True),
        (ForPods.NOT_LOWER, 4, False),
        (ForPods.HIGHER, 5, False),
        (ForPods.HIGHER, 6, True),
        (ForPods.NONE, 100, False),
    ],
)
def test_priority_decides_whether_surplus_leaves_for_a_pod(
    rule: ForPods, priority: int, leaves: bool
) -> None:
    seen = beside(web(0, priority=priority), priority=5)
    made = plan(ruled(seen, shrink=Shrink(for_pods=rule)), NOW)
    assert new_size(made, "a") == (7 if leaves else None)
    said = {} if leaves else {"shop/web-5d9-0": made.blocked_pods.get("shop/web-5d9-0")}
    assert (made.blocked, made.blocked_pods) == ({}, said)
    assert leaves or f"no surplus gives way to a pod of priority {priority}" in str(said)


def test_nobody_leaves_for_a_pod_that_has_not_been_tried_or_of_an_unknown_scheduler() -> None:
    for other in ({"unschedulable_since": None}, {"scheduler": "stork"}, {"terminating": True}):
        assert plan(beside(web(0, **other)), NOW).decisions == ()


def test_nothing_leaves_for_a_pod_that_could_not_start_even_then() -> None:
    assert plan(beside(web(0, size=8)), NOW).decisions == ()
    made = plan(beside(web(0, size=7)), NOW)
    assert new_size(made, "a") == 1


def test_a_minimum_stays_whatever_a_pods_priority_is() -> None:
    a = job("a", 8, 8)
    made = plan(world(EIGHT, [a], pods(a, *["n1"] * 8), [web(0, priority=10**9)]), NOW)
    assert made.decisions == ()
    assert "too little room" in made.blocked_pods["shop/web-5d9-0"]


def test_where_no_surplus_gives_way_a_pod_still_takes_what_is_idle() -> None:
    seen = beside(web(0, priority=-1), web(1, priority=-1), size=7)
    made = plan(seen, NOW)
    assert made.decisions == () and len(made.blocked_pods) == 1


def test_room_that_a_pod_was_given_is_not_taken_back_before_its_scheduler_has_placed_it() -> None:
    planner, seen = Planner(), beside(web(0))
    seen = applied(seen, planner.plan(seen, NOW), NOW)
    leaving = planner.plan(seen, NOW + seconds(1))
    assert leaving.decisions == ()
    gone = replace(seen, pods=tuple(p for p in seen.pods if not p.terminating))
    held = planner.plan(gone, NOW + seconds(2))
    assert held.decisions == ()
    assert held.unchanged["ns/a"].why_not_more is Reason.ROOM_OWED_TO_MINIMUM
    placed = [p if p.job else replace(p, node="n1") for p in gone.pods]
    assert planner.plan(replace(gone, pods=tuple(placed)), NOW + seconds(3)).decisions == ()
    without = replace(gone, pods=tuple(p for p in gone.pods if p.job))
    assert new_size(planner.plan(without, NOW + seconds(3)), "a") == 8


GANG = Gang("shop/gang", "default", 1, created=NOW)
ALONE_OR_GANG = pytest.mark.parametrize("gangs", [(), (GANG,)], ids=["alone", "gang"])


def whole_node(gangs: tuple[Gang, ...]) -> Pod:
    """A pod that needs all CPUs of a node, beside which no worker fits."""
    return web(0, requests={"cpu": 64_000}, gang=gangs[0].key if gangs else None)


@ALONE_OR_GANG
def test_nothing_grows_that_could_land_on_the_node_which_surplus_has_left_for_others(
    gangs: tuple[Gang, ...],
) -> None:
    each = {"pod_requests": gpus(1, cpus=1)}
    a, b = job("a", 1, 3, 3, **each), job("b", 1, 2, **each)
    groups = pods(a, "n1", "n1", "n0"), pods(b, "n1")
    seen = world((node("n0", 2), node("n1", 4)), [a, b], *groups, [whole_node(gangs)])
    seen = replace(seen, gangs=gangs)
    # A GPU of n1 is idle, but a scheduler may well bind a new worker to n0.
    made = plan(seen, NOW)
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 2}
    assert made.unchanged["ns/b"].why_not_more is Reason.ROOM_OWED_TO_MINIMUM
    left = applied(seen, made, NOW)
    left = replace(left, pods=tuple(p for p in left.pods if not p.terminating))
    assert plan(left, NOW + seconds(5)).decisions == ()
    bound = [replace(p, node="n0", running=True) if p.job is None else p for p in left.pods]
    assert new_size(plan(replace(left, pods=tuple(bound)), NOW + seconds(6)), "b") == 2


def without_leaving(seen: Snapshot, *more: Pod) -> Snapshot:
    """Return the snapshot once those told to leave have left, with these pods in their place."""
    return replace(seen, pods=(*(p for p in seen.pods if not p.terminating), *more))


def test_a_pod_whose_place_a_newer_one_took_waits_for_no_more_than_surplus_to_leave() -> None:
    planner, seen = Planner(), beside(web(0))
    seen = without_leaving(applied(seen, planner.plan(seen, NOW), NOW))
    # Bound before anybody saw it wait: the default scheduler lets an older pod wait a while.
    newer = replace(web(1), node="n1", running=True, unschedulable_since=None)
    made = planner.plan(without_leaving(seen, newer), NOW + seconds(1))
    assert [(d.new, d.reason) for d in made.decisions] == [(6, Reason.SHRUNK_FOR_POD)]


@ALONE_OR_GANG
def test_nothing_leaves_a_third_time_while_others_have_what_left(gangs: tuple[Gang, ...]) -> None:
    each = {"pod_requests": gpus(1, cpus=1), "max": 2}
    jobs = [job(name, 1, 2, 2, **each) for name in "abc"]
    groups = [pods(one, "n9", on) for one, on in zip(jobs, ("n0", "n1", "n2"), strict=True)]
    nodes = (node("n0", 1), node("n1", 1), node("n2", 1), node("n9", 3))
    seen = replace(world(nodes, jobs, *groups, [whole_node(gangs)]), gangs=gangs)
    reason = Reason.SHRUNK_FOR_MINIMUM if gangs else Reason.SHRUNK_FOR_POD
    for at in (0, 10):
        made = plan(seen, NOW + seconds(at))
        (decision,) = made.decisions
        assert decision.reason is reason
        # While that has not been carried out, it is asked for again.
        again = plan(replace(seen, memory=made.memory), NOW + seconds(at + 1))
        assert again.decisions == made.decisions
        on = next(p.node for p in seen.pods if p.key in decision.remove)
        stranger = Pod(f"shop/{on}", f"other-{on}", gpus(0, cpus=64), node=on, running=True)
        left = applied(seen, made, NOW + seconds(at))
        seen = replace(without_leaving(left, stranger), memory=made.memory)
    made = plan(seen, NOW + seconds(45))
    blocked = made.blocked[GANG.key] if gangs else made.blocked_pods["shop/web-5d9-0"]
    assert made.decisions == () and "left for it" in blocked
    again = plan(replace(seen, memory=made.memory), NOW + seconds(71))
    assert {d.reason for d in again.decisions} == {reason}


def test_a_pod_that_something_else_keeps_away_holds_no_room_for_ever() -> None:
    planner, seen = Planner(), beside(web(0), size=7)
    assert planner.plan(seen, NOW).decisions == ()
    assert new_size(planner.plan(seen, NOW + seconds(16)), "a") == 8


def test_a_job_is_chosen_that_gives_way_whoever_else_has_more_surplus() -> None:
    high, low = job("high", 1, 6, 6, priority=9), job("low", 1, 2, 2)
    seen = world(EIGHT, [high, low], pods(high, *["n1"] * 6), pods(low, *["n1"] * 2), [web(0)])
    assert {name: d.new for name, d in by_job(plan(seen, NOW)).items()} == {"low": 1}


def test_a_queue_that_lends_only_what_it_borrows_lends_pods_no_more() -> None:
    seen = replace(beside(web(0), web(1)), queues=(Queue("default", deserved=gpus(7)),))
    made = plan(ruled(seen, shrink=Shrink(for_other_queues=ForOtherQueues.BORROWED)), NOW)
    assert new_size(made, "a") == 7
    assert len(made.blocked_pods) == 1


def test_of_a_podgroup_that_volcano_made_for_a_deployment_every_pod_counts() -> None:
    gang = Gang("shop/podgroup-1", "default", 1, NOW, loose=True)
    mine = [
        web(i, gang=gang.key, scheduler="volcano", unschedulable_since=None, owner=WEB)
        for i in range(3)
    ]
    seen = replace(beside(*mine), gangs=(gang,))
    (decision,) = plan(seen, NOW).decisions
    assert (decision.new, decision.reason) == (5, Reason.SHRUNK_FOR_MINIMUM)
    assert decision.message.startswith("3 pods of ReplicaSet shop/web-5d9 need 3 GPUs to start; ")
    running = [replace(mine[0], node="n2"), *mine[1:]]
    later = replace(beside(*running), gangs=(gang,), nodes=(*EIGHT, node("n2", 1)))
    (decision,) = plan(later, NOW).decisions
    assert (decision.new, decision.reason) == (6, Reason.SHRUNK_FOR_POD)
    elastic = replace(later, gangs=(replace(gang, loose=False),))
    assert plan(elastic, NOW).decisions == (), "the surplus of a vcjob"


@thorough
@given(with_pods())
def test_only_surplus_that_gives_way_leaves_for_pods(snapshot: Snapshot) -> None:
    jobs, top = {j.key: j for j in snapshot.jobs}, 2
    there = {p.key: p for p in snapshot.pods}
    for decision in active(plan(snapshot, NOW)).decisions:
        if decision.reason is not Reason.SHRUNK_FOR_POD:
            continue
        owner = jobs[decision.job]
        policy = policy_of(snapshot, owner)
        if any(there[key].node for key in decision.remove):
            assert policy.mode not in (Mode.OFF, Mode.DRY_RUN)
        assert decision.new >= owner.min
        rule = policy.shrink.for_pods
        assert rule is not ForPods.NONE and top >= owner.priority + (rule is ForPods.HIGHER)


@thorough
@given(with_pods())
def test_with_pods_that_wait_the_next_plan_takes_nothing_back(snapshot: Snapshot) -> None:
    first = active(plan(snapshot, NOW))
    second = active(plan(applied(snapshot, first, NOW), NOW))
    before = {d.job: d.new - d.old for d in first.decisions}
    assert not any(before.get(d.job, 0) * (d.new - d.old) < 0 for d in second.decisions)


@thorough
@given(with_pods())
def test_pods_that_wait_never_keep_a_minimum_from_starting(snapshot: Snapshot) -> None:
    """Those of no higher priority than any job, that is: they come after it in every order."""
    older = [replace(p, priority=-9, created=NOW) if p.owner == WEB else p for p in snapshot.pods]
    behind = replace(snapshot, pods=tuple(older))
    without = replace(snapshot, pods=tuple(p for p in snapshot.pods if p.owner != WEB))
    assert plan(behind, NOW).blocked.keys() <= plan(without, NOW).blocked.keys()
