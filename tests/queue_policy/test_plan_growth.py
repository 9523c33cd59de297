"""Growth: who gets what is idle, and how far each job grows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.queue_policy.world import (
    EIGHT,
    LINEAR,
    NOW,
    alone,
    applied,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pods,
    ruled,
    seconds,
    settled,
    world,
)
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    Grow,
    Headroom,
    Order,
    QueuePolicy,
    Rebalance,
    Shrink,
    Step,
    Surplus,
)
from volcano_elastic.cluster_state.job_state import (
    LONGEST_COOLDOWN,
    UNMEASURED_COOLDOWN,
    cooldown,
    weight,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Queue


def test_growth_stops_below_min_efficiency() -> None:
    a = job("a", 1, 8, speeds={1: 1.0, 2: 1.9, 4: 3.0, 8: 3.9})
    made = plan(alone(a, 1), NOW)
    assert new_size(made, "a") == 7
    free = plan(alone(a, 1, surplus=Surplus(min_efficiency=0)), NOW)
    assert new_size(free, "a") == 8


def test_a_job_that_was_never_measured_grows_to_28_gpus_whatever_its_workers_hold() -> None:
    nodes = [node(f"n{i}", 8) for i in range(1, 9)]
    assert new_size(plan(alone(job("a", 1, 64), 1, nodes), NOW), "a") == 28
    of_eight = job("a", 1, 8, pod_requests=gpus(8))
    assert new_size(plan(alone(of_eight, 1, nodes), NOW), "a") == 3


def test_a_measured_slowdown_undoes_the_last_step_and_is_remembered() -> None:
    speeds = {1: 1.0, 2: 1.9, 4: 3.4, 8: 2.9}
    a = job("a", 1, 8, 8, speeds=speeds, last_scale=NOW - seconds(61))
    made = plan(alone(a, 8), NOW)
    assert by_job(made)["a"].reason is Reason.SLOWED_DOWN
    assert new_size(made, "a") == 4
    smaller = replace(a, desired=4)
    assert plan(alone(smaller, 4), NOW).unchanged["ns/a"].why_not_more is Reason.INEFFICIENT


def test_a_little_slower_is_noise() -> None:
    a = job("a", 1, 8, 8, speeds={1: 1.0, 4: 3.4, 8: 3.38}, last_scale=NOW - seconds(61))
    assert plan(alone(a, 8), NOW).decisions == ()


def test_the_steeper_curve_gets_the_room() -> None:
    flat = {1: 1.0, 2: 1.3, 3: 1.5, 4: 1.6}
    a, b = job("a", 1, 4, speeds=flat), job("b", 1, 4, speeds=LINEAR)
    seen = world([node("n1", 5)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(step=Step.ANY)), NOW)
    assert new_size(made, "b") == 4
    assert new_size(made, "a") is None


def test_a_young_job_counts_for_more() -> None:
    old, young = job("old", 2, 4, gpu_hours=99.0), job("young", 2, 4)
    seen = world([node("n1", 6)], [old, young], pods(old, "n1", "n1"), pods(young, "n1", "n1"))
    assert {k: d.new for k, d in by_job(plan(seen, NOW)).items()} == {"young": 4}


def test_youth_fades_evenly() -> None:
    """A sudden fall would take from a job in one moment what it was given in the one before."""
    policy = QueuePolicy("default")
    weights = [weight(job("a", 1, 2, gpu_hours=hours), policy) for hours in (0.0, 8.0, 16.0, 99.0)]
    assert weights == [8.0, 4.5, 1.0, 1.0]
    none = replace(policy, surplus=replace(policy.surplus, young_gpu_hours=0.0))
    assert weight(job("a", 1, 2), none) == 1.0


def test_order_equal_goes_to_the_smallest_whatever_the_curves() -> None:
    a = job("a", 1, 8, speeds=LINEAR)
    b = job("b", 1, 8, speeds={k: k**0.7 for k in range(1, 9)})
    seen = world([node("n1", 8)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(order=Order.EQUAL, step=Step.ANY)), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (4, 4)


def test_order_priority_fills_the_highest_first() -> None:
    a, b = job("a", 1, 8), job("b", 1, 8, priority=5)
    seen = world([node("n1", 8)], [a, b], pods(a, "n1"), pods(b, "n1"))
    made = plan(ruled(seen, surplus=Surplus(order=Order.PRIORITY)), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (None, 7)


def test_priorities_decide_among_pods_that_ask_for_different_things_after_each_step() -> None:
    """A job behind the first of a line may gain more than all others, and waits all the same."""
    flat = {k: k**0.6 for k in range(1, 17)}
    first = job("first", 2, 3, speeds=flat, priority=9, gpu_hours=99.0)
    last = job("last", 5, 8, speeds=LINEAR, priority=1)
    second = job("second", 4, 8, speeds=flat, priority=5, gpu_hours=99.0)
    second = replace(second, pod_requests=gpus(1, cpus=1))
    jobs = (first, last, second)
    on = [pods(one, *["n1"] * one.desired) for one in jobs]
    seen = world([node("n1", 13)], jobs, *on)
    policy = Surplus(order=Order.PRIORITY, step=Step.ANY, min_efficiency=0)
    made = plan(ruled(seen, surplus=policy), NOW)
    assert [new_size(made, one) for one in ("first", "second", "last")] == [3, 5, None]


def test_steps_are_aligned_to_nodes_where_two_jobs_compete() -> None:
    nodes = [node(f"n{i}", 4) for i in range(1, 5)]
    a, b, c = (job(name, 4, 16, speeds=LINEAR) for name in "abc")
    placed = [pods(owner, *[f"n{i}"] * 4) for i, owner in enumerate((a, b, c), 1)]
    aligned = plan(ruled(world(nodes, [a, b, c], *placed)), NOW)
    assert sorted(d.new for d in aligned.decisions) == [8]
    any_step = ruled(world(nodes, [a, b, c], *placed), surplus=Surplus(step=Step.ANY))
    assert sorted(d.new for d in plan(any_step, NOW).decisions) == [5, 5, 6]


def test_max_step_limits_one_decision() -> None:
    made = plan(alone(job("a", 1, 8), 1, grow=Grow(max_step=3)), NOW)
    assert new_size(made, "a") == 4


def test_max_per_job_caps_growth_and_takes_back_what_is_above() -> None:
    most = Surplus(max_per_job=2)
    assert new_size(plan(alone(job("a", 1, 8), 1, surplus=most), NOW), "a") == 3
    made = plan(alone(job("a", 1, 8, 6), 6, surplus=most), NOW)
    assert (new_size(made, "a"), by_job(made)["a"].reason) == (3, Reason.LOWERED_TO_MAX)


@pytest.mark.parametrize(
    ("headroom", "size"), [(Headroom(amount=2000), 6), (Headroom(percent=50), 4)]
)
def test_headroom_stays_idle(headroom: Headroom, size: int) -> None:
    made = plan(alone(job("a", 1, 8), 1, headroom=headroom), NOW)
    assert new_size(made, "a") == size
    full = alone(job("a", 1, 8, size), size, headroom=headroom)
    assert plan(full, NOW).unchanged["ns/a"].why_not_more is Reason.HEADROOM_KEPT


def test_the_longer_cooldown_of_job_and_policy_counts() -> None:
    a = job("a", 1, 8, 2, cooldown=seconds(5), last_scale=NOW - seconds(30))
    assert new_size(plan(world(EIGHT, [a], pods(a, "n1", "n1")), NOW), "a") == 8
    held = alone(a, 2, grow=Grow(cooldown=seconds(60)))
    assert plan(held, NOW).unchanged["ns/a"].why_not_more is Reason.COOLING_DOWN
    assert new_size(plan(held, NOW + seconds(30)), "a") == 8


def silent(pause: timedelta | None, **grow: timedelta) -> timedelta:
    """The cooldown of a job that says nothing of it."""
    return cooldown(job("a", 1, 8, pause=pause), QueuePolicy("default", grow=Grow(**grow)))


def test_a_job_that_names_no_cooldown_follows_its_queues_policy() -> None:
    a = job("a", 1, 8, 2, last_scale=NOW - seconds(4), pause=seconds(10))
    assert new_size(plan(alone(a, 2, grow=Grow(cooldown=seconds(3))), NOW), "a") == 8
    held = plan(alone(a, 2, grow=Grow(cooldown=seconds(5))), NOW)
    assert held.unchanged["ns/a"].why_not_more is Reason.COOLING_DOWN


def test_where_nobody_names_a_cooldown_it_follows_from_what_a_resize_costs_the_job() -> None:
    assert silent(seconds(4)) == seconds(80)
    assert silent(seconds(0.1)) == seconds(2)
    assert silent(seconds(0.01)) == Grow().stabilization
    assert silent(seconds(60)) == LONGEST_COOLDOWN
    assert silent(None) == UNMEASURED_COOLDOWN
    assert silent(seconds(60), cooldown=seconds(0)) == Grow().stabilization


def test_a_job_that_resizes_quickly_uses_idle_gpus_at_once() -> None:
    a = job("a", 1, 8, 2, last_scale=NOW - seconds(3), pause=seconds(0.1))
    assert new_size(plan(alone(a, 2), NOW), "a") == 8
    slow = plan(alone(replace(a, pause=seconds(5)), 2), NOW)
    assert slow.unchanged["ns/a"].why_not_more is Reason.COOLING_DOWN


def test_stabilization_is_the_least_cooldown_whatever_job_and_policy_say() -> None:
    a = job("a", 1, 8, 2, cooldown=seconds(0), last_scale=NOW - seconds(3))
    calm = Grow(cooldown=seconds(0), stabilization=seconds(5))
    assert plan(alone(a, 2, grow=calm), NOW).unchanged["ns/a"].why_not_more is Reason.COOLING_DOWN
    assert new_size(plan(alone(a, 2, grow=calm), NOW + seconds(2)), "a") == 8


def test_scaler_none_grows_without_curves_and_hpa_up_to_its_wish() -> None:
    slow = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.0}
    assert new_size(plan(alone(job("a", 1, 8, speeds=slow, scaler="none"), 1), NOW), "a") == 8
    hpa = job("a", 1, 8, scaler="hpa", replicas=5)
    assert new_size(plan(alone(hpa, 1), NOW), "a") == 5
    lowered = plan(alone(replace(hpa, desired=7), 7), NOW)
    assert new_size(lowered, "a") == 5


def test_growth_that_does_not_pay_for_the_pause_waits() -> None:
    a = job("a", 1, 64, 60, speeds={k: k**0.5 for k in range(1, 65)}, pause=seconds(600))
    seen = alone(a, 60, [node("n1", 64)], surplus=Surplus(min_efficiency=0))
    assert plan(seen, NOW).unchanged["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE


@pytest.mark.parametrize(("room", "pause"), [(2, None), (1, seconds(0))])
def test_who_gives_to_a_minimum_does_not_grow_elsewhere_at_once(
    room: int, pause: timedelta | None
) -> None:
    """Carried out as growth, the pod in the newcomer's way would stay."""
    a, newcomer = job("a", 2, 4, 3, pause=pause), job("b", 2, 2, node_selector={"zone": "x"})
    nodes = [node("n1", 2, labels={"zone": "x"}), node("n2", 2 + room)]
    made = plan(world(nodes, [a, newcomer], pods(a, "n2", "n1", "n2")), NOW)
    assert [(d.new, d.remove, d.reason) for d in made.decisions] == [
        (2, ("ns/a-worker-1",), Reason.SHRUNK_FOR_MINIMUM)
    ]


