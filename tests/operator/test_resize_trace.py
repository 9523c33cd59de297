"""A resize's trace: from its plan over pods and rounds to the first step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from volcano_elastic.operator import resize_trace, round_report
from volcano_elastic.operator.resize_trace import (
    Outcome,
    Resizing,
    Span,
    complete,
    ended,
    saw,
    with_rounds,
)
from volcano_elastic.operator.round_report import ReportedRound
from volcano_elastic.operator.trace_exporter import TraceExporter

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Object = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def resizing(old: int = 1, new: int = 2, **more: Any) -> Resizing:
    known: Object = {
        "job": "team/a",
        "queue": "q",
        "old": old,
        "new": new,
        "reason": "GrewIntoIdle",
        "message": "m",
        "plan_began": at(0),
        "decided": at(0.1),
        "has_rounds": True,
        "round_before": 1,
        "written": at(0.2),
    }
    return Resizing(**(known | more))


def pod(name: str, node: str = "", phase: str = "Pending", *, leaving: bool = False) -> Object:
    meta: Object = {"name": name, "uid": f"uid-{name}"}
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}}


def entry(number: int, world: int, since: float, **more: float | None) -> Object:
    begun = NOW.timestamp()
    clocks = {name: None if value is None else begun + value for name, value in more.items()}
    return {"round": number, "world": world, "time": begun + since, "reason": "r", **clocks}


def rounds(*entries: Object) -> tuple[ReportedRound, ...]:
    return round_report.read(list(entries))


def names(span: Span) -> list[str]:
    return [part.name for part in span.parts]


def grown() -> Resizing:
    """A job that grew from 1 to 2, each moment 0.1 s or more after the one before."""
    found = resizing()
    new = "a-worker-1"
    found = saw(found, None, pod(new), at(0.3))
    found = saw(found, pod(new), pod(new, "n1"), at(0.5))
    found = saw(found, pod(new, "n1"), pod(new, "n1", "Running"), at(1.0))
    before = entry(1, 1, -9, first_step_time=-8, last_step_time=4.0, end_time=4.2)
    return with_rounds(
        found, rounds(before, entry(2, 2, 4.5, first_step_time=5.0, last_step_time=6.0))
    )


def test_growth_is_told_from_the_plan_to_the_first_step() -> None:
    found = grown()
    assert complete(found)
    trace = resize_trace.trace(found, Outcome.COMPLETE, at(14))
    assert (trace.name, trace.start, trace.end) == ("resize", at(0), at(5.0))
    assert trace.failure == ""
    assert trace.attributes["volcano_elastic.size.new"] == 2
    assert names(trace) == ["plan", "write size", "pod comes", "no step"]
    came, stood = trace.parts[2:]
    assert (came.start, came.end) == (at(0.3), at(1.0))
    assert [(p.name, p.start, p.end) for p in came.parts] == [
        ("schedule", at(0.3), at(0.5)),
        ("start", at(0.5), at(1.0)),
    ]
    assert (stood.start, stood.end) == (at(4.0), at(5.0)), "since the last step of the round before"
    assert [(p.name, p.start, p.end) for p in stood.parts] == [
        ("rendezvous", at(4.2), at(4.5)),
        ("first step", at(4.5), at(5.0)),
    ]


def test_shrinking_tells_who_left() -> None:
    found = resizing(2, 1, leavers=frozenset({"a-worker-1"}))
    stays, leaves = pod("a-worker-0", "n", "Running"), pod("a-worker-1", "n", "Running")
    found = saw(found, stays, stays, at(0.3))
    found = saw(found, leaves, pod("a-worker-1", "n", "Running", leaving=True), at(0.4))
    found = saw(found, pod("a-worker-1", "n", leaving=True), None, at(2.0))
    found = with_rounds(found, rounds(entry(2, 1, 1.0, first_step_time=1.2)))
    trace = resize_trace.trace(found, Outcome.COMPLETE, at(9))
    (left,) = [part for part in trace.parts if part.name.startswith("pod")]
    assert (left.name, left.start, left.end) == ("pod leaves", at(0.4), at(2.0))
    assert left.attributes == {"k8s.pod.name": "a-worker-1"}


def test_only_a_round_of_the_new_size_that_made_a_step_is_the_end() -> None:
    found = resizing(1, 3)
    old = entry(1, 3, -5, first_step_time=-4)
    assert not complete(with_rounds(found, rounds(old))), "that one was known before the decision"
    smaller = entry(2, 2, 1, first_step_time=2)
    assert not complete(with_rounds(found, rounds(old, smaller)))
    assert not complete(with_rounds(found, rounds(old, smaller, entry(3, 3, 3))))
    done = with_rounds(found, rounds(old, smaller, entry(3, 3, 3, first_step_time=4)))
    assert complete(done)
    assert names(resize_trace.trace(done, Outcome.COMPLETE, at(9)))[2:] == ["no step", "no step"]
    assert not complete(replace(done, written=None))
    assert complete(replace(done, new=2, fixed=1)), "the Master is in the round, and not counted"


def test_of_a_job_not_heard_of_before_only_the_newest_round_counts() -> None:
    found = resizing(1, 2, round_before=None)
    ended, running = entry(1, 2, -9, first_step_time=-8), entry(2, 1, -5, first_step_time=-4)
    found = with_rounds(found, rounds(ended, running))
    assert not complete(found)
    assert complete(with_rounds(found, rounds(ended, running, entry(3, 2, 1, first_step_time=2))))


def told_together(*resizings: Resizing, of: tuple[ReportedRound, ...]) -> list[tuple[str, Outcome]]:
    over, _ = ended([with_rounds(one, of) for one in resizings])
    return [(f"{one.old} to {one.new}", outcome) for one, outcome in over]


def test_one_that_was_overtaken_before_it_was_told_of_is_complete() -> None:
    shrunk = resizing(3, 2, overtaken=at(3.1))
    grown = resizing(2, 3, decided=at(3.1), written=at(3.2))
    short = (
        entry(1, 3, -60, first_step_time=-59, end_time=0.5),
        entry(2, 2, 0.6, first_step_time=0.9, end_time=3.5),
    )
    assert told_together(shrunk, grown, of=rounds(*short)) == [("3 to 2", Outcome.COMPLETE)]
    last = entry(3, 3, 3.6, first_step_time=3.9)
    assert told_together(shrunk, grown, of=rounds(*short, last)) == [
        ("3 to 2", Outcome.COMPLETE),
        ("2 to 3", Outcome.COMPLETE),
    ]


def test_a_round_of_a_later_decision_is_not_that_of_one_that_was_overtaken() -> None:
    first = resizing(1, 3, overtaken=at(3))
    second = resizing(3, 2, decided=at(3), overtaken=at(5))
    third = resizing(2, 3, decided=at(5))
    of = rounds(
        entry(1, 1, -60, first_step_time=-59, end_time=6.5),
        entry(2, 3, 6.6, first_step_time=7),
    )
    assert told_together(first, second, third, of=of) == [
        ("1 to 3", Outcome.OVERTAKEN),
        ("3 to 2", Outcome.OVERTAKEN),
        ("2 to 3", Outcome.COMPLETE),
    ]


def test_one_round_ends_one_resize() -> None:
    first = resizing(1, 3, overtaken=at(3))
    second = resizing(3, 1, decided=at(3), overtaken=at(5))
    third = resizing(1, 3, decided=at(5))
    of = rounds(
        entry(1, 1, -60, first_step_time=-59, end_time=0.5),
        entry(2, 3, 0.6, first_step_time=0.9, end_time=3.5),
        entry(3, 1, 3.6, first_step_time=3.9),
    )
    assert told_together(first, second, third, of=of) == [
        ("1 to 3", Outcome.COMPLETE),
        ("3 to 1", Outcome.COMPLETE),
    ]


@pytest.mark.parametrize("nothing_more", [{"written": None}, {"has_rounds": False}])
def test_one_of_which_nothing_more_will_be_told_ends_when_it_is_overtaken(
    nothing_more: Object,
) -> None:
    one = resizing(overtaken=at(3), **nothing_more)
    assert told_together(one, resizing(2, 3), of=()) == [("1 to 2", Outcome.OVERTAKEN)]


def test_without_rounds_the_pods_are_the_end() -> None:
    found = resizing(1, 2, has_rounds=False)
    assert not complete(found)
    found = saw(found, None, pod("a-worker-1"), at(1))
    assert not complete(found)
    assert complete(saw(found, None, pod("a-worker-1", "n", "Running"), at(2)))
    found = resizing(2, 1, has_rounds=False, leavers=frozenset({"a-worker-1"}))
    leaving = pod("a-worker-1", "n", "Running", leaving=True)
    found = saw(found, pod("a-worker-1", "n", "Running"), leaving, at(1))
    assert not complete(found)
    assert complete(saw(found, leaving, None, at(2)))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (resizing(written=None), "overtaken: its size was not written"),
        (saw(resizing(), None, pod("a-worker-1"), at(1)), "overtaken: a-worker-1 not running"),
        (resizing(), "overtaken: no step with 2 workers was told of"),
        (resizing(has_rounds=False), "overtaken: pods were still to come or to leave"),
    ],
)
def test_one_that_does_not_come_to_its_end_says_what_is_missing(found: Resizing, why: str) -> None:
    trace = resize_trace.trace(found, Outcome.OVERTAKEN, at(60))
    assert (trace.failure, trace.end) == (why, at(60))


def test_what_is_told_of_a_pod_that_is_gone_changes_nothing() -> None:
    pending, placed = pod("a-worker-1"), pod("a-worker-1", "n", "Pending")
    gone = saw(saw(resizing(), None, pending, at(0)), pending, None, at(1))
    assert saw(gone, pending, placed, at(2)) == gone


moments = st.floats(-100, 100) | st.none()
entries = st.builds(
    entry,
    st.integers(1, 6),
    st.integers(1, 4),
    st.floats(-100, 100),
    first_step_time=moments,
    last_step_time=moments,
    end_time=moments,
)
steps = st.tuples(
    st.sampled_from(["a-worker-0", "a-worker-1", "a-worker-2"]),
    st.sampled_from(["come", "place", "run", "leave", "go"]),
    st.floats(0, 50),
)


@given(
    st.lists(entries, max_size=5), st.lists(steps, max_size=12), st.sampled_from(Outcome), st.data()
)
def test_whatever_is_told_no_span_ends_before_it_begins(
    told_entries: list[Object], changes: list[Any], outcome: Outcome, data: st.DataObject
) -> None:
    found, there = resizing(), {"a-worker-0": pod("a-worker-0", "n", "Running")}
    for name, what, when in sorted(changes, key=lambda change: change[2]):
        old = there.get(name)
        if what == "go":
            there.pop(name, None)
        elif what == "leave" and old is not None:
            there[name] = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "then"}}
        elif what == "come" and old is None:
            there[name] = pod(name)
        elif old is not None:
            there[name] = pod(name, "n", "Running" if what == "run" else "Pending")
        if old is not None or name in there:
            found = saw(found, old, there.get(name), at(when))
    found = with_rounds(found, rounds(*told_entries))

    def check(span: Span) -> None:
        assert span.start <= span.end, span
        for part in span.parts:
            check(part)

    check(resize_trace.trace(found, outcome, at(data.draw(st.floats(51, 99)))))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_rounds_that_make_no_sense_are_left_out(nonsense: Any) -> None:
    assert round_report.read(nonsense) == ()
    assert round_report.read({"rounds": nonsense}) == ()
    assert round_report.read([{"round": nonsense, "world": 1, "time": None}]) == ()
    for one in round_report.read([{"round": 1, "world": 1, "time": nonsense, "end_time": 1e300}]):
        assert one.ended is None


def test_the_exporter_sends_one_trace_with_the_spans_times() -> None:
    kept = InMemorySpanExporter()
    exporter = TraceExporter(kept)
    failed = resize_trace.trace(resizing(), Outcome.UNFINISHED, at(60))
    exporter.export(resize_trace.trace(grown(), Outcome.COMPLETE, at(14)))
    exporter.export(failed)
    exporter.close()
    spans = kept.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context}) == 2
    first, second = [span for span in spans if span.parent is None]
    assert first.start_time == NOW.timestamp() * 10**9
    assert first.end_time == at(5).timestamp() * 10**9
    assert second.status.status_code is StatusCode.ERROR
    assert second.status.description == failed.failure
    assert first.resource.attributes["service.name"] == "volcano-elastic"
    (rendezvous,) = [span for span in spans if span.name == "rendezvous"]
    (above,) = [s for s in spans if rendezvous.parent and s.context == rendezvous.parent]
    assert above.name == "no step"
