"""Finds the ranks that differ where all should have the same, from what each tells."""

from __future__ import annotations

from collections import Counter

import pytest
from elastic_trainer.coordinator.divergence import ReplicaWatch, odd_ones
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("digests", "odd", "outvoted"),
    [
        ("", "", False),
        ("a", "", False),
        ("aa", "", False),
        ("ab", "01", False),
        ("aab", "2", True),
        ("baaa", "0", True),
        ("aabb", "0123", False),
        ("abc", "012", False),
        ("aaabc", "34", True),
        ("aabbc", "01234", False),
    ],
)
def test_most_ranks_outvote_those_that_differ_and_without_a_majority_all_are_named(
    digests: str, odd: str, outvoted: bool
) -> None:
    ranks = frozenset(int(rank) for rank in odd)
    assert odd_ones(dict(enumerate(digests))) == (ranks, outvoted)


@given(st.dictionaries(st.integers(0, 99), st.sampled_from("abc")))
def test_nobody_of_a_majority_is_named_and_everybody_else_is(digests: dict[int, str]) -> None:
    odd, outvoted = odd_ones(digests)
    counts = Counter(digests.values())
    for rank, digest in digests.items():
        majority = 2 * counts[digest] > len(digests)
        assert (rank in odd) == (len(counts) > 1 and not majority)
    assert outvoted == (0 < len(odd) < len(digests))


@given(
    st.permutations([(agent, step) for agent in "xyz" for step in (10, 20, 30)]),
    st.sampled_from("xyz"),
    st.sampled_from((10, 20, 30, 40)),
)
def test_the_odd_one_is_named_in_whichever_order_agents_tell(
    order: list[tuple[str, int]], odd: str, since: int
) -> None:
    watch = ReplicaWatch()
    for agent, step in order:
        digests = ("same", "odd" if agent == odd and step >= since else "same")
        watch = watch.heard(7, step, agent, digests, "xyz", float(step))
    assert watch.judged == 30 and not watch.told
    named = {(odd, 1)} if since <= 30 else set()
    assert watch.diverged.keys() == watch.outvoted == named
    assert watch.total == len(named)
    for one in watch.diverged.values():
        assert since <= one.step and one.agreed < one.step


def test_one_that_agrees_again_is_named_no_more_and_the_step_they_last_agreed_at_is_kept() -> None:
    watch = ReplicaWatch()
    for step, second in ((5, "a"), (6, "b"), (7, "b"), (8, "a")):
        for agent, digest in (("x", "a"), ("y", second), ("z", "a")):
            watch = watch.heard(1, step, agent, (digest,), "xyz", 100.0 + step)
        if step in (6, 7):
            (one,) = watch.diverged.values()
            assert (one.step, one.agreed, one.since, one.outvoted) == (6, 5, 106.0, True)
    assert not watch.diverged and watch.agreed == 8 and watch.total == 1


def test_a_step_that_a_node_passed_over_is_never_judged_and_not_kept_for_ever() -> None:
    watch = ReplicaWatch()
    for step in range(1000):
        watch = watch.heard(1, step, "x", ("a",), "xy", 0.0)
        assert len(watch.told) <= 4
    watch = watch.heard(1, 990, "y", ("b",), "xy", 0.0)
    assert watch.judged == -1, "x's was forgotten"
    watch = watch.heard(1, 998, "y", ("b",), "xy", 0.0)
    assert watch.judged == 998 and len(watch.diverged) == 2 and not watch.outvoted


def test_a_round_compares_its_own_steps_and_keeps_who_differed_until_then() -> None:
    watch = ReplicaWatch()
    for agent, digest in (("x", "a"), ("y", "b"), ("z", "a")):
        watch = watch.heard(1, 50, agent, (digest,), "xyz", 0.0)
    watch = watch.heard(2, 50, "x", ("a",), "xyz", 1.0)
    assert watch.outvoted == {("y", 0)}, "the step was done again"
    for agent in "yz":
        watch = watch.heard(2, 50, agent, ("a",), "xyz", 1.0)
    assert not watch.diverged and watch.agreed == 50
