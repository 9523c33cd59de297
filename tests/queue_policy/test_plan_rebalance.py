"""Rebalancing: who gives GPUs to whom, and who never does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.queue_policy.world import NOW, by_job, gpus, job, node, pod, pods, world
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    Order,
    QueuePolicy,
    Rebalance,
    Shrink,
    Surplus,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job, Node, Queue, Snapshot

OLD: dict[str, Any] = {"created": NOW - timedelta(hours=2), "gpu_hours": 99.0}
LINEAR = OLD | {"speeds": {size: float(size) for size in range(1, 65)}}
PQ = (Queue("p"), Queue("q"))


def rich(**more: Any) -> Job:
    return job("rich", 1, 8, 7, **LINEAR | more)


def poor(**more: Any) -> Job:
    return job("poor", 1, 8, **LINEAR | more)


def full(a: Job, b: Job, *more: Node, queues: tuple[Queue, ...] = (Queue("default"),)) -> Snapshot:
    """n1 is full of them: 7 pods of `a`, one of `b`."""
    nodes = [node("n1", 8, labels={"zone": "1"}), *more]
    return world(nodes, [a, b], pods(a, *["n1"] * 7), pods(b, "n1"), queues=queues)


def test_who_has_most_gives_half_to_who_has_least() -> None:
    (made,) = plan(full(rich(), poor()), NOW).decisions
    assert (made.job, made.new, made.reason) == ("ns/rich", 3, Reason.REBALANCED)


JUST_GREW = {"last_scale": NOW - timedelta(seconds=30), "last_reason": Reason.GREW_INTO_IDLE}


@pytest.mark.parametrize("more", [JUST_GREW, {"unmodelled": "resourceClaims"}, {"scaler": "none"}])
@pytest.mark.parametrize("which", ["rich", "poor"])
def test_who_is_to_be_left_alone_neither_gives_nor_takes(which: str, more: dict[str, Any]) -> None:
    a, b = (rich(**more), poor()) if which == "rich" else (rich(), poor(**more))
    assert plan(full(a, b), NOW).decisions == ()


def test_who_has_just_grown_gives_nothing() -> None:
    a, b = rich(), poor(node_selector={"zone": "1"})
    (made,) = plan(full(a, b, node("n2", 1)), NOW).decisions
    assert (made.job, made.new, made.remove) == ("ns/rich", 8, ())


def test_nobody_gives_to_who_has_just_grown() -> None:
    a, b = rich(node_selector={"zone": "1"}), poor()
    made = by_job(plan(full(a, b, node("n2", 1)), NOW))
    assert {name: decision.new for name, decision in made.items()} == {"poor": 2}


def test_the_pause_of_who_gives_to_a_claim_is_spent_already() -> None:
    long = timedelta(hours=10)
    a = job("a", 1, 8, 8, pause=long, **OLD)
    new, waits = job("new", 1, 8, created=NOW), job("waits", 1, 8, **OLD)
    on = [node("n1", 4), node("n2", 4)]
    seen = world(on, [a, new], pods(a, *["n1"] * 4, *["n2"] * 4))
    assert [d.new for d in plan(seen, NOW).decisions] == [4]
    more = [*on, node("n3", 1)]
    runs = world(more, [a, waits], pods(a, *["n1"] * 4, *["n2"] * 4), pods(waits, "n3"))
    assert plan(runs, NOW).decisions == ()
    shorter = replace(runs, jobs=(replace(a, pause=timedelta(seconds=1)), waits))
    assert [d.job for d in plan(shorter, NOW).decisions] == ["ns/a"]


@pytest.mark.parametrize(("deserved", "new"), [(8, None), (7, None), (6, None), (3, 3)])
def test_a_queue_gives_to_others_only_what_it_borrows(deserved: int, new: int | None) -> None:
    """All of the step: what it deserves goes only where far more is gained."""
    queues = (Queue("p", deserved=gpus(deserved)), Queue("q"))
    rules = tuple(QueuePolicy(name, rebalance=Rebalance(gap=2)) for name in ("p", "q"))
    seen = full(rich(queue="p"), poor(queue="q"), queues=queues)
    made = plan(replace(seen, policies=rules), NOW)
    assert [d.new for d in made.decisions] == ([] if new is None else [new])
    same = plan(full(rich(queue="p"), poor(queue="p"), queues=queues), NOW)
    assert [d.new for d in same.decisions] == [3]


@pytest.mark.parametrize("rule", ForOtherQueues)
def test_what_a_queue_deserves_yields_to_a_far_larger_gain_unless_its_policy_keeps_it(
    rule: ForOtherQueues,
) -> None:
    """A queue of few large jobs would else keep all of its share from many that started small."""
    queues = (Queue("p", deserved=gpus(16)), Queue("q", deserved=gpus(0)))
    large, small = job("large", 1, 16, 16, queue="p", **LINEAR), poor(queue="q")
    on = (pods(large, *["n1"] * 16), pods(small, "n1"))
    seen = world([node("n1", 17)], [large, small], *on, queues=queues)
    policy = QueuePolicy("p", shrink=Shrink(for_other_queues=rule))
    made = plan(replace(seen, policies=(policy,)), NOW)
    assert bool(made.decisions) is (rule is ForOtherQueues.ANY)


@pytest.mark.parametrize(
    ("priority", "queue", "gives"), [(1, "p", True), (0, "p", False), (1, "q", False)]
)
def test_under_order_priority_only_the_lower_gives_and_within_the_queue(
    priority: int, queue: str, gives: bool
) -> None:
    seen = full(rich(queue="p"), poor(queue=queue, priority=priority), queues=PQ)
    by_priority = Surplus(order=Order.PRIORITY)
    rules = tuple(QueuePolicy(name, surplus=by_priority) for name in ("p", "q"))
    made = plan(replace(seen, policies=rules), NOW)
    assert [d.job for d in made.decisions] == (["ns/rich"] if gives else [])


def test_a_queue_whose_jobs_gain_too_little_does_not_end_the_turns_of_low_priorities() -> None:
    a, b = rich(queue="p", priority=-5), poor(queue="p", priority=-1)
    other = job("other", 8, 64, 32, queue="q", **LINEAR)
    on = (pods(a, *["n1"] * 7), pods(b, "n1"), pods(other, *["n2"] * 32))
    seen = world([node("n1", 8), node("n2", 32)], [a, b, other], *on, queues=PQ)
    ordered = replace(seen, policies=(QueuePolicy("p", surplus=Surplus(order=Order.PRIORITY)),))
    assert [d.job for d in plan(ordered, NOW).decisions] == ["ns/rich"]


def test_what_one_taker_leaves_goes_to_the_next_before_another_gives() -> None:
    rest = [job(name, 1, 8, 8, **LINEAR) for name in ("a", "b")]
    small = [job(name, 1, 2, **LINEAR) for name in ("c", "d")]
    on = [pods(j, *["n1"] * j.desired) for j in (*rest, *small)]
    (made,) = plan(world([node("n1", 18)], [*rest, *small], *on), NOW).decisions
    assert made.old - made.new > 1
    assert "c" in made.message or "d" in made.message


def test_pods_leave_where_a_larger_pod_then_fits() -> None:
    """The two of highest index would leave half of two nodes."""
    a, big = job("a", 1, 8, 8, **LINEAR), job("big", 1, 2, pod_requests=gpus(2), **LINEAR)
    nodes = [node(f"n{i}", 2) for i in range(5)]
    on = [f"n{i}" for i in range(4)]
    (made,) = plan(world(nodes, [a, big], pods(a, *on, *on), pods(big, "n4")), NOW).decisions
    assert made.new == 6
    assert len({on[int(key[-1]) % 4] for key in made.remove}) == 1


def test_nobody_gives_what_the_taker_cannot_use() -> None:
    a, b = rich(), poor(pod_requests=gpus(1, cpus=60))
    assert plan(full(a, b), NOW).decisions == ()


def test_nobody_gives_what_is_on_its_way_already() -> None:
    a, b, gone = rich(), poor(), job("gone", 7, 7)
    leaving = [pod(gone, i, "n2", terminating=True) for i in range(7)]
    seen = full(a, b, node("n2", 7))
    made = plan(replace(seen, pods=(*seen.pods, *leaving)), NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/poor"].why_not_more is Reason.NO_ROOM, "it is not at its max yet"
    assert [d.job for d in plan(full(a, b), NOW).decisions] == ["ns/rich"]


def test_who_finds_idle_room_for_half_a_unit_is_given_the_other_half() -> None:
    a = job("rich", 1, 8, 7, **LINEAR)
    b = job("poor", 2, 8, node_unit=2, **LINEAR)
    seen = world([node("n1", 10)], [a, b], pods(a, *["n1"] * 7), pods(b, "n1", "n1"))
    (made,) = plan(replace(seen, jobs=(replace(a, max=7), b)), NOW).decisions
    assert (made.job, made.reason) == ("ns/rich", Reason.REBALANCED)
