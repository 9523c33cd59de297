"""A trial (mode DryRun) is shown, and nothing else changes by it; and what a planner that goes
on from plan to plan remembers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.queue_policy.world import EIGHT, NOW, job, node, pod, pods, ruled, seconds, world
from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.snapshot.snapshot import Memory, Queue, Snapshot

OLD: dict[str, Any] = {"created": NOW - timedelta(hours=2), "gpu_hours": 99.0}


def unequal() -> Snapshot:
    """`rich`, of queue q, would give half of its GPUs to `poor`, of queue p."""
    rich, poor = job("rich", 1, 8, 7, queue="q", **OLD), job("poor", 1, 8, queue="p", **OLD)
    on = (pods(rich, *["n1"] * 7), pods(poor, "n1"))
    return world(EIGHT, [rich, poor], *on, queues=(Queue("p"), Queue("q")))


def test_a_dry_run_does_not_show_what_other_queues_would_do_then() -> None:
    seen = unequal()
    assert [d.job for d in plan(seen, NOW).decisions] == ["ns/rich"]
    made = plan(ruled(seen, "p", mode=Mode.DRY_RUN), NOW)
    assert made.decisions == ()
    assert made.unchanged["ns/rich"].why_not_more is Reason.NO_ROOM
    assert made.unchanged["ns/poor"].why_not_more is not Reason.HELD


def test_what_a_dry_run_shows_takes_no_room_from_others() -> None:
    a, b = job("a", 1, 8, queue="p"), job("b", 1, 8, queue="q", created=NOW)
    queues = (Queue("p"), Queue("q"))
    seen = world(EIGHT, [a, b], pods(a, "n1"), pods(b, "n1"), queues=queues)
    made = plan(ruled(seen, "p", mode=Mode.DRY_RUN), NOW)
    assert [(d.job, d.new, d.dry_run) for d in made.decisions] == [
        ("ns/a", 4, True),
        ("ns/b", 7, False),
    ]


def test_what_is_done_in_earnest_is_not_shown_as_a_dry_run_too() -> None:
    a = job("a", 1, 4, 3)
    mine = [pod(a, 0, "n1"), pod(a, 1, None, age=31), pod(a, 2, None, age=31)]
    (made,) = plan(ruled(world(EIGHT, [a], mine), mode=Mode.DRY_RUN), NOW).decisions
    assert (made.new, made.reason, made.dry_run) == (1, Reason.SURPLUS_UNPLACED, False)


def test_decisions_shown_and_carried_out_are_in_the_order_of_their_jobs() -> None:
    a, b = job("a", 1, 2, queue="q"), job("b", 1, 2, queue="p")
    c = job("c", 1, 2, queue="q")
    queues = (Queue("p"), Queue("q"))
    on = (pods(a, "n1"), pods(b, "n1"), pods(c, "n1"))
    made = plan(ruled(world(EIGHT, [c, b, a], *on, queues=queues), "p", mode=Mode.DRY_RUN), NOW)
    assert [d.job for d in made.decisions] == ["ns/a", "ns/b", "ns/c"]


# From plan to plan


def stuck() -> Snapshot:
    """A gang that has room, and whose pods something else keeps away."""
    gang = job("stuck", 2, 2)
    return world([node("n1", 2)], [gang], pods(gang, None, None))


def test_a_planner_remembers_its_last_plan() -> None:
    planner, seen = Planner(), stuck()
    assert planner.plan(seen, NOW).blocked == {}
    assert set(planner.plan(seen, NOW + seconds(15)).blocked) == {"ns/stuck"}
    assert plan(seen, NOW + seconds(15)).blocked == {}


def test_what_a_snapshot_remembers_counts_before_what_the_planner_does() -> None:
    planner, seen = Planner(), stuck()
    planner.plan(seen, NOW)
    later = replace(seen, memory=Memory(idle_since={"ns/stuck": NOW + seconds(9)}))
    assert planner.plan(later, NOW + seconds(15)).blocked == {}


def test_of_what_a_dry_run_only_shows_nothing_is_remembered() -> None:
    a = job("a", 2, 8, 6, node_unit=2, **OLD)
    late = [*pods(a, *["n1"] * 5), pod(a, 5, None, age=31)]
    planner = Planner()
    (shown,) = planner.plan(ruled(world(EIGHT, [a], late), mode=Mode.DRY_RUN), NOW).decisions
    assert (shown.new, shown.reason, shown.dry_run) == (4, Reason.SURPLUS_UNPLACED, True)
    found = ruled(world(EIGHT, [a], pods(a, *["n1"] * 6)), mode=Mode.DRY_RUN)
    expected = plan(found, NOW + seconds(1))
    assert [d.new for d in expected.decisions] == [8]
    assert planner.plan(found, NOW + seconds(1)) == expected
