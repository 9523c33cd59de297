"""Which ranks take fewer samples: those that are slow, by as much as they are, and no longer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from elastic_trainer.coordinator.__main__ import deadlines
from elastic_trainer.coordinator.rebalance import FULL, LEAST, SELDOM, Shares, wanted_shares
from elastic_trainer.coordinator.straggler import CONFIRMED, Pace, StragglerWatch, Worked
from hypothesis import given
from hypothesis import strategies as st

Key = tuple[str, int]
SLOW: Key = ("a1", 0)
KEYS: list[Key] = [(f"a{node}", 0) for node in range(4)]


def paces(shares: Mapping[Key, int], by_sample: Mapping[Key, float]) -> dict[Key, Pace]:
    """Return paces of ranks whose time follows their samples, 1000 in a full share."""
    return {
        key: Pace(by_sample.get(key, 0.001) * shares.get(key, FULL), samples=shares.get(key, FULL))
        for key in KEYS
    }


@pytest.mark.parametrize(
    ("speed", "given_before", "named", "share"),
    [
        (0.5, None, True, 500),
        (0.5, None, False, FULL),
        (0.05, None, True, LEAST),
        (0.5, 500, False, 500),
        (0.55, 500, False, 500),
        (0.42, 500, False, 500),
        (0.7, 500, False, 700),
        (0.3, 500, False, 300),
        (0.95, 500, False, FULL),
        (1.0, 500, False, FULL),
        (0.01, 500, False, LEAST),
    ],
)
def test_a_rank_takes_what_it_does_in_the_others_time(
    speed: float, given_before: int | None, named: bool, share: int
) -> None:
    before = {} if given_before is None else {SLOW: given_before}
    found = wanted_shares(paces(before, {SLOW: 0.001 / speed}), before, {SLOW} if named else ())
    assert found[SLOW] == pytest.approx(share, abs=1)
    assert all(found[key] == FULL for key in KEYS if key != SLOW)


def test_a_share_is_given_at_once_to_who_is_named_and_back_only_after_several_windows() -> None:
    shares = Shares().window(paces({}, {SLOW: 0.002}), {SLOW}, 10.0, 1.0)
    assert shares.due and shares.given == {SLOW: 500}
    assert shares.window(paces({}, {}), (), 11.0, 1.0) == shares, "until the next round has it"
    shares = shares.begun(KEYS)
    assert not shares.due and shares.given == {SLOW: 500}
    now = 10.0 + SELDOM
    for number in range(CONFIRMED):
        assert not shares.due, number
        shares = shares.window(paces(shares.given, {}), (), now + number, 1.0)
    assert shares.due and not shares.given


def test_one_window_in_another_speed_changes_nothing_and_changes_are_seldom() -> None:
    shares = Shares({SLOW: 500}, changed=0.0)
    slow, fast = paces({SLOW: 500}, {SLOW: 0.002}), paces({SLOW: 500}, {})
    for number in range(30):
        shares = shares.window(slow if number % CONFIRMED else fast, (), 100.0 + number, 1.0)
        assert not shares.due
    shares = Shares({SLOW: 500}, changed=100.0)
    for number in range(SELDOM):
        shares = shares.window(fast, (), 100.0 + number, 1.0)
        assert not shares.due
    assert shares.window(fast, (), 100.0 + SELDOM, 1.0).due


def test_a_rank_that_is_not_in_the_next_round_has_no_share_there() -> None:
    shares = Shares({SLOW: 500, ("gone", 1): 300}, True).begun(KEYS)
    assert shares.given == {SLOW: 500} and not shares.due


@given(
    st.dictionaries(st.sampled_from(KEYS), st.floats(0.0005, 0.02), max_size=2),
    st.lists(st.floats(0.97, 1.03), min_size=4, max_size=4),
)
def test_shares_settle_and_then_stay_where_time_follows_samples(
    by_sample: dict[Key, float], noise: list[float]
) -> None:
    """The watch that names stragglers and the shares together, over 60 windows of a second."""
    shares, watch, changes = Shares(), StragglerWatch(), 0
    done = dict.fromkeys(KEYS, Worked(0, 0, 0, 0, 0))
    number = 1
    for second in range(60):
        for key, factor in zip(KEYS, noise, strict=True):
            taken = shares.given.get(key, FULL)
            spent = 10_000 * by_sample.get(key, 0.001) * taken * factor
            before = done[key]
            done[key] = Worked(
                before.compute + round(spent),
                0,
                0,
                before.batches + 10,
                before.samples + 10 * taken,
            )
        looked = watch.looked(number, done, float(second))
        if looked.paces is not watch.paces:
            shares = shares.window(looked.paces, looked.named, float(second), 1.0)
        watch = looked
        if shares.due:
            shares, number, changes = shares.begun(KEYS), number + 1, changes + 1
    assert changes <= 2
    assert not watch.named or all(shares.given[key] == LEAST for key in watch.named)


def test_a_job_says_whether_slow_ranks_take_less() -> None:
    assert not deadlines({})["rebalance"]
    assert deadlines({"VOLCANO_ELASTIC_STRAGGLERS": "Rebalance"})["rebalance"]
    with pytest.raises(ValueError, match="expected Report or Rebalance, found 'yes'"):
        deadlines({"VOLCANO_ELASTIC_STRAGGLERS": "yes"})
