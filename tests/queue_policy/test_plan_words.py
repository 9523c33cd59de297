"""A plan's words to people."""

from __future__ import annotations

from dataclasses import replace

from tests.queue_policy.world import (
    NOW,
    TWO_BY_TWO,
    job,
    pods,
    world,
)
from volcano_elastic.cluster_state.reason import WORDS, Reason
from volcano_elastic.queue_policy.plan import plan


def test_every_code_has_words() -> None:
    assert set(WORDS) == set(Reason)


def test_who_shrinks_and_who_waits_are_told_for_whom_and_for_what() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 2, 4), job("c", 9, 9)
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    (decision,) = made.decisions
    assert (decision.old, decision.new) == (4, 2)
    assert decision.message.startswith("b needs 2 GPUs to start; a gives back 2")
    assert "9 GPUs" in made.blocked["ns/c"]


def test_several_claims_are_named_together() -> None:
    a, b, c = job("a", 1, 4, 4), job("b", 1, 1), replace(job("c", 2, 2), key="team/c")
    made = plan(world(TWO_BY_TWO, [a, b, c], pods(a, "n1", "n1", "n2", "n2")), NOW)
    (decision,) = made.decisions
    assert decision.message == (
        "ns/b and team/c need 3 GPUs to start; a gives back 3 of its 3 surplus workers"
    )


def test_who_grows_beside_a_minimum_that_cannot_start_is_told_that_somebody_waits() -> None:
    a, b = job("a", 1, 4), job("b", 9, 9)
    for beside, words in (
        ([a], "nobody waits for them"),
        ([a, b], "nobody who waits can start with"),
    ):
        (decision,) = plan(world(TWO_BY_TWO, beside, pods(a, "n1")), NOW).decisions
        assert words in decision.message
