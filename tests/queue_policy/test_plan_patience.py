"""The planner's patience: what is not tried again at once, and what doesn't wait for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.queue_policy.world import (
    EIGHT,
    NOW,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pod,
    pods,
    ruled,
    seconds,
    settled,
    world,
)
from volcano_elastic.api.queue_policy import ForOtherQueues, Mode, Shrink
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Gang, Job, Pod, Queue, Snapshot


def turns(snapshot: Snapshot, *moments: float) -> list[Plan]:
    """Plans at these seconds, each with the memory of the one before."""
    found: list[Plan] = []
    for moment in moments:
        found.append(plan(snapshot, NOW + seconds(moment)))
        snapshot = replace(snapshot, memory=found[-1].memory)
    return found


def test_a_claim_that_has_room_and_does_not_start_is_set_aside_for_longer_each_time() -> None:
    a, stuck = job("a", 1, 8), job("stuck", 4, 4)
    seen = world(EIGHT, [a, stuck], pods(a, "n1"), pods(stuck, *[None] * 4))
    made = turns(ruled(seen, mode=Mode.HOLD), 0, 14, 15, 74, 75, 90, 209, 211)
    assert ["ns/stuck" in each.blocked for each in made] == [
        False, False, True, True, False, True, True, False,
    ]  # fmt: skip
    assert "did not start" in made[2].blocked["ns/stuck"]
    (_, _, aside) = turns(seen, 0, 14, 15)
    assert new_size(aside, "a") == 8


def test_a_claim_whose_victims_still_leave_is_not_set_aside() -> None:
    a, b = job("a", 1, 8, 8), job("b", 2, 2)
    start = world(EIGHT, [a, b], pods(a, *["n1"] * 8))
    first = plan(start, NOW)
    waiting = applied(start, first, NOW)
    assert plan(replace(waiting, memory=first.memory), NOW + seconds(20)).blocked == {}


def others(count: int, gang: str | None) -> list[Pod]:
    """Pods of 2 GPUs that wait, and are no job's."""
    owner = job("other", 1, 1, pod_requests=gpus(2))
    return [pod(owner, i, None, job=None, gang=gang) for i in range(count)]


@pytest.mark.parametrize("gang", [None, "ns/other"], ids=["nobody's", "of a gang of three"])
def test_room_is_not_kept_for_ever_for_pods_that_do_not_take_it(gang: str | None) -> None:
    """A volume that isn't there, say, or a gang whose other pods never come."""
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), others(2, gang))
    seen = replace(seen, gangs=(Gang("ns/other", "default", 3, NOW),) if gang else ())
    made = turns(seen, 0, 14, 15, 74, 76)
    assert [new_size(each, "a") for each in made] == [4, 4, 8, 8, 4]


def test_no_room_is_kept_for_pods_that_their_queue_has_none_for() -> None:
    a, queues = job("a", 1, 8), (Queue("default"), Queue("small", capability=gpus(2)))
    seen = world(EIGHT, [a], pods(a, "n1"), others(2, "ns/other"), queues=queues)
    gang = Gang("ns/other", "small", 0, NOW)
    assert new_size(plan(replace(seen, gangs=(gang,)), NOW), "a") == 6
    closed = (queues[0], replace(queues[1], open=False))
    assert new_size(plan(replace(seen, gangs=(gang,), queues=closed), NOW), "a") == 8


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.DRY_RUN])
def test_half_a_unit_that_runs_stays_where_nothing_may_be_changed(mode: Mode) -> None:
    a = job("a", 2, 8, 6, node_unit=2)
    seen = world([node("n1", 5)], [a], pods(a, *["n1"] * 5))
    assert new_size(plan(seen, NOW), "a") == 4
    made = plan(ruled(seen, mode=mode), NOW)
    assert [d for d in made.decisions if not d.dry_run] == []


def test_gangs_of_others_go_by_priority_and_count_the_pods_they_have() -> None:
    vcjob = Gang("ns/other", "default", 4, NOW, priority=5, pod_requests=gpus(2))
    first = job("first", 4, 4, created=NOW - timedelta(days=1))
    seen = replace(world(EIGHT, [first], others(2, "ns/other")), gangs=(vcjob,))
    assert plan(seen, NOW).blocked.keys() == {"ns/first"}
    assert plan(replace(seen, nodes=(node("n1", 12),)), NOW).blocked == {}
    seen = replace(seen, gangs=(replace(vcjob, priority=-1),))
    assert plan(seen, NOW).blocked.keys() == {"ns/other"}


