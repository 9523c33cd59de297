"""top, on saved snapshots."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.cli.world import FULL, WAITING
from tests.queue_policy.world import NOW, job, node, pods, ruled, world
from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.cli.top import top_json, view
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.codec import Observation


def test_top_shows_sizes_speeds_cooldowns_and_what_comes_next(saved: Any) -> None:
    observed = Observation(NOW, WAITING)
    found = top_json(observed, plan(WAITING, NOW))
    assert found["jobs"][0] == {
        "job": "ns/a",
        "queue": "default",
        "min": 1,
        "max": 4,
        "size": 4,
        "running": 4,
        "halted": {},
        "samplesPerSecond": 120.0,
        "cooldownSeconds": 30.0,
        "lastChange": "2026-01-01T11:59:30.000000Z",
        "lastReason": "GrewIntoIdle",
        "next": 2,
    }
    assert found["jobs"][1]["next"] == "Rigid"
    from rich.console import Console

    screen = Console(width=200)
    with screen.capture() as shown:
        screen.print(view(observed))
    text = shown.get()
    assert "4/4" in text and "120/s" in text and "30 s" in text
    assert "GrewIntoIdle 30 s ago" in text
    assert "→ 2: b needs 2 GPUs to start" in text


def test_top_says_what_a_dry_run_only_shows() -> None:
    from rich.console import Console

    roomy = world([node("n", 4)], [job("a", 1, 4)], pods(job("a", 1, 4), "n"))
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, ruled(roomy, mode=Mode.DRY_RUN))))
    assert "at most 4 workers (dry run: not carried out)" in shown.get()


def test_a_policys_cooldown_counts_where_it_is_longer() -> None:
    rule = QueuePolicy("default", name="p")
    calm = replace(rule, grow=replace(rule.grow, cooldown=timedelta(seconds=90)))
    observed = Observation(NOW, replace(FULL, policies=(calm,)))
    assert top_json(observed, plan(observed.snapshot, NOW))["jobs"][0]["cooldownSeconds"] == 60.0


def test_the_rest_after_surplus_found_no_place_is_shown_as_the_planner_keeps_it() -> None:
    changed_at = NOW - timedelta(seconds=20)
    a = job("a", 1, 4, cooldown=timedelta(0), last_scale=changed_at, last_reason="SurplusUnplaced")
    observed = Observation(NOW, world([node("n", 4)], [a], pods(a, "n")))
    found = top_json(observed, plan(observed.snapshot, NOW))["jobs"][0]
    assert (found["next"], found["cooldownSeconds"]) == ("CoolingDown", 40.0)


def test_who_crash_loops_or_is_on_a_lost_node_does_not_run() -> None:
    from rich.console import Console

    a = job("a", 1, 4, 4)
    started = pods(a, "n", "n", "lost", None)
    looping = replace(started[1], halted="CrashLoopBackOff")
    nodes = [node("n", 4), node("lost", 4, ready=False)]
    seen = world(nodes, [a], [started[0], looping, *started[2:]])
    (found,) = top_json(Observation(NOW, seen), plan(seen, NOW))["jobs"]
    assert found["running"] == 1
    assert found["halted"] == {"CrashLoopBackOff": 1, "NodeNotReady": 1}
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, seen)))
    assert "1/4 1 CrashLoopBackOff, 1 NodeNotReady" in shown.get()
