"""What people are told about a plan."""

from __future__ import annotations

from dataclasses import replace

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    job,
    pods,
    world,
)
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.messages import WORDS, explain, lines
from volcano_elastic.queue_policy.plan import plan


def test_every_code_has_words() -> None:
    assert set(WORDS) == set(Reason)


def test_explain_says_what_happens_to_each_job() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 2, 4), job("c", 9, 9)
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    assert explain("ns/a", made).startswith("4 -> 2 workers: b needs 2 GPUs")
    assert "does not grow" in explain("ns/b", made)
    assert "9 GPUs" in explain("ns/c", made)
    assert len(lines(made)) == 3


def test_several_claims_are_named_together() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 1, 1), replace(job("c", 2, 2), key="team/c")
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    (decision,) = made.decisions
    assert decision.message == (
        "ns/b and team/c need 3 GPUs to start; a gives back 3 of its 3 surplus workers"
    )
