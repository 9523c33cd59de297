"""The page's memory outlives restarts, and is kept once, for as long as it is asked to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.brain.history.database import History as BrainHistory
from volcano_elastic.dashboard.history.history import SLOTS, History, Span
from volcano_elastic.dashboard.history.records import Answer, Kept
from volcano_elastic.dashboard.history.schema import METADATA, VERSION_TABLE
from volcano_elastic.dashboard.model.change import Change, Kind
from volcano_elastic.dashboard.model.timeline import LEVELS
from volcano_elastic.database.database import DatabaseError, milliseconds, time_of

ARRIVED = Change(NOW, Kind.ARRIVED, "u", "ns/a", "vision")
GREW = Change(
    NOW + timedelta(seconds=5), Kind.RESIZED, "u", "ns/a", "vision", 1, 4, "GrewIntoIdle", "idle"
)
SPAN = Span(NOW - timedelta(hours=1), NOW + timedelta(hours=1))


def bucket(begin: int, observed: int = 1000, held: float = 1.0) -> dict[str, Any]:
    cluster = {"capacity": 4.0, "idle": 0.0, "keptOut": 0.0, "idleWanted": 0.0}
    return {"t": begin, "ms": observed, **cluster, "queues": {"q": [held, 0, 0, 0, None, None]}}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    found = History(f"sqlite:///{tmp_path / 'page.db'}")
    found.migrate()
    yield found
    found.close()


def test_changes_come_back_newest_first_and_are_kept_once(history: History) -> None:
    assert history.write([], [ARRIVED, GREW, GREW]) == [ARRIVED, GREW]
    # A list after a restart doesn't know the size before.
    assert history.write([], [replace(GREW, old=None), ARRIVED]) == []
    assert history.changes(SPAN) == [GREW, ARRIVED]
    assert history.changes(SPAN, most=1) == [GREW]
    assert history.changes(replace(SPAN, queues=frozenset({"speech"}))) == []
    assert history.changes(replace(SPAN, job="ns/a")) == [GREW, ARRIVED]


def test_changes_are_counted_by_part_of_the_span(history: History) -> None:
    shrank = replace(GREW, time=NOW + timedelta(minutes=59), old=4, new=2)
    history.write([], [ARRIVED, GREW, shrank])
    counts = history.counts(SPAN)
    middle, last = SLOTS // 2, SLOTS - 1
    assert counts == [
        (middle, Kind.ARRIVED, 0, 1),
        (middle, Kind.RESIZED, 1, 1),
        (last, Kind.RESIZED, -1, 1),
    ]


def test_a_bucket_that_a_restart_cut_is_joined(tmp_path: Path, history: History) -> None:
    length = LEVELS[2].milliseconds
    history.write([(length, bucket(0, 1000, held=1.0))], [])
    again = History(f"sqlite:///{tmp_path / 'page.db'}")
    again.migrate()
    again.write([(length, bucket(0, 3000, held=5.0))], [])
    ((_, content),) = again.buckets(length, time_of(0))
    found = json.loads(content)
    assert (found["ms"], found["queues"]["q"][0]) == (4000, 4.0)
    again.close()


def test_each_kind_of_bucket_is_kept_for_its_time(history: History) -> None:
    now, keep = NOW, timedelta(days=7)
    ages = [timedelta(minutes=30), timedelta(hours=2), timedelta(days=2), timedelta(days=8)]
    for level in LEVELS:
        history.write([(level.milliseconds, bucket(milliseconds(now - age))) for age in ages], [])
    history.write([], [ARRIVED, replace(ARRIVED, time=NOW - timedelta(days=8))])
    history.forget(now, keep)
    left = [len(history.buckets(level.milliseconds, NOW - timedelta(days=9))) for level in LEVELS]
    assert left == [1, 2, 3]
    assert history.changes(replace(SPAN, begin=NOW - timedelta(days=9))) == [ARRIVED]


def test_migrations_lead_to_the_tables_as_the_code_has_them(history: History) -> None:
    with history.database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": VERSION_TABLE}
        )
        assert compare_metadata(context, METADATA) == []


def test_brain_may_keep_its_runs_in_the_same_database(tmp_path: Path, history: History) -> None:
    history.write([], [ARRIVED])
    brain = BrainHistory(f"sqlite:///{tmp_path / 'page.db'}")
    for _ in range(2):
        brain.migrate()
        history.migrate()
    assert brain.runs() == [] and history.changes(SPAN) == [ARRIVED]
    brain.close()


def test_a_lost_database_is_said(tmp_path: Path) -> None:
    lost = History(f"sqlite:///{tmp_path / 'nowhere' / 'page.db'}")
    with pytest.raises(DatabaseError, match=r"page\.db"):
        lost.changes(SPAN)


def test_the_earliest_start_and_the_end_of_a_job_are_kept(history: History) -> None:
    running = past_job("a", 100, None)
    history.records.write([running], NOW)
    restarted = replace(running, started=NOW + timedelta(seconds=500))
    ended = replace(restarted, ended=NOW + timedelta(seconds=900), outcome="Failed")
    history.records.write([ended], NOW)
    assert history.records.since(NOW) == [replace(ended, started=running.started)]
    assert history.records.since(NOW + timedelta(seconds=901)) == []
    history.forget(NOW + timedelta(days=8), timedelta(days=7))
    assert history.records.since(NOW - timedelta(days=9)) == []


def test_answers_count_once_what_they_foretold_has_happened_or_is_overdue(
    history: History,
) -> None:
    def said(uid: str, what: str, low: float, high: float | None) -> Answer:
        late = None if high is None else NOW + timedelta(seconds=high)
        return Answer(uid, NOW, what, NOW + timedelta(seconds=low), late, late)

    a, b = past_job("a", 100, 500), past_job("b", 100, None)
    answers = [
        said(a.uid, "start", 50, 150),
        said(a.uid, "end", 200, 400),
        said(b.uid, "start", 0, 100),
        said(b.uid, "end", 0, None),
    ]
    history.records.say(answers)
    assert history.records.kept() == Kept(0, 0), "nothing is known of what happened"
    history.records.write([a, b], NOW + timedelta(seconds=600))
    assert history.records.kept() == Kept(3, 2)
    late = replace(said(b.uid, "end", 1, 550), asked=NOW + timedelta(seconds=1))
    history.records.say([late])
    assert history.records.kept() == Kept(4, 2), "it was to be over by now"
