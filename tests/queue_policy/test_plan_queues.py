"""Queues: what they may hold, what they have a right to, and who gives to whom across them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.queue_policy.world import (
    EIGHT,
    NOW,
    OPEN,
    TWO_BY_TWO,
    by_job,
    gpus,
    job,
    new_size,
    node,
    pods,
    ruled,
    world,
)
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    Headroom,
    Mode,
    QueuePolicy,
    Shrink,
    Step,
    Surplus,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Queue


def queue_job(
    name: str, queue: str, least: int, most: int, desired: int | None = None, **more: object
):  # type: ignore[no-untyped-def]
    return job(name, least, most, desired, queue=queue, **more)


def test_growth_stays_within_the_queues_capability() -> None:
    a = job("a", 1, 4)
    queue = Queue("default", capability=gpus(3))
    made = plan(world(TWO_BY_TWO, [a], pods(a, "n1"), queues=(queue,)), NOW)
    assert by_job(made)["a"].new == 3


def test_surplus_leaves_a_queue_that_is_capped_below_what_it_holds() -> None:
    queues = (Queue("team", capability=gpus(3)), Queue("other"))
    a, b = queue_job("a", "team", 1, 4, 3), queue_job("b", "team", 2, 2, 2)
    c = queue_job("c", "other", 1, 2, 2)
    nodes = [node("n1", 4), node("n2", 4)]
    held = [pods(a, *["n1"] * 3), pods(b, "n2", "n2"), pods(c, "n2", "n2")]
    made = plan(world(nodes, [a, b, c], *held, queues=queues), NOW)
    (decision,) = made.decisions
    assert (decision.job, decision.new) == (a.key, 1), "b is at its minimum, c is elsewhere"
    assert decision.reason is Reason.LOWERED_TO_CAPABILITY
    assert decision.message == "queue team held more than its capability; a goes from 3 back to 1"
    assert len(decision.remove) == 2
    # What has left is not asked for again, and nobody grows back into it.
    after = replace(a, desired=1)
    leaving = [replace(pod, terminating=True) for pod in held[0][1:]]
    still = [held[0][:1], leaving, *held[1:]]
    assert plan(world(nodes, [after, b, c], *still, queues=queues), NOW).decisions == ()


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.OFF])
def test_a_capped_queue_that_is_held_keeps_what_it_holds(mode: Mode) -> None:
    a = job("a", 1, 4, 4)
    policy = QueuePolicy(queue="default", mode=mode)
    queue = Queue("default", capability=gpus(2))
    seen = world(TWO_BY_TWO, [a], pods(a, "n1", "n1", "n2", "n2"), queues=(queue,))
    assert plan(replace(seen, policies=(policy,)), NOW).decisions == ()


def test_a_cap_above_takes_whole_units_of_those_that_hold_what_it_counts() -> None:
    queues = (Queue("org", capability=gpus(5)), Queue("team", parent="org"))
    cpus = queue_job("cpus", "team", 1, 9, 9, pod_requests={"cpu": 1000})
    a, b = queue_job("a", "team", 2, 4, 4, node_unit=2), queue_job("b", "team", 1, 3, 3)
    nodes = [node("n1", 8), node("n2", 8)]
    held = [pods(cpus, *["n1"] * 9), pods(a, *["n1"] * 4), pods(b, *["n2"] * 3)]
    made = by_job(plan(world(nodes, [cpus, a, b], *held, queues=queues), NOW))
    assert {name: d.new for name, d in made.items()} == {"a": 2}


def test_the_guarantee_of_another_queue_stays_free_even_from_two_growing_queues() -> None:
    queues = (Queue("p"), Queue("q"), Queue("g", guarantee=gpus(2)))
    nodes = [node("n1", 4), node("n2", 4)]
    a, b = queue_job("a", "p", 1, 8), queue_job("b", "q", 1, 8)
    made = by_job(plan(world(nodes, [a, b], pods(a, "n1"), pods(b, "n2"), queues=queues), NOW))
    assert made["a"].new + made["b"].new == 6


def test_a_full_queues_claim_is_met_by_its_own_surplus_only() -> None:
    queues = (Queue("p", capability=gpus(2)), Queue("q"))
    a, c = queue_job("a", "p", 1, 2, 2), queue_job("c", "q", 1, 4, 2)
    b = queue_job("b", "p", 1, 1)
    made = plan(
        world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1"), pods(c, "n2", "n2"), queues=queues), NOW
    )
    assert {name: d.new for name, d in by_job(made).items()} == {"a": 1}


@pytest.mark.parametrize("unit", [1, 2])
def test_only_pods_that_ease_what_the_queue_is_full_of_are_asked_to_leave(unit: int) -> None:
    """By one look at the queue's jobs, and by one at their nodes, which whole units need."""
    cpus = queue_job("cpus", "small", 1, 8, 8, pod_requests={"cpu": 1000})
    mine = queue_job("mine", "small", unit, 2 * unit, 2 * unit, node_unit=unit)
    fresh = queue_job("fresh", "small", 1, 1, created=NOW)
    seen = world(
        [node("n1", 8)],
        [cpus, mine, fresh],
        pods(cpus, *["n1"] * 8),
        pods(mine, *["n1"] * 2 * unit),
        queues=(Queue("small", capability=gpus(2 * unit)),),
    )
    made = plan(seen, NOW)
    assert {d.job: d.new for d in made.decisions} == {"ns/mine": unit}


