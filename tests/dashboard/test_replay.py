"""Replays of the recorded past, had something been otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.forecast.world import past_job
from tests.queue_policy.world import NOW, node, world
from volcano_elastic.dashboard.model import replay as model
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.replay import Past, replay
from volcano_elastic.dashboard.model.what_if import NoAnswer, Question
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Queue

DAY = 86_400
SNAPSHOT = replace(world([node("n", 8)], []), queues=(Queue("a"), Queue("b"), Queue("default")))
PAGE = Page(SNAPSHOT, plan(SNAPSHOT, NOW), NOW)
# Two fill the eight GPUs for an hour, b's second waits for them in truth.
FULL = [
    past_job("one", -DAY + 100, -DAY + 3700, queue="a", least=4, most=4),
    past_job("two", -DAY + 100, -DAY + 3700, queue="b", least=4, most=4),
    replace(
        past_job("three", -DAY + 200, -DAY + 7300, queue="b", least=4, most=4),
        started=NOW + timedelta(seconds=-DAY + 3700),
    ),
]


def asked(records: Sequence[JobRecord] = FULL, **question: Any) -> dict[str, Any]:
    past = Past(NOW - timedelta(days=1), NOW, records, 8, 0.5)
    return replay(PAGE, past, Question(**question))


def test_nothing_otherwise_brings_the_same_again_as_it_was_in_truth() -> None:
    found = asked()
    for figures in (found["all"], *found["queues"]):
        for name in ("jobs", "wait", "end", "held"):
            assert figures[name][0] == figures[name][1]
    assert found["moved"] == found["never"] == [] and found["newcomer"] is None
    assert found["recordedWait"] == pytest.approx(3500 / 3)
    assert found["all"]["wait"][0] == pytest.approx(found["recordedWait"], rel=0.02)
    assert found["all"]["held"][0] == pytest.approx(12, rel=0.02), "three hours of four"
    assert (found["jobs"], found["capacity"], found["observed"]) == (3, [8, 8], 0.5)


def test_nodes_that_had_been_there_spare_the_wait() -> None:
    found = asked(nodes=1)
    assert found["capacity"] == [8, 16]
    (row,) = found["moved"]
    assert (row["job"], row["queue"], row["wait"][1]) == ("three/job", "b", 0)
    assert row["wait"][0] == pytest.approx(3500, rel=0.02)
    by_queue = {one["name"]: one for one in found["queues"]}
    assert by_queue["a"]["wait"] == [0, 0] and by_queue["b"]["wait"][1] == 0


def test_a_queue_that_had_been_capped_waits_for_its_own() -> None:
    spare = [*FULL[1:2], replace(FULL[2], started=FULL[2].created)]
    assert asked(spare)["all"]["wait"] == [0, 0]
    found = asked(spare, queue="b", capability=4)
    assert [row["job"] for row in found["moved"]] == ["three/job"]
    assert asked(spare, queue="a", capability=1)["moved"] == []


def test_jobs_beyond_the_cap_are_named_and_keep_nobody_else_waiting() -> None:
    found = asked(queue="b", capability=3)
    assert sorted(found["never"]) == ["three/job", "two/job"]
    assert found["all"]["jobs"] == [3, 1]


def test_a_job_that_had_arrived_starts_and_ends_beside_the_others() -> None:
    found = asked(into="a", least=8, most=8, hours=2)
    assert found["newcomer"]["end"] - found["newcomer"]["wait"] == pytest.approx(7200, rel=0.01)
    assert {row["job"] for row in found["moved"]} == {"one/job", "two/job", "three/job"}
    assert found["all"]["jobs"] == [3, 3], "it is none of those on record"
    assert asked(into="a", least=9, most=9)["newcomer"] == {"starts": False}
    # No work and no memory goes into it.
    endless = asked(into="a", least=10**6, most=10**6, each=10**6)
    assert endless["newcomer"] == {"starts": False}
    assert asked(into="a", least=1, most=10**6, each=3)["newcomer"]["starts"]


def test_jobs_of_which_nothing_is_known_are_counted() -> None:
    assert asked([*FULL, replace(FULL[0], uid="w", started=None)])["leftOut"] == 1


@pytest.mark.parametrize(
    ("records", "question", "said"),
    [
        ([], {}, "found none on record"),
        (FULL, {"queue": "ghost", "capability": 1}, "the name of a queue"),
        (FULL * 2, {}, "at most 5 jobs"),
    ],
)
def test_a_question_without_an_answer_says_why(
    records: list[JobRecord],
    question: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "MOST_JOBS", 5)
    with pytest.raises(NoAnswer, match=said):
        asked(records, **question)


def test_work_that_takes_too_long_is_given_up() -> None:
    def too_long() -> None:
        raise NoAnswer("expected less")

    with pytest.raises(NoAnswer, match="expected less"):
        replay(PAGE, Past(NOW - timedelta(days=1), NOW, FULL, 8, 1.0), Question(), too_long)


@given(
    jobs=st.lists(
        st.tuples(
            st.integers(-DAY, -100),
            st.integers(60, 20_000),
            st.integers(1, 4),
            st.integers(0, 4),
            st.sampled_from(["a", "b"]),
        ),
        min_size=1,
        max_size=8,
    ),
    cap=st.integers(0, 8),
    added=st.integers(0, 2),
)
@settings(max_examples=examples(25), deadline=None)
def test_every_job_on_record_starts_in_both_worlds_or_is_named(
    jobs: list[tuple[int, int, int, int, str]], cap: int, added: int
) -> None:
    records = [
        replace(
            past_job(f"u{i}", start, min(start + length, -1), queue=queue, least=n, most=n + more),
            uid=str(i),
        )
        for i, (start, length, n, more, queue) in enumerate(jobs)
    ]
    found = asked(records, queue="a", capability=cap, nodes=added)
    assert found["jobs"] == len(records)
    assert found["all"]["jobs"] == [len(records), len(records) - len(found["never"])]
    for name in ("jobs", "held"):
        for i in (0, 1):
            parts = sum(one[name][i] for one in found["queues"])
            assert parts == pytest.approx(found["all"][name][i])
