"""Surplus that has no node: which of it keeps a place, and which leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pod,
    pods,
    ruled,
    world,
)
from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Gang, Memory, Pod, Queue

FOR_AN_HOUR = {"ns/a": NOW.replace(hour=11), "ns/b": NOW.replace(hour=11)}


@pytest.mark.parametrize(
    ("queue", "size"),
    [(Queue("default", capability=gpus(3)), 3), (Queue("default", open=False), 2)],
    ids=["full", "closed"],
)
def test_evicted_surplus_that_its_queue_has_no_room_for_is_given_up_at_once(
    queue: Queue, size: int
) -> None:
    """Though the nodes have room for it."""
    a = job("a", 1, 4, 4)
    made = plan(world(TWO_BY_TWO, [a], pods(a, "n1", "n1"), queues=(queue,)), NOW)
    assert (by_job(made)["a"].new, by_job(made)["a"].reason) == (size, Reason.SURPLUS_UNPLACED)


def test_surplus_of_a_job_that_cannot_start_leaves_at_once_however_young() -> None:
    a = job("a", 2, 4, 4)
    mine = [pod(a, 0, "n1"), *(pod(a, i, None, age=1) for i in (1, 2, 3))]
    made = plan(world([node("n1", 1)], [a], mine), NOW)
    assert set(made.blocked) == {"ns/a"}
    assert (by_job(made)["a"].new, by_job(made)["a"].reason) == (2, Reason.SURPLUS_UNPLACED)
    assert by_job(made)["a"].remove == ("ns/a-worker-3", "ns/a-worker-2")


def test_worker_0_that_waits_is_no_surplus_even_where_its_own_may_not_make_way() -> None:
    a = job("a", 1, 4, 4)
    mine = [pod(a, 1, "n1"), pod(a, 2, "n1"), pod(a, 0, None, age=1), pod(a, 3, None, age=1)]
    made = plan(ruled(world([node("n1", 2)], [a], mine), mode=Mode.OFF), NOW)
    assert set(made.blocked) == {"ns/a"}
    assert (by_job(made)["a"].new, by_job(made)["a"].remove) == (3, ("ns/a-worker-3",))


def test_surplus_that_makes_way_for_a_minimum_says_for_whose() -> None:
    a, b = job("a", 1, 4, 4), job("b", 1, 1)
    mine = [*pods(a, "n1", "n1", "n2"), pod(a, 3, None, age=1)]
    (made,) = plan(world(TWO_BY_TWO, [a, b], mine), NOW).decisions
    assert (made.new, made.reason) == (3, Reason.SHRUNK_FOR_MINIMUM)
    assert made.message == "b needs 1 GPU to start; a gives back 1 of its 3 surplus workers"


def test_surplus_that_keeps_its_place_has_not_shrunk_for_anybody() -> None:
    a, b = job("a", 1, 3, 4), job("b", 1, 1)
    mine = [*pods(a, "n1", "n1"), *(pod(a, i, None, age=1) for i in (2, 3))]
    (made,) = plan(world(TWO_BY_TWO, [a, b], mine), NOW).decisions
    assert (made.new, made.reason) == (3, Reason.LOWERED_TO_MAX)
    assert made.message == "a has 4 workers and may have 3 at most"


def test_a_gang_that_another_makes_way_for_keeps_the_surplus_that_it_has_room_for() -> None:
    a = job("a", 2, 3, 3, created=NOW.replace(hour=1))
    b = job("b", 2, 2, created=NOW.replace(hour=2))
    halves = [pod(a, 0, "n1"), pod(b, 0, "n1"), pod(b, 1, None)]
    halves += [pod(a, i, None, age=1) for i in (1, 2)]
    seen = world([node("n1", 2), node("n2", 1, unschedulable=True)], [a, b], halves)
    made = by_job(plan(replace(seen, memory=Memory(blocked_since=FOR_AN_HOUR)), NOW))
    assert made["b"].reason is Reason.GAVE_UP_MINIMUM
    assert "a" not in made


def test_a_job_makes_way_for_a_gang_of_another_controller_too() -> None:
    gang = Gang("ns/a", "default", 2, created=NOW.replace(hour=1))
    theirs = job("a", 2, 2)
    b = job("b", 2, 2, created=NOW.replace(hour=2))
    halves = [pod(theirs, 0, "n1", job=None), pod(theirs, 1, None, job=None)]
    halves += [pod(b, 0, "n1"), pod(b, 1, None)]
    seen = replace(world([node("n1", 2)], [b], halves), gangs=(gang,))
    made = plan(replace(seen, memory=Memory(blocked_since=FOR_AN_HOUR)), NOW)
    assert by_job(made)["b"].reason is Reason.GAVE_UP_MINIMUM
    assert set(made.blocked) == {"ns/b"}


@pytest.mark.parametrize("room", [1, 3])
def test_half_a_unit_that_has_a_place_goes_with_the_half_that_has_none(room: int) -> None:
    """And what it would have taken is room for others again."""
    a = job("a", 2, 8, 6, node_unit=2)
    b = job("b", 1, 8, created=NOW, gpu_hours=99.0)
    nodes = [node("n1", 2), node("n2", 1 + room)]
    made = by_job(plan(world(nodes, [a, b], pods(a, "n1", "n1"), pods(b, "n2")), NOW))
    assert (made["a"].new, made["a"].reason) == (2 + room // 2 * 2, Reason.SURPLUS_UNPLACED)
    assert made["b"].new == 1 + room % 2


def test_half_a_unit_that_leaves_anyway_makes_room_for_who_may_ask_nobody() -> None:
    a = job("a", 2, 8, 4, node_unit=2)
    c = job("c", 1, 1, unmodelled="resourceClaims")
    made = plan(world([node("n1", 2), node("n2", 1)], [a, c], pods(a, "n1", "n1", "n2")), NOW)
    assert (by_job(made)["a"].new, by_job(made)["a"].remove) == (2, ("ns/a-worker-2",))
    assert made.blocked == {}


def test_surplus_that_a_blocked_job_gives_up_is_room_for_it_in_the_same_plan() -> None:
    """Even where its surplus may not be asked to leave."""
    a = job("a", 2, 6, 6, node_unit=2, pod_requests=gpus(2))
    mine = [pod(a, 0, None), pod(a, 1, "n1"), pod(a, 4, None, age=20), pod(a, 5, "n2")]
    made = plan(ruled(world(TWO_BY_TWO, [a], mine), mode=Mode.OFF), NOW)
    assert (by_job(made)["a"].remove, made.blocked) == (("ns/a-worker-4", "ns/a-worker-5"), {})


# Late surplus


def late(*existing: Pod, size: int, least: int = 2) -> Decision | None:
    """`existing` pods of a job of this size, in an idle cluster."""
    a = job("a", least, 4, size)
    return by_job(plan(world([node("n1", 8)], [a], existing), NOW)).get("a")


A = job("a", 2, 4)
ONE_AND_TWO = (pod(A, 1, "n1"), pod(A, 2, "n1"))


def test_what_waits_for_long_as_part_of_a_minimum_is_no_surplus() -> None:
    """It does so whether the surplus that is young exists yet or not."""
    mine = pods(A, None, None)
    assert late(*mine, size=3) is None
    assert late(*mine, pod(A, 2, None, age=1), size=3) is None
    found = late(*mine, pod(A, 2, None), size=3)
    assert found is not None and found.remove == ("ns/a-worker-2",)


def test_no_more_is_given_up_than_is_late_while_worker_0_is_to_come_back() -> None:
    found = late(*ONE_AND_TWO, pod(A, 3, None), size=4)
    assert found is not None and (found.new, found.remove) == (3, ("ns/a-worker-3",))
    again = late(*ONE_AND_TWO, pod(A, 0, None), pod(A, 3, None), size=4)
    assert again == found


def test_surplus_unbound_for_30_seconds_lowers_the_size_even_if_we_think_it_fits() -> None:
    a = job("a", 1, 4, 2, last_scale=NOW - timedelta(minutes=1))
    waits = world(TWO_BY_TWO, [a], [pod(a, 0, "n1"), pod(a, 1, None, age=29)])
    assert plan(waits, NOW).unchanged["ns/a"].why_not_more is Reason.WAITING_FOR_PODS
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
    assert made.unchanged["ns/b"].why_not_more is Reason.NO_ROOM


def test_a_job_does_not_grow_while_a_pod_of_an_earlier_size_has_still_to_go() -> None:
    """Else the pod would stay, and be given up a plan later since it has waited for too long."""
    a = job("a", 1, 2, 1)
    seen = world([node("n1", 2)], [a], [pod(a, 1, None, age=31)])
    made = plan(seen, NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/a"].why_not_more is Reason.WAITING_FOR_PODS
    gone = applied(seen, made, NOW)
    assert [p.index for p in gone.pods] == [0]
    assert new_size(plan(gone, NOW), "a") == 2
    assert plan(applied(gone, plan(gone, NOW), NOW), NOW).decisions == ()