def test_for_a_full_parent_surplus_of_its_children_leaves_and_no_other() -> None:
    sibling = queue_job("sibling", "b", 1, 4, 2)
    larger = queue_job("larger", "c", 1, 9, 5)
    fresh = queue_job("fresh", "a", 1, 1, created=NOW)
    queues = (
        Queue("team", capability=gpus(2)),
        Queue("a", parent="team"),
        Queue("b", parent="team"),
        Queue("c"),
    )
    seen = world(
        [node("n1", 8)],
        [sibling, larger, fresh],
        pods(sibling, *["n1"] * 2),
        pods(larger, *["n1"] * 5),
        queues=queues,
    )
    made = plan(seen, NOW)
    assert new_size(made, "sibling") == 1
    assert new_size(made, "larger") is None or new_size(made, "larger") > 5
    assert "ns/fresh" in made.admitted


def test_own_queues_surplus_goes_before_others() -> None:
    queues = (Queue("p"), Queue("q"))
    a, c = queue_job("a", "p", 1, 2, 2), queue_job("c", "q", 1, 8, 6)
    b = queue_job("b", "p", 1, 1)
    nodes = [node("n1"), node("n2", 6)]
    made = plan(
        world(nodes, [a, b, c], pods(a, "n1", "n1"), pods(c, *["n2"] * 6), queues=queues), NOW
    )
    assert set(by_job(made)) == {"a"}


def test_what_was_borrowed_goes_before_what_is_deserved() -> None:
    queues = (Queue("p"), Queue("q", deserved=gpus(4)), Queue("r", deserved=gpus(1)))
    c, d = queue_job("c", "q", 1, 8, 4), queue_job("d", "r", 1, 8, 2)
    b = queue_job("b", "p", 1, 1)
    nodes = [node("n1", 2), node("n2", 4)]
    made = plan(
        world(nodes, [b, c, d], pods(d, "n1", "n1"), pods(c, *["n2"] * 4), queues=queues), NOW
    )
    assert set(by_job(made)) == {"d"}


@pytest.mark.parametrize(
    ("policy", "shrinks"), [(ForOtherQueues.ANY, True), (ForOtherQueues.BORROWED, False)]
)
def test_borrowed_keeps_a_queues_deserved_from_other_queues(
    policy: ForOtherQueues, shrinks: bool
) -> None:
    queues = (Queue("p"), Queue("q", deserved=gpus(4)))
    c, b = queue_job("c", "q", 1, 4, 4), queue_job("b", "p", 1, 1)
    seen = world(TWO_BY_TWO, [b, c], pods(c, "n1", "n1", "n2", "n2"), queues=queues)
    made = plan(
        replace(seen, policies=(QueuePolicy("q", shrink=Shrink(for_other_queues=policy)),)), NOW
    )
    assert ("c" in by_job(made)) is shrinks
    assert ("ns/b" in made.blocked) is not shrinks