def blocking(first: datetime, second: datetime) -> tuple[Snapshot, Job, Job]:
    """Two gangs of two that have one pod each on a node of two."""
    a, b = job("a", 2, 2, created=first), job("b", 2, 2, created=second)
    halves: list[Pod] = [pod(a, 0, "n1"), pod(b, 0, "n1"), pod(a, 1, None), pod(b, 1, None)]
    return world([node("n1", 2)], [a, b], halves), a, b


def test_of_gangs_that_block_each_other_the_least_entitled_gives_up_all_its_pods() -> None:
    seen, _, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    early, late = turns(seen, 0, 60)
    assert early.decisions == () and set(early.blocked) == {"ns/a", "ns/b"}
    (decision,) = late.decisions
    assert (decision.job, decision.new, decision.reason) == ("ns/b", 2, Reason.GAVE_UP_MINIMUM)
    assert set(decision.remove) == {"ns/b-worker-0", "ns/b-worker-1"}
    assert set(late.blocked) == {"ns/b"}
    after = settled(applied(seen, late, NOW + seconds(60)))
    assert {p.job for p in after.pods if p.node} == {"ns/a"}


def test_a_gang_is_not_given_up_where_that_helps_nobody() -> None:
    seen, a, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    larger = replace(a, min=4, max=4, desired=4)
    seen = replace(seen, jobs=(larger, *seen.jobs[1:]))
    assert turns(seen, 0, 61)[-1].decisions == ()


def test_surplus_that_finds_no_place_again_rests_twice_as_long() -> None:
    a = job("a", 1, 4, 1, cooldown=seconds(60))
    seen, now = world([node("n1", 4)], [a], pods(a, "n1")), NOW
    rests: list[float] = []
    gave_up = NOW
    for _ in range(3):
        made = plan(seen, now)
        while not made.decisions:
            now += seconds(1)
            made = plan(seen, now)
        if seen.memory.unplaced:
            rests.append((now - gave_up).total_seconds())
        seen = applied(seen, made, now)
        now += seconds(31)
        made = plan(seen, now)
        assert by_job(made)["a"].reason is Reason.SURPLUS_UNPLACED
        seen, gave_up = applied(seen, made, now), now
    assert rests == [60, 120]


def test_surplus_that_found_no_place_is_tried_again_when_a_node_comes() -> None:
    a = job("a", 1, 2, 2, cooldown=seconds(3))
    gone = replace(node("n2", 1), ready=False)
    seen, now = world([node("n1", 1), gone], [a], pods(a, "n1")), NOW
    whole = (node("n1", 1), node("n2", 1))
    rests: list[float] = []
    for _ in range(3):
        made = plan(seen, now)
        assert by_job(made)["a"].reason is Reason.SURPLUS_UNPLACED
        seen, gave_up = applied(seen, made, now), now
        seen = replace(seen, nodes=whole)
        made = plan(seen, now)
        while not made.decisions:
            seen = replace(seen, memory=made.memory)
            now += seconds(1)
            made = plan(seen, now)
        assert by_job(made)["a"].new == 2
        rests.append((now - gave_up).total_seconds())
        seen = applied(seen, made, now)
        # The node goes again, and the pod that ran there with it.
        seen = replace(
            seen, nodes=(node("n1", 1), gone), pods=tuple(p for p in seen.pods if p.node)
        )
        now += seconds(1)
    assert rests == [3, 60, 120], "a node that comes and goes isn't followed each time"


def test_who_is_to_be_left_alone_is_not_given_up() -> None:
    seen, _, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    assert turns(ruled(seen, mode=Mode.OFF), 0, 61)[-1].decisions == ()


def test_who_is_to_be_left_alone_keeps_its_placed_workers_beside_a_new_worker_0() -> None:
    """Whole units are given up, in which worker 0 has a place though it isn't there now."""
    a = job("a", 4, 6, 6, node_unit=2)
    mine = [pod(a, index, on) for index, on in ((1, "n1"), (2, "n2"), (3, "n1"), (6, "n2"))]
    nodes = [node("n1", 3), replace(node("n2", 2), ready=False)]
    seen = ruled(world(nodes, [a], mine), mode=Mode.OFF)
    assert not any(decision.remove for decision in plan(seen, NOW).decisions)


