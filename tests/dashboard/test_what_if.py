"""The page tells what the planner would decide next if something were otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.queue_policy.world import NOW, job, node, pods, world
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.what_if import NoAnswer, Question, answer
from volcano_elastic.queue_policy.plan import plan

A = job("a", 1, 6, 4)
HUGE = job("huge", 6, 6)
SNAPSHOT = world([node("n", 4)], [A, HUGE], pods(A, "n", "n", "n", "n"))
PAGE = Page(SNAPSHOT, plan(SNAPSHOT, NOW), NOW)


def asked(**question: Any) -> dict[str, Any]:
    return answer(PAGE, Question(**question))


def test_nothing_otherwise_decides_nothing_otherwise() -> None:
    found = asked()
    assert found["newcomer"] is None
    assert [found[name] for name in ("decisions", "undone", "start", "blocked")] == [[]] * 4


def test_a_newcomer_is_told_who_gives_way_and_how_large_it_starts() -> None:
    found = asked(into="default", least=2, most=2)
    assert [(d["job"], d["from"], d["to"]) for d in found["decisions"]] == [("ns/a", 4, 2)]
    assert found["newcomer"] == {
        "starts": True,
        "why": None,
        "size": 2,
        "afterOthersLeft": True,
    }
    larger = asked(into="default", least=9, most=9)
    assert not larger["newcomer"]["starts"] and "9 GPUs" in larger["newcomer"]["why"]


def test_nodes_that_are_added_let_who_waits_start() -> None:
    one = asked(nodes=1)
    assert one["start"] == ["ns/huge"]
    assert [(d["from"], d["to"]) for d in one["decisions"]] == [(4, 2)], "four idle, two given"
    two = asked(nodes=2)
    assert [(d["from"], d["to"]) for d in two["decisions"]] == [(4, 6)], "eight idle, two left"


def test_a_capped_queue_grows_no_further() -> None:
    idle = replace(SNAPSHOT, nodes=(node("n", 8),), jobs=(A,))
    page = Page(idle, plan(idle, NOW), NOW)
    assert [d.new for d in page.plan.decisions] == [6]
    assert answer(page, Question(queue="default", capability=4))["undone"] == ["ns/a"]


@pytest.mark.parametrize(
    "question",
    [
        {"queue": "ghost", "capability": 1},
        {"into": "ghost"},
        {"nodes": 10**6},
        {"into": "default", "least": 3, "most": 2},
    ],
)
def test_a_question_that_makes_no_sense_is_refused(question: dict[str, Any]) -> None:
    with pytest.raises(NoAnswer, match="expected"):
        asked(**question)
