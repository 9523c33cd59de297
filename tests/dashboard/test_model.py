"""The page's model: who holds and wants GPUs, queues' tree, jobs in pages, changes, averages."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import click
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.world import JOB, indexed, pods_of
from tests.operator.test_other_jobs import node as node_object
from tests.queue_policy.world import NOW, OPEN, gpus, job, node, pod, pods, world
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.api import moment
from volcano_elastic.cli.dashboard import dashboard
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.dashboard.model.change import Kind, changes
from volcano_elastic.dashboard.model.gpu_use import CONTENT, GpuUse, QueueUse
from volcano_elastic.dashboard.model.job_page import curve, job_page
from volcano_elastic.dashboard.model.job_row import PAGE, Choice, Sort, State, chosen
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.queue_row import family, in_tree_order
from volcano_elastic.dashboard.model.timeline import (
    GAP_MS,
    Averages,
    Level,
    Moment,
    level_for,
    merged,
)
from volcano_elastic.dashboard.page_feed import MOST_FRAME, PageFeed, fitting
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Queue, Snapshot


def page_of(snapshot: Snapshot, before: Page | None = None) -> Page:
    return Page(snapshot, plan(snapshot, NOW), NOW, before)


A = job("a", 1, 6, 2)


def test_what_is_idle_and_wanted_is_red_and_what_nobody_may_take_is_not() -> None:
    free = world([node("n", 4), node("out", 2, unschedulable=True)], [A], pods(A, "n", "n"))
    use = page_of(free).use
    assert (use.capacity, use.idle, use.kept_out) == (6000, 2000, 2000)
    assert use.queues["default"] == QueueUse(2000, 2000, wanted=4000, idle_wanted=2000)
    assert use.idle_wanted == 2000
    content = page_of(replace(free, jobs=(replace(A, max=2),))).use
    assert (content.idle, content.idle_wanted) == (2000, 0)
    closed = page_of(replace(free, queues=(Queue("default", capability=gpus(2)),))).use
    assert closed.queues["default"].wanted == 4000
    assert closed.idle_wanted == 0, "the queue may hold no more"


def test_pods_that_start_or_leave_hold_without_running() -> None:
    leaving = pod(A, 1, "n", terminating=True)
    starting = pod(A, 2, "n", running=False)
    use = page_of(world([node("n", 4)], [A], (pod(A, 0, "n"), leaving, starting))).use
    assert (use.queues["default"].held, use.queues["default"].running) == (3000, 1000)


def test_who_waits_is_listed_first_with_the_planners_reason() -> None:
    huge = job("huge", 9, 9)
    page = page_of(world([node("n", 4)], [A, huge], pods(A, "n", "n")))
    (first, second) = chosen(page.jobs, Choice())["rows"]
    assert (first["job"], first["state"], first["reason"]) == ("ns/huge", "Waiting", "Blocked")
    assert first["why"] == page.plan.blocked["ns/huge"]
    assert second["state"] == "Running"
    overview = page.overview()
    assert [row["job"] for row in overview["waiting"]] == ["ns/huge"]
    assert overview["queues"][0]["waiting"] == 1
    found = job_page(page, "ns/huge", None, None, [], [])
    assert found is not None and found["blocked"] == first["why"]
    assert job_page(page, "ns/ghost", None, None, [], []) is None


def test_a_job_of_another_kind_is_listed_with_why_it_has_no_more() -> None:
    builder = SnapshotBuilder(adapters=ADAPTERS)
    for obj in (
        node_object("n", 4),
        indexed(size=1, completions=1),
        *pods_of(JOB, count=1, nodeName="n"),
    ):
        builder.change(None, obj)
    page = page_of(builder.snapshot())
    (row,) = page.jobs
    assert (row.job, row.bound, row.min, row.max, row.gang) == ("team/job/a", 1, 1, 8, False)
    found = job_page(page, row.job, None, None, (), ())
    assert found is not None and found["row"]["why"].startswith("→ 4: ")
    (option,) = [one for one in dashboard.params if one.name == "other_jobs"]
    assert isinstance(option.type, click.Choice)
    assert sorted(option.type.choices) == sorted(adapter.kind for adapter in ADAPTERS)


def test_a_jobs_time_is_told_by_use_the_most_first() -> None:
    page = page_of(world([node("n", 4)], [A], pods(A, "n", "n")))
    spent = {"productive_training": 900, "hang": 100}
    obj = {"status": {"elastic": {"goodput": {"milliseconds": spent, "granted": 1, "wanted": 2}}}}
    found = job_page(page, "ns/a", obj, None, [], [])
    assert found is not None and found["goodput"]["share"] == 0.9
    assert [use["use"] for use in found["goodput"]["uses"]] == ["productive_training", "hang"]
    assert found["goodput"]["granted"] == 0.5
    nothing = job_page(page, "ns/a", {"status": {"elastic": {"goodput": "no"}}}, None, [], [])
    assert nothing is not None and nothing["goodput"] is None


def test_counts_are_used_again_where_no_pod_changed() -> None:
    snapshot = world([node("n", 4)], [A], pods(A, "n", "n"))
    before = page_of(snapshot)
    assert page_of(replace(snapshot, queues=OPEN), before).counts is before.counts
    moved = replace(snapshot, pods=pods(A, "n"))
    assert page_of(moved, before).use.queues["default"].held == 1000


parents = st.dictionaries(
    st.sampled_from("abcdef"), st.none() | st.sampled_from("abcdefg"), max_size=6
)


@given(parents)
def test_each_queue_is_in_the_tree_once_below_its_parent(found: dict[str, str | None]) -> None:
    queues = [Queue(name, parent=parent) for name, parent in found.items()]
    ordered = in_tree_order(queues)
    assert sorted(queue.name for queue, _ in ordered) == sorted(found)
    above: list[str] = []
    for queue, depth in ordered:
        assert depth <= len(above)
        assert depth == 0 or queue.parent == above[depth - 1]
        above = [*above[:depth], queue.name]
        assert all(queue.name in family(queues, name) for name in above)


@given(
    st.lists(st.tuples(st.sampled_from(["p", "q"]), st.booleans()), max_size=3 * PAGE),
    st.sampled_from(Sort),
    st.sampled_from([None, frozenset("p")]),
    st.sampled_from([None, State.WAITING]),
)
def test_pages_hold_every_chosen_job_once(
    made: list[tuple[str, bool]], sort: Sort, queues: frozenset[str] | None, state: State | None
) -> None:
    jobs = [job(f"j{i}", 1, 1, queue=queue) for i, (queue, _) in enumerate(made)]
    running = [p for one, (_, runs) in zip(jobs, made, strict=True) if runs for p in pods(one, "n")]
    snapshot = world([node("n", 500)], jobs, running)
    rows = page_of(replace(snapshot, queues=(Queue("p"), Queue("q")))).jobs
    choice = Choice(queues=queues, state=state, sort=sort)
    first = chosen(rows, choice)
    seen = [
        row["job"]
        for number in range(1, first["pages"] + 1)
        for row in chosen(rows, replace(choice, page=number))["rows"]
    ]
    wanted = [
        f"ns/j{i}"
        for i, (queue, runs) in enumerate(made)
        if (queues is None or queue in queues) and (state is None or not runs)
    ]
    assert sorted(seen) == sorted(wanted) and first["total"] == len(wanted)
    assert chosen(rows, replace(choice, page=10**6))["page"] == first["pages"]


def torch_job(
    size: int | None = None, *, uid: str = "u", scaled: int = 0, ended: str = ""
) -> dict[str, Any]:
    elastic: dict[str, Any] = {} if size is None else {"desired": size}
    if scaled:
        time = moment.micro_timestamp(NOW + timedelta(seconds=scaled))
        elastic |= {"lastScaleTime": time, "lastScaleReason": "GrewIntoIdle", "message": "why"}
    conditions = [
        {
            "type": ended,
            "status": "True",
            "reason": "R",
            "lastTransitionTime": "2026-01-01T12:09:00Z",
        }
    ]
    return {
        "metadata": {
            "name": "a",
            "namespace": "ns",
            "uid": uid,
            "creationTimestamp": "2026-01-01T11:00:00Z",
        },
        "spec": {"runPolicy": {"schedulingPolicy": {"queue": "vision"}}},
        "status": {"elastic": elastic, "conditions": conditions if ended else []},
    }


def test_a_jobs_life_is_told_with_its_reasons() -> None:
    life = [
        None,
        torch_job(),
        torch_job(1),
        torch_job(4, scaled=5),
        torch_job(4, scaled=5, ended="Succeeded"),
        None,
    ]
    told = [c for old, new in pairwise(life) for c in changes(old, new, NOW)]
    assert [(c.kind, c.old, c.new) for c in told] == [
        (Kind.ARRIVED, None, None),
        (Kind.SIZED, None, 1),
        (Kind.RESIZED, 1, 4),
        (Kind.SUCCEEDED, 4, None),
    ]
    assert (told[2].reason, told[2].message, told[2].queue) == ("GrewIntoIdle", "why", "vision")
    assert told[2].time == NOW + timedelta(seconds=5)


def test_a_job_that_is_listed_again_tells_nothing_new() -> None:
    """Its last change has the time that it had, by which whoever keeps changes knows it."""
    old, new = torch_job(1), torch_job(4, scaled=5)
    (live,) = changes(old, new, NOW)
    listed = changes(None, new, NOW + timedelta(hours=1))
    (again,) = [c for c in listed if c.kind is Kind.RESIZED]
    assert (again.uid, again.kind, again.time) == (live.uid, live.kind, live.time)
    assert changes(new, new, NOW) == []


def test_another_job_of_that_name_is_another() -> None:
    told = changes(torch_job(2), torch_job(uid="v"), NOW)
    assert [(c.uid, c.kind) for c in told] == [("u", Kind.DELETED), ("v", Kind.ARRIVED)]


def test_the_curve_has_what_was_measured_beside_what_is_reckoned() -> None:
    found = {one["size"]: one for one in curve({1: 10.0, 4: 30.0}, 200, 1.0)}
    assert found[4] == {"size": 4, "measured": 30.0, "modelled": 30.0}
    assert found[200]["measured"] is None and found[200]["modelled"] > 30
    assert len(found) <= 70
    assert curve({}, 3, 1.0)[0] == {"size": 1, "measured": None, "modelled": 1.0}


LEVEL = Level(1000, timedelta(hours=1))
steps = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 8)), min_size=2, max_size=20)


def moments(found: list[tuple[int, int]]) -> list[Moment]:
    time, made = 1_700_000_000_123, []
    for after, held in found:
        time += after
        use = GpuUse("gpu", 8000, 0, 0, 0, {"q": QueueUse(held * 1000)})
        made.append(Moment(time, use, {"q": 4000}, {}))
    return made


@given(steps)
def test_averages_lose_and_invent_no_gpu_time(found: list[tuple[int, int]]) -> None:
    averages, noted = Averages(LEVEL), moments(found)
    buckets = [bucket for one in noted for bucket in averages.note(one)]
    if (last := averages.so_far()) is not None:
        buckets.append(last)
    assert [b.begin for b in buckets] == sorted({b.begin for b in buckets})
    assert sum(b.observed for b in buckets) == noted[-1].time - noted[0].time
    exact = sum(
        one.use.queues["q"].held / 1000 * (after.time - one.time) for one, after in pairwise(noted)
    )
    shown = sum(b.queues["q"].held * b.observed for b in buckets)
    assert shown == pytest.approx(exact, abs=1e-3 * (1 + noted[-1].time - noted[0].time))
    assert all(b.observed <= LEVEL.milliseconds for b in buckets)


def test_time_in_which_nobody_looked_is_not_made_up() -> None:
    first, second = moments([(0, 4), (10 * GAP_MS, 4)])
    averages = Averages(Level(10**9, timedelta(hours=1)))
    averages.note(first)
    averages.note(second)
    found = averages.so_far()
    assert found is not None and found.observed == GAP_MS


@given(steps, st.integers(0, 19))
def test_a_bucket_cut_by_a_restart_is_the_same_when_joined(
    found: list[tuple[int, int]], cut: int
) -> None:
    noted, level = moments(found), Level(10**12, timedelta(hours=1))
    cut = 1 + cut % (len(noted) - 1)
    parts = []
    for some in (noted, noted[: cut + 1], noted[cut:]):
        averages = Averages(level)
        for one in some:
            averages.note(one)
        parts.append(averages.so_far())
    whole, first, second = (None if part is None else part.shown() for part in parts)
    if whole is None or first is None or second is None:
        return
    joined = merged(first, second)
    assert joined["ms"] == whole["ms"]
    for held, expected in zip(
        joined["queues"].get("q", [0]), whole["queues"].get("q", [0]), strict=False
    ):
        assert held is expected is None or held == pytest.approx(expected, abs=2e-3)


def test_long_spans_are_shown_in_long_buckets() -> None:
    spans = [timedelta(minutes=10), timedelta(hours=6), timedelta(days=7)]
    assert [level_for(span) for span in spans] == [0, 1, 2]


def test_the_same_page_makes_one_frame_and_frames_are_bounded() -> None:
    feed, snapshot = PageFeed(), world([node("n", 4)], [A], pods(A, "n", "n"))
    for seconds in (0, 1):
        now = NOW + timedelta(seconds=seconds)
        feed.show(Page(snapshot, plan(snapshot, NOW), now))
    assert feed.version == 1
    feed.show(page_of(replace(snapshot, pods=pods(A, "n"))))
    assert feed.version == 2 and orjson.loads(feed.frame)["held"] == 1
    overview = page_of(snapshot).overview() | {"moreQueues": 0}
    overview["queues"] = [{"name": "x" * 8000, "depth": 0}] * 200
    shown = orjson.loads(fitting(overview))
    assert len(orjson.dumps(shown)) <= MOST_FRAME
    assert len(shown["queues"]) + shown["moreQueues"] == 200


def test_every_reason_that_keeps_a_job_small_says_whether_it_wants_more() -> None:
    """A new reason has to be sorted: silence would show it as wanting."""
    wants = {
        Reason.NO_ROOM,
        Reason.COOLING_DOWN,
        Reason.WAITING_FOR_PODS,
        Reason.ROOM_OWED_TO_MINIMUM,
        Reason.QUEUE_FULL,
        Reason.QUOTA_FULL,
        Reason.HEADROOM_KEPT,
        Reason.GUARANTEED_TO_OTHERS,
    }
    every = list(Reason)
    more = every[every.index(Reason.AT_MAX) : every.index(Reason.AT_MIN)]
    assert set(more) == wants | CONTENT and not wants & CONTENT