def test_gangs_of_others_are_not_given_up_nor_are_those_that_go_before_them() -> None:
    seen, a, _ = blocking(NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    theirs = [replace(p, job=None) if p.job == "ns/b" else p for p in seen.pods]
    gang = Gang("ns/b", "default", 2, created=NOW - timedelta(hours=1))
    made = turns(replace(seen, jobs=(a,), pods=tuple(theirs), gangs=(gang,)), 0, 61)[-1]
    assert made.decisions == () and set(made.blocked) == {"ns/a", "ns/b"}


def test_what_a_gang_that_gives_up_leaves_over_serves_others_that_wait() -> None:
    a = job("a", 2, 2, created=NOW - timedelta(hours=2))
    b = job("b", 3, 3, created=NOW - timedelta(hours=1))
    halves = [*pods(a, "n1", None), *pods(b, "n1", "n1", None)]
    seen = world([node("n1", 3)], [a, b, job("c", 1, 1, created=NOW)], halves)
    early, late = turns(seen, 0, 61)
    assert set(early.blocked) == {"ns/a", "ns/b", "ns/c"}
    assert set(late.blocked) == {"ns/b"} and late.admitted == {"ns/a", "ns/c"}


def test_pods_of_others_that_run_or_leave_keep_no_room_beside_their_own() -> None:
    a = job("a", 1, 8)
    runs, leaves = others(2, "ns/other")
    theirs = [replace(runs, node="n1", running=True), replace(leaves, terminating=True)]
    seen = world(EIGHT, [a], pods(a, "n1"), theirs)
    made = plan(replace(seen, gangs=(Gang("ns/other", "default", 0, NOW),)), NOW)
    assert new_size(made, "a") == 6


def test_a_gang_that_cannot_start_keeps_no_room_for_its_pods() -> None:
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), others(4, "ns/other"))
    made = plan(replace(seen, gangs=(Gang("ns/other", "default", 4, NOW),)), NOW)
    assert set(made.blocked) == {"ns/other"}
    assert new_size(made, "a") == 8


# Who goes first


def reserved_to_its_queue() -> tuple[Snapshot, Job]:
    """`first`, of another queue, may not ask for what its queue has a right to; `later` may."""
    queues = (Queue("q", deserved=gpus(2)), Queue("r"))
    a = job("a", 1, 2, 2, queue="q")
    first, later = job("first", 1, 1, queue="r", priority=1), job("later", 1, 1, queue="q")
    seen = world([node("n1", 2)], [a, first, later], pods(a, "n1", "n1"), queues=queues)
    return ruled(seen, "q", shrink=Shrink(for_other_queues=ForOtherQueues.BORROWED)), later


def reserved_to_its_job() -> tuple[Snapshot, Job]:
    """The only worker of `later` may leave for its own worker 0, and for nobody else."""
    first, later = job("first", 2, 2, priority=1), job("later", 1, 2, 2)
    mine = [pod(first, 0, None), pod(first, 1, "n1"), pod(later, 0, None), pod(later, 1, "n2")]
    return world([node("n1", 1), node("n2", 1)], [first, later], mine), later


@pytest.mark.parametrize("found", [reserved_to_its_queue(), reserved_to_its_job()])
def test_who_could_not_ask_for_what_leaves_for_another_does_not_take_it(
    found: tuple[Snapshot, Job],
) -> None:
    seen, later = found
    made = plan(seen, NOW)
    assert (set(made.blocked), made.memory.ahead) == ({"ns/first"}, (later.key,))
    leaving = applied(seen, made, NOW)
    made = plan(leaving, NOW)
    assert (set(made.blocked), made.decisions) == ({"ns/first"}, ())
    gone = replace(leaving, pods=tuple(p for p in leaving.pods if not p.terminating))
    made = plan(replace(gone, memory=made.memory), NOW)
    assert (set(made.blocked), made.decisions) == ({"ns/first"}, ())
    free = next(iter({"n1", "n2"} - {p.node for p in gone.pods}), "n1")
    runs = tuple(
        replace(p, node=free, running=True) if p.job == later.key and p.node is None else p
        for p in gone.pods
    )
    assert plan(replace(gone, pods=runs, memory=made.memory), NOW).memory.ahead == ()


def test_who_leaves_for_the_first_in_order_puts_nobody_ahead() -> None:
    a, first, later = job("a", 1, 2, 2), job("first", 1, 1, priority=1), job("later", 1, 1)
    made = plan(world([node("n1", 2)], [a, first, later], pods(a, "n1", "n1")), NOW)
    assert (set(made.blocked), made.memory.ahead) == ({"ns/later"}, ())