def test_the_first_growth_has_no_cooldown_even_in_a_policy() -> None:
    assert new_size(plan(alone(job("a", 1, 4), 1, grow=Grow(cooldown=seconds(300))), NOW), "a") == 4


def test_growth_by_part_of_a_step_must_pay_for_its_pause_in_two_minutes() -> None:
    """The rest of the step will stop the job once more."""
    a, rigid = job("a", 4, 8, pause=seconds(100)), job("rigid", 3, 3)
    assert new_size(plan(alone(a, 4), NOW), "a") == 8
    part = world(EIGHT, [a, rigid], pods(a, *["n1"] * 4), pods(rigid, *["n1"] * 3))
    assert plan(part, NOW).unchanged["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE
    quick = replace(a, pause=seconds(20))
    assert new_size(plan(replace(part, jobs=(quick, rigid)), NOW), "a") == 5


def test_what_is_left_beside_whole_units_is_for_others() -> None:
    a = job("a", 4, 8, node_unit=2, speeds=LINEAR)
    b = job("b", 1, 8, gpu_hours=99.0)
    made = plan(world(EIGHT, [a, b], pods(a, *["n1"] * 4), pods(b, "n1")), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (6, 2)


def test_whole_units_count_once_against_max_and_queue() -> None:
    a = job("a", 2, 4, node_unit=2, speeds=LINEAR)
    b = job("b", 1, 8, gpu_hours=99.0)
    queue = Queue("default", capability=gpus(7))
    seen = world([node("n1", 16)], [a, b], pods(a, "n1", "n1"), pods(b, "n1"), queues=(queue,))
    made = plan(seen, NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (4, 3)


def test_what_does_not_pay_for_the_pause_is_for_others() -> None:
    a, b = job("a", 2, 8, pause=timedelta(hours=9)), job("b", 2, 8, gpu_hours=99.0)
    on = (pods(a, "n1", "n1"), pods(b, "n1", "n1"))
    made = plan(world([node("n1", 5)], [a, b], *on), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (None, 3)


def test_what_has_run_for_long_is_expected_to_run_for_as_long_again() -> None:
    a = job("a", 4, 8, pause=timedelta(hours=1), gpu_hours=99.0)
    assert plan(alone(a, 4), NOW).unchanged["ns/a"].why_not_more is Reason.NOT_WORTH_A_PAUSE
    old = replace(a, created=NOW - timedelta(hours=10))
    assert new_size(plan(alone(old, 4), NOW), "a") == 8


def test_a_queue_that_has_just_been_given_some_stands_in_line_again() -> None:
    """Its right is used up; also for those of its jobs whose pods ask for something else."""
    queues = (Queue("p", deserved=gpus(3)), Queue("q", deserved=gpus(5)))
    x = job("x", 1, 4, queue="p", speeds=LINEAR)
    y = job("y", 1, 4, queue="p", speeds=LINEAR, pod_requests=gpus(1, cpus=1))
    b = job("b", 2, 9, queue="q", speeds=LINEAR)
    on = (pods(x, "n1"), pods(y, "n1"), pods(b, "n1", "n1"))
    any_step = Surplus(step=Step.ANY)
    for room, sizes in ((6, (2, None, 3)), (7, (2, 2, 3)), (8, (2, 2, 4))):
        seen = world([node("n1", room)], [x, y, b], *on, queues=queues)
        seen = ruled(ruled(seen, "p", surplus=any_step), "q", surplus=any_step)
        made = plan(seen, NOW)
        assert tuple(new_size(made, name) for name in ("x", "y", "b")) == sizes


def test_under_order_priority_the_highest_grows_first_whatever_its_pods_ask_for() -> None:
    first = job("first", 1, 8, 4, speeds=LINEAR, priority=9, pod_requests=gpus(1, cpus=1))
    gains_more = job("gains-more", 1, 8, 1, speeds=LINEAR)
    seen = world(
        [node("n1", 6)], [first, gains_more], pods(first, *["n1"] * 4), pods(gains_more, "n1")
    )
    seen = ruled(seen, "default", surplus=Surplus(order=Order.PRIORITY, step=Step.ANY))
    made = plan(seen, NOW)
    assert (new_size(made, "first"), new_size(made, "gains-more")) == (5, None)


@pytest.mark.parametrize(("size", "sizes"), [(2, (3, None)), (4, (None, 2))])
def test_what_a_queue_deserves_goes_to_another_that_gains_over_twice_as_much(
    size: int, sizes: tuple[int | None, int | None]
) -> None:
    queues = (Queue("p", deserved=gpus(8)), Queue("q", deserved=gpus(0)))
    large = job("large", 1, 8, size, queue="p", speeds=LINEAR)
    small = job("small", 1, 8, queue="q", speeds=LINEAR)
    on = (pods(large, *["n1"] * size), pods(small, "n1"))
    seen = world([node("n1", size + 2)], [large, small], *on, queues=queues)
    for name in ("p", "q"):
        seen = ruled(seen, name, surplus=Surplus(step=Step.ANY), rebalance=Rebalance(gap=0))
    made = plan(seen, NOW)
    assert (new_size(made, "large"), new_size(made, "small")) == sizes


@pytest.mark.parametrize(("rule", "sizes"), [("Any", (None, 2)), ("Borrowed", (5, None))])
def test_a_queue_that_keeps_its_own_is_given_it_before_others_gain_more(
    rule: str, sizes: tuple[int | None, int | None]
) -> None:
    queues = (Queue("p", deserved=gpus(8)), Queue("q", deserved=gpus(0)))
    large = job("large", 1, 8, 4, queue="p", speeds=LINEAR)
    small = job("small", 1, 8, queue="q", speeds=LINEAR)
    on = (pods(large, *["n1"] * 4), pods(small, "n1"))
    seen = world([node("n1", 6)], [large, small], *on, queues=queues)
    shrink = Shrink(for_other_queues=ForOtherQueues(rule))
    for name in ("p", "q"):
        quiet = Rebalance(gap=0)
        seen = ruled(seen, name, surplus=Surplus(step=Step.ANY), rebalance=quiet, shrink=shrink)
    made = plan(seen, NOW)
    assert (new_size(made, "large"), new_size(made, "small")) == sizes


def test_jobs_of_one_queue_come_to_rest_whatever_their_pods_sizes() -> None:
    """Those with small pods may not take from idle room what a rebalance gives to the others."""
    big = job("big", 1, 2, pause=seconds(0.1), pod_requests=gpus(2), cooldown=seconds(2))
    small = job("small", 3, 6, pause=seconds(0.1), cooldown=seconds(2))
    queues = (Queue("default", deserved=gpus(6)),)
    on = (pods(big, "n1"), pods(small, *["n1"] * 3))
    seen, now = world([node("n1", 8)], [big, small], *on, queues=queues), NOW
    changes = 0
    for _ in range(60):
        made = plan(seen, now)
        changes += len(made.decisions)
        seen = settled(applied(seen, made, now))
        now += seconds(10)
    assert changes <= 4, "two each at most"


def test_a_newcomer_grows_whatever_keeps_others_of_its_queue_from_it() -> None:
    full, new = job("full", 1, 4, node_selector={"zone": "x"}), job("new", 1, 4, created=NOW)
    nodes = [node("n1", 1, labels={"zone": "x"}), node("n2", 4)]
    made = plan(world(nodes, [full, new], pods(full, "n1")), NOW)
    assert (new_size(made, "full"), new_size(made, "new")) == (None, 4)
