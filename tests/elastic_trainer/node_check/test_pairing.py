"""Any number of broken nodes below half is found, exactly, and nobody's fault is guessed at."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from elastic_trainer.node_check.pairing import SEARCH_ROUNDS, next_groups
from elastic_trainer.node_check.verdict import (
    SLOW,
    Trial,
    Verdict,
    stragglers,
    verdicts,
)
from hypothesis import given
from hypothesis import strategies as st


def names(count: int) -> list[str]:
    return [f"node-{i}" for i in range(count)]


def held(
    nodes: Sequence[str],
    broken: Collection[str] = (),
    seconds: Mapping[str, float] | None = None,
    unable: Collection[str] = (),
) -> list[Trial]:
    """All rounds of a check in which groups pass that have no broken member."""
    trials: list[Trial] = []
    for number in range(1, 10 * len(nodes) + 10):
        groups = next_groups(nodes, trials)
        if not groups:
            return trials
        assert len({node for group in groups for node in group}) == sum(map(len, groups))
        for group in groups:
            waits = max((seconds or {}).get(node, 1.0) for node in group)
            lacking = frozenset(group) & frozenset(unable)
            trials.append(
                Trial(
                    number,
                    group,
                    None if lacking else not set(group) & set(broken),
                    dict.fromkeys(group, waits),
                    lacking,
                )
            )
    raise AssertionError("the check has no end")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], frozenset[str]]:
    nodes = names(draw(st.integers(2, 40)))
    return nodes, frozenset(draw(st.sets(st.sampled_from(nodes))))


@given(clusters())
def test_below_half_each_node_is_proven_or_faulty_as_it_is(
    cluster: tuple[list[str], frozenset[str]],
) -> None:
    nodes, broken = cluster
    found = verdicts(nodes, held(nodes, broken))
    if 2 * len(broken) < len(nodes):
        assert found == {
            node: Verdict.FAULTY if node in broken else Verdict.PROVEN for node in nodes
        }


@given(clusters())
def test_however_many_are_broken_no_verdict_is_wrong(
    cluster: tuple[list[str], frozenset[str]],
) -> None:
    nodes, broken = cluster
    found = verdicts(nodes, held(nodes, broken))
    for node, verdict in found.items():
        assert verdict in (
            Verdict.UNKNOWN,
            Verdict.FAULTY if node in broken else Verdict.PROVEN,
        )
    assert len(set(found.values()) - {Verdict.UNKNOWN}) == 0 or Verdict.PROVEN in found.values()


@given(clusters())
def test_sound_nodes_are_proven_in_one_round(cluster: tuple[list[str], frozenset[str]]) -> None:
    nodes, _ = cluster
    assert {trial.round for trial in held(nodes)} == {1}


@given(clusters(), st.data())
def test_a_node_that_cannot_run_the_check_is_unknown_and_hides_nobody(
    cluster: tuple[list[str], frozenset[str]], data: st.DataObject
) -> None:
    nodes, broken = cluster
    unable = data.draw(st.sets(st.sampled_from(nodes)))
    found = verdicts(nodes, held(nodes, broken, unable=unable))
    assert all(found[node] is Verdict.UNKNOWN for node in unable)
    for node in set(nodes) - unable:
        assert found[node] is not (Verdict.PROVEN if node in broken else Verdict.FAULTY)


@given(st.integers(6, 40), st.data())
def test_a_slow_node_is_a_straggler_and_those_that_waited_for_it_are_not(
    count: int, data: st.DataObject
) -> None:
    nodes = names(count)
    slow = data.draw(st.sampled_from(nodes))
    trials = held(nodes, seconds={slow: 1.5 * SLOW})
    assert stragglers(trials) == {slow: 1.5 * SLOW}
    assert set(verdicts(nodes, trials).values()) == {Verdict.PROVEN}


def test_many_slow_nodes_are_stragglers_and_those_that_met_only_slow_ones_are_not() -> None:
    """Most wait for a slow one at first, so the median of all is a slow node's."""
    nodes = names(20)
    slow = {nodes[i] for i in (0, 2, 4, 7, 8, 10, 13)}
    trials = held(nodes, seconds=dict.fromkeys(slow, 1.5 * SLOW))
    assert stragglers(trials).keys() == slow


@given(clusters(), st.data())
def test_a_node_is_called_slow_only_if_it_is_whoever_else_is_slow_or_broken(
    cluster: tuple[list[str], frozenset[str]], data: st.DataObject
) -> None:
    nodes, broken = cluster
    slow = data.draw(st.sets(st.sampled_from(nodes)))
    trials = held(nodes, broken, seconds=dict.fromkeys(slow, 1.5 * SLOW))
    assert stragglers(trials).keys() <= slow


def test_the_articles_six_nodes_are_paired_as_it_says() -> None:
    nodes = ["1", "2", "3", "4", "5", "6"]
    trials = held(nodes, broken={"6"})
    assert [trial.members for trial in trials if trial.round == 1] == [
        ("1", "2"),
        ("3", "4"),
        ("5", "6"),
    ]
    second = [trial.members for trial in trials if trial.round == 2]
    assert second == [("5", "1"), ("6", "2")]
    assert max(trial.round for trial in trials) == 2
    assert verdicts(nodes, trials)["6"] is Verdict.FAULTY


def test_of_two_nodes_that_fail_together_neither_is_faulty() -> None:
    trials = held(["a", "b"], broken={"b"})
    assert len(trials) == 1
    assert set(verdicts(["a", "b"], trials).values()) == {Verdict.UNKNOWN}


def test_one_broken_node_of_three_is_found() -> None:
    for broken in "abc":
        found = verdicts("abc", held(list("abc"), broken={broken}))
        assert [node for node in "abc" if found[node] is Verdict.FAULTY] == [broken]


def test_where_all_are_broken_the_search_ends_without_a_verdict() -> None:
    nodes = names(64)
    trials = held(nodes, broken=nodes)
    assert max(trial.round for trial in trials) == SEARCH_ROUNDS
    assert set(verdicts(nodes, trials).values()) == {Verdict.UNKNOWN}


def test_a_broken_way_between_two_sound_nodes_makes_neither_faulty() -> None:
    nodes = names(6)
    trials: list[Trial] = []
    for number in range(1, 10):
        for group in next_groups(nodes, trials):
            trials.append(Trial(number, group, set(group) != {"node-0", "node-1"}))
    assert set(verdicts(nodes, trials).values()) == {Verdict.PROVEN}


def test_of_1024_nodes_460_broken_ones_are_found_in_a_few_rounds() -> None:
    nodes = names(1024)
    broken = frozenset(random.Random(0).sample(nodes, 460))
    trials = held(nodes, broken)
    found = verdicts(nodes, trials)
    assert {node for node in nodes if found[node] is Verdict.FAULTY} == broken
    assert Verdict.UNKNOWN not in found.values()
    assert max(trial.round for trial in trials) <= 5


def test_a_node_that_goes_away_is_met_by_nobody() -> None:
    first = [Trial(1, ("a", "b"), False), Trial(1, ("c", "d"), True)]
    groups = next_groups(["a", "c", "d"], first)
    assert groups == (("a", "c"),)
