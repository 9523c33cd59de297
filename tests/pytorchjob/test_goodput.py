"""`status.elastic.goodput`: what trainers tell is kept, whoever is started anew."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.cli.goodput import description, text
from volcano_elastic.pytorchjob.goodput import (
    TOLD,
    USES,
    Goodput,
    kept,
    places,
    read,
    share,
    summed,
    with_places,
)

SPENT = st.fixed_dictionaries({use: st.integers(0, 1 << 50) for use in TOLD})


def told(milliseconds: dict[str, int], name: str = "a") -> Goodput:
    found = read({"id": name, "milliseconds": milliseconds})
    assert found is not None
    return found


@given(st.lists(st.tuples(st.sampled_from("ab"), SPENT), max_size=8), st.booleans())
def test_ledgers_follow_one_another_and_nothing_that_was_known_is_lost(
    story: list[tuple[str, dict[str, int]]], restarted: bool
) -> None:
    known: dict[str, Any] = {}
    before = 0
    for name, spent in story:
        known = kept(known, told(spent, name))
        total = sum(known["milliseconds"].values())
        assert total >= max(before, sum(spent.values()))
        assert kept(known, told(spent, known["ledger"]))["ledger"] == known["ledger"]
        known = with_places(known, 10, 1, 4)
        if restarted:  # another operator reads what was written, and hears the same again
            assert kept(dict(known), None) == known
        before = total
    assert places([known]) == (10 * len(story), 40 * len(story))


def test_a_ledger_counts_once_though_a_new_coordinator_was_asked_before_it_knew_of_it() -> None:
    nothing = dict.fromkeys(TOLD, 0)
    known = kept({}, told(nothing | {"productive_training": 1000}))
    known = kept(known, told(nothing, "b"))
    known = kept(known, told(nothing | {"productive_training": 1100}))
    assert sum(known["milliseconds"].values()) == 1100


def test_a_ledger_that_is_back_has_what_a_coordinator_counted_before_it_knew_of_it() -> None:
    def after(*story: tuple[str, int]) -> int:
        known: dict[str, Any] = {}
        for name, spent in story:
            known = kept(known, told(dict.fromkeys(TOLD, 0) | {"productive_training": spent}, name))
        return sum(known["milliseconds"].values())

    # The new coordinator's first agent was a newcomer; then a survivor told it of the ledger.
    assert after(("a", 1_000_000), ("b", 200), ("a", 1_010_000)) == 1_010_000
    assert after(("z", 5), ("a", 1000), ("b", 200), ("a", 1010), ("a", 1300)) == 1305
    assert after(("a", 1000), ("b", 200), ("a", 1100)) == 1200, "it has not caught up"


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda x: st.dictionaries(st.text(max_size=8), x, max_size=4),
    max_leaves=8,
)


@given(ANYTHING)
def test_what_makes_no_sense_is_not_taken(found: Any) -> None:
    assert read(found) is None and read({"id": "a", "milliseconds": found}) is None
    assert sum(summed([found]).values()) == 0
    assert sum(kept(found, told(dict.fromkeys(TOLD, 1)))["milliseconds"].values()) == len(TOLD)
    assert places([found]) == (0, 0)


def test_the_table_shows_each_use_with_its_share_and_they_are_all() -> None:
    spent = dict.fromkeys(TOLD, 0) | {"productive_training": 9 * 3_600_000, "hang": 3_600_000}
    found = description("queue", "research", [with_places(kept(None, told(spent)), 5, 1, 4), None])
    assert (found["jobs"], found["held"], found["goodput"]) == (1, 36_000_000, 0.9)
    shown = text(found).splitlines()
    assert shown[0] == "Queue research, 1 jobs: goodput 90.0 % of 10.00 process hours"
    assert shown[1] == "  90.0 %       9.00 h  training that counts (productive_training)"
    assert shown[2] == "  10.0 %       1.00 h  hanging (hang)" and len(shown) == 2 + len(USES)
    assert shown[-1] == "Scheduling: 25.0 % of the workers that max allows were there"
    assert share({}) is None and "no time" in text(description("job", "a/b", [None]))