def test_growth_goes_first_to_the_queue_that_is_below_its_deserved() -> None:
    queues = (Queue("p", deserved=gpus(1)), Queue("q", deserved=gpus(3)))
    a, b = queue_job("a", "p", 1, 4), queue_job("b", "q", 1, 4)
    seen = world(TWO_BY_TWO, [a, b], pods(a, "n1"), pods(b, "n2"), queues=queues)
    any_step = tuple(QueuePolicy(name, surplus=Surplus(step=Step.ANY)) for name in ("p", "q"))
    made = by_job(plan(replace(seen, policies=any_step), NOW))
    assert {name: d.new for name, d in made.items()} == {"b": 3}


@pytest.mark.parametrize("queues", [(Queue("default", open=False),), (Queue("elsewhere"),)])
def test_a_closed_or_unknown_queue_claims_nothing_and_does_not_grow(
    queues: tuple[Queue, ...],
) -> None:
    a, b = job("a", 1, 4), job("b", 1, 1)
    made = plan(world(TWO_BY_TWO, [a, b], pods(a, "n1"), queues=queues), NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/a"].why_not_more is Reason.QUEUE_CLOSED
    assert "queue default" in made.blocked["ns/b"]


def test_an_ancestors_capability_limits_its_children_together() -> None:
    tree = (
        Queue("top", capability=gpus(4)),
        Queue("left", parent="top"),
        Queue("right", parent="top"),
    )
    a, b = job("a", 1, 8, queue="left"), job("b", 1, 8, queue="right")
    made = plan(world(EIGHT, [a, b], pods(a, "n1"), pods(b, "n1"), queues=tree), NOW)
    assert sum(d.new for d in made.decisions) == 4
    c = job("c", 1, 1, queue="right")
    full = [replace(a, desired=3), b, c]
    shrunk = plan(world(EIGHT, full, pods(a, *["n1"] * 3), pods(b, "n1"), queues=tree), NOW)
    assert new_size(shrunk, "a") == 2


@pytest.mark.parametrize("parents", [("x", "y"), ("y", "x"), ("default", "z")])
def test_parents_in_a_ring_stop_no_plan(parents: tuple[str, str]) -> None:
    """Nothing forbids them; whatever hangs below still counts in what is above it."""
    x = Queue("x", parent=parents[0], capability=gpus(3), guarantee=gpus(1))
    tree = (*OPEN, x, Queue("y", parent=parents[1], guarantee=gpus(1)), Queue("z", parent="y"))
    below, other = job("below", 1, 8, queue="x"), job("other", 1, 8)
    seen = world(EIGHT, [below, other], pods(below, "n1"), pods(other, "n1"), queues=tree)
    made = plan(seen, NOW)
    assert new_size(made, "below") == 3
    # y's guarantee stays free.
    assert new_size(made, "other") == 4


def test_a_queue_whose_parent_is_not_there_counts_as_right_below_the_root() -> None:
    queues = (*OPEN, Queue("orphan", parent="ghost", guarantee=gpus(2)), Queue("top"))
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), queues=(*queues, Queue("child", parent="top")))
    made = plan(seen, NOW)
    assert new_size(made, "a") == 6
    assert {name for name, found in made.queues.items() if found.problem} == {"orphan"}


def test_the_guarantee_of_a_sibling_is_kept_within_the_parent() -> None:
    tree = (
        Queue("top", capability=gpus(6)),
        Queue("left", parent="top"),
        Queue("right", parent="top", guarantee=gpus(2)),
    )
    a = job("a", 1, 8, queue="left")
    made = plan(world(EIGHT, [a], pods(a, "n1"), queues=tree), NOW)
    assert new_size(made, "a") == 4


