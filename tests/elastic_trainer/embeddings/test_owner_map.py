"""Which holder has which bucket."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.owner_map import (
    FREEZE_SECONDS,
    NOBODY,
    WORTH_STEPS,
    OwnerMap,
    assign,
    assign_to,
    in_pieces,
    keepers_in,
    moves,
    parts_after_a_step,
)
from elastic_trainer.embeddings.split_tables import LATEST, LEAVE_SECONDS
from hypothesis import given
from hypothesis import strategies as st

HOLDERS = st.integers(1, 40)


def moved(before: OwnerMap, after: OwnerMap) -> int:
    return sum(a != b for a, b in zip(before.owners, after.owners, strict=True))


@given(HOLDERS)
def test_each_holder_has_an_even_share(holders: int) -> None:
    counts = Counter(OwnerMap.even(1, holders).owners)
    assert set(counts) == set(range(holders))
    assert max(counts.values()) - min(counts.values()) <= 1


@given(HOLDERS, HOLDERS)
def test_a_change_moves_the_fewest_buckets_that_leave_shares_even(n: int, m: int) -> None:
    before = OwnerMap.even(1, n)
    present = [owner if owner < m else NOBODY for owner in before.owners]
    after = assign(2, present, m)
    counts = Counter(after.owners)
    assert max(counts.values()) - min(counts.values()) <= 1
    # No even map keeps more: a holder keeps what it has, up to its share.
    shares = sorted((BUCKETS // m + (place < BUCKETS % m) for place in range(m)), reverse=True)
    had = sorted((present.count(one) for one in range(m)), reverse=True)
    assert moved(before, after) == BUCKETS - sum(map(min, shares, had))


@given(st.integers(2, 8), st.data())
def test_whoever_begins_to_leave_meanwhile_all_buckets_end_with_who_stays(
    holders: int, data: st.DataObject
) -> None:
    """No part gives anything to who is known to leave."""
    sizes = np.random.default_rng(1).integers(0, 60, BUCKETS)
    owners, leaving, left = OwnerMap.even(1, holders), frozenset[int](), list[OwnerMap]()
    while True:
        more = st.sets(st.integers(0, holders - 1), max_size=2)
        begins = leaving | data.draw(more) if not leaving or data.draw(st.booleans()) else leaving
        if len(begins) == holders:
            return  # nobody stays: all commit
        if begins != leaving:
            leaving = begins
            stays = [one for one in range(holders) if one not in leaving]
            left = in_pieces(owners, assign_to(owners, stays), sizes, 2000)
        if not left:
            break
        before, owners = owners, left.pop(0)
        given = {b for a, b in zip(before.owners, owners.owners, strict=True) if a != b}
        assert not given & leaving
    assert not leaving & set(owners.owners)
    counts = Counter(owners.owners)
    assert len(counts) == holders - len(leaving)


def test_a_fifth_holder_gets_a_fifth_and_nothing_else_moves() -> None:
    before = OwnerMap.even(1, 4)
    after = assign(2, before.owners, 5)
    assert moved(before, after) == len(after.held_by(4)) == 204
    assert after.version == 2


@given(st.lists(st.integers(-1, 6), min_size=BUCKETS, max_size=BUCKETS), st.integers(7, 9))
def test_whatever_was_held_by_whom_every_bucket_gets_one_owner(
    present: list[int], holders: int
) -> None:
    after = assign(3, present, holders)
    counts = Counter(after.owners)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert after == assign(3, present, holders)


def test_a_holder_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket 3 is held by 2: expected one of 2"):
        assign(1, [0, 1, NOBODY, 2] + [0] * (BUCKETS - 4), 2)
    with pytest.raises(ValueError, match="expected at least 1"):
        assign(1, [NOBODY] * BUCKETS, 0)
    with pytest.raises(ValueError, match="expected 1024"):
        OwnerMap(1, (0,))
    with pytest.raises(ValueError, match="expected 1024"):
        OwnerMap(1, (0,) * BUCKETS, (0,))


def test_ids_in_a_row_fall_evenly_into_buckets() -> None:
    counts = np.bincount(buckets(np.arange(1_024_000, dtype=np.int64)), minlength=BUCKETS)
    assert len(counts) == BUCKETS
    assert counts.min() > 800 and counts.max() < 1200


@given(HOLDERS, HOLDERS, st.integers(0, 2**32), st.integers(1, 3000))
def test_in_pieces_each_bucket_moves_once_and_no_holder_moves_more_at_a_time_than_it_may(
    n: int, m: int, seed: int, most: int
) -> None:
    before = OwnerMap.even(1, n)
    after = assign(2, [min(owner, m - 1) for owner in before.owners], m)
    sizes = np.random.default_rng(seed).integers(0, 100, BUCKETS)
    pieces = in_pieces(before, after, sizes, most)
    assert sum(moved(a, b) for a, b in pairwise([before, *pieces])) == moved(before, after)
    assert (pieces[-1].owners if pieces else before.owners) == after.owners
    for a, b in pairwise(np.array(one.owners) for one in [before, *pieces]):
        changed = a != b
        assert changed.any()
        given, taken = (np.bincount(map_[changed], sizes[changed], max(n, m)) for map_ in (a, b))
        assert (given + taken).max() <= max(most, 99)


@given(st.integers(1, 12), st.integers(1, 4))
def test_copies_are_on_another_node_where_there_is_one(nodes: int, local_world: int) -> None:
    ring = range(nodes * local_world)
    keepers = keepers_in(ring, local_world)
    assert sorted(keepers.values()) == (sorted(ring) if len(ring) > 1 else [NOBODY])
    for one, keeper in keepers.items():
        assert keeper != one
        assert nodes == 1 or keeper // local_world != one // local_world


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32), st.booleans(), st.data())
def test_no_bucket_loses_a_holder_on_the_way_to_another_map(
    n: int, m: int, seed: int, backup: bool, data: st.DataObject
) -> None:
    """Each part copies, then drops, whoever holds what, and where some copies were lost before."""
    draw = np.random.default_rng(seed)
    holders = max(n, m)
    before, after = OwnerMap.even(1, n), assign(2, draw.integers(-1, m, BUCKETS).tolist(), m)
    if backup:
        before = before.with_keepers(keepers_in(range(n), 1))
        lost = draw.random(BUCKETS) < data.draw(st.sampled_from([0, 0.3, 1]))
        kept = np.where(lost, NOBODY, before.keepers).tolist()
        before = OwnerMap(1, before.owners, tuple(kept))
        after = after.with_keepers(keepers_in(data.draw(st.permutations(range(m))), 1))
    owned = [set(before.held_by(one)) for one in range(holders)]
    kept_by = [set(before.kept_by(one)) for one in range(holders)]
    most = data.draw(st.sampled_from([2_000, 5_000, 30_000]))
    path = [before, *in_pieces(before, after, draw.integers(0, 100, BUCKETS), most)]
    for a, b in pairwise(path):
        parts = [moves(a, b, one, holders) for one in range(holders)]
        for one, part in enumerate(parts):
            for other in range(holders):  # what one sends is what the other expects
                assert part.goes[other] == parts[other].comes[one]
                assert part.copies_go[other] == parts[other].copies_come[one]
                assert owned[one].issuperset([*part.goes[other], *part.copies_go[other]])
        for one, part in enumerate(parts):
            assert kept_by[one].issuperset(part.promoted)
            assert owned[one].issuperset(part.demoted)
            owned[one].update(*part.comes, part.promoted)
            kept_by[one].update(*part.copies_come, part.demoted)
        for one, part in enumerate(parts):
            assert owned[one].issuperset(part.dropped)
            assert kept_by[one].issuperset(part.copies_dropped)
            owned[one] -= set(part.dropped)
            kept_by[one] -= set(part.copies_dropped)
            assert owned[one] == set(b.held_by(one)) and kept_by[one] == set(b.kept_by(one))
    assert (path[-1].owners, path[-1].keepers) == (after.owners, after.keepers)


LATE = 3.0
STEPS = st.floats(0.001, 3)


def taken(left: int, count: int, step: float, part: float) -> float:
    """Return the seconds in which all parts have moved, so many after each step."""
    return left * part + (-(-left // count) - 1) * step


@given(st.integers(1, 500), STEPS, st.floats(0.001, 0.2), st.floats(-5, 10))
def test_a_step_waits_longer_than_it_should_only_where_all_would_else_be_late(
    left: int, step: float, part: float, seconds: float
) -> None:
    count = parts_after_a_step(left, step, part, seconds, LATE, math.inf)
    assert 1 <= count <= left
    if count > 1 and count * part > FREEZE_SECONDS:
        assert taken(left, count - 1, step, part) > seconds + LATE - 1e-6
        assert count * part <= WORTH_STEPS * step + 1e-6


@given(st.integers(0, 500), STEPS, st.floats(0.001, 0.2), st.floats(1, 10))
def test_all_parts_go_in_the_time_there_is_and_steps_between_them(
    parts: int, step: float, part: float, seconds: float
) -> None:
    now, left, known = 0.0, parts, None
    while left:
        count = parts_after_a_step(left, step, known, seconds - now, LATE, math.inf)
        assert 1 <= count <= left
        left, now, known = left - count, now + step + count * part, part
    assert now <= max(seconds + LATE, (1 + 2 / WORTH_STEPS) * parts * part) + 2 * step + part


@given(st.integers(20, 150), st.floats(0.001, 0.05), st.floats(1, 8), st.data())
def test_a_first_part_that_took_long_has_no_others_move_at_once(
    parts: int, step: float, times: float, data: st.DataObject
) -> None:
    """The first one finds memory that was never touched, and may meet another process's load."""
    usual = data.draw(st.floats(0.01, 0.03))
    now, left, spent = 0.0, parts, 0.0
    while left:
        moved = parts - left
        known = spent / moved if moved else None
        count = parts_after_a_step(left, step, known, 5.0 - now, LATE, 15.0 - now)
        seconds = count * usual * (1 if moved else times)
        assert not moved or seconds <= max(FREEZE_SECONDS, usual, WORTH_STEPS * step)
        left, spent, now = left - count, spent + seconds, now + seconds + step
    assert now <= 5.0 + LATE + step


@given(st.floats(2, 60), st.integers(1, 150), STEPS, st.floats(0, 1), st.floats(0, 1))
def test_a_first_part_that_took_long_does_not_outlast_a_short_grace(
    grace: float, parts: int, step: float, first: float, others: float
) -> None:
    leave = min(LEAVE_SECONDS, grace / 6)
    usual, slow = others * grace / 8 / parts, first * grace / 4
    now, left, spent = 0.0, parts, 0.0
    while left:
        moved = parts - left
        times = leave - now, LATEST * leave, grace / 2 - now
        count = parts_after_a_step(left, step, spent / moved if moved else None, *times)
        seconds = count * usual + (0.0 if moved else slow) + 1e-6
        left, spent = left - count, spent + seconds
        now += seconds + (step if left else 0.0)
    assert now <= 0.625 * grace + 1e-3


def test_another_step_that_would_take_too_long_for_who_leaves_is_not_waited_for() -> None:
    assert parts_after_a_step(7, 5.0, None, 5.0, LATE, 15.0) == 7
    assert parts_after_a_step(7, 4.9, None, 5.0, LATE, 15.0) == 1