def test_proportion_divides_by_weight_what_all_want() -> None:
    queues = (Queue("p", weight=1), Queue("q", weight=3), Queue("idle", weight=9))
    a, b = job("a", 1, 8, queue="p"), job("b", 1, 8, queue="q")
    seen = world(EIGHT, [a, b], pods(a, "n1"), pods(b, "n1"), queues=queues)
    made = plan(replace(seen, proportion=True), NOW)
    assert (new_size(made, "a"), new_size(made, "b")) == (2, 6)
    small = replace(seen, jobs=(a, replace(b, max=3)), proportion=True)
    assert new_size(plan(small, NOW), "a") == 5


def test_the_borrowing_limit_caps_minimums_too() -> None:
    queues = (Queue("default", deserved=gpus(2)),)
    a, b = job("a", 1, 8, 3), job("b", 1, 1)
    seen = world(EIGHT, [a, b], pods(a, *["n1"] * 3), queues=queues)
    made = plan(ruled(seen, borrowing_limit=1000), NOW)
    assert new_size(made, "a") == 2
    assert plan(ruled(seen, borrowing_limit=2000), NOW).decisions == ()


def test_figures_say_what_a_queue_holds_and_owes() -> None:
    queues = (Queue("default", deserved=gpus(3)), Queue("empty"))
    a, b = job("a", 1, 8, 5), job("b", 2, 2)
    made = plan(world(EIGHT, [a, b], pods(a, *["n1"] * 5), queues=queues), NOW)
    figures = made.queues["default"]
    assert (figures.free, figures.guaranteed, figures.surplus) == (3000, 1000, 4000)
    assert (figures.borrowed, figures.owed_to_minimums, figures.jobs) == (2000, 2000, 2)
    assert made.queues["empty"].jobs == 0


def test_pods_without_a_node_hold_no_surplus_however_many_there_are() -> None:
    a = job("a", 1, 8, 3)
    seen = world(EIGHT, [a], pods(a, "n1", "n1", "n1", None), queues=(Queue("default"),))
    figures = plan(seen, NOW).queues["default"]
    assert (figures.guaranteed, figures.surplus) == (1000, 2000)


def test_figures_of_a_parent_count_its_childrens_jobs_surplus_and_debts() -> None:
    tree = (Queue("top"), Queue("left", parent="top"), Queue("right", parent="top"))
    a, b = job("a", 1, 4, queue="left"), job("b", 6, 6, queue="right")
    made = plan(world(EIGHT, [a, b], pods(a, *["n1"] * 4), queues=tree), NOW)
    top, left = made.queues["top"], made.queues["left"]
    assert (left.guaranteed, left.surplus, left.jobs) == (1000, 3000, 1)
    assert (top.guaranteed, top.surplus, top.jobs) == (1000, 3000, 2)
    assert left.owed_to_minimums == 0
    assert made.queues["right"].owed_to_minimums == top.owed_to_minimums == 6000


def test_figures_of_a_queue_of_cpu_jobs_are_in_the_resource_that_its_policy_names() -> None:
    cpus = {"cpu": 1000}
    a = job("a", 1, 4, 4, pod_requests=cpus)
    seen = world([node("n1", 0)], [a], pods(a, *["n1"] * 4))
    silent, said = plan(seen, NOW).queues, plan(ruled(seen, resource="cpu"), NOW).queues
    assert (silent["default"].guaranteed, silent["default"].surplus) == (0, 0)
    assert (said["default"].guaranteed, said["default"].surplus) == (1000, 3000)


def test_headroom_is_left_in_the_queues_above_too() -> None:
    queues = (Queue("team", capability=gpus(5)), Queue("default", parent="team"))
    a = job("a", 1, 8)
    seen = world(EIGHT, [a], pods(a, "n1"), queues=queues)
    assert new_size(plan(ruled(seen, headroom=Headroom(1000)), NOW), "a") == 4
