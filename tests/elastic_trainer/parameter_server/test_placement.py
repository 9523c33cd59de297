"""Which buckets are moved, and whose life is over: from what servers say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.owner_map import NOBODY
from elastic_trainer.parameter_server.placement import (
    FROZEN,
    HELD,
    LOST_SECONDS,
    Kept,
    Server,
    alive,
    followed,
    gone,
    is_outdone,
    is_released,
    keeper,
    next_adoption,
    next_move,
    outdated,
    place,
)
from hypothesis import given
from hypothesis import strategies as st


def server(number: int, held: range = range(0), *, heard: float = 0.0, **given: object) -> Server:
    states = np.zeros(BUCKETS, dtype=np.int8)
    states[list(held)] = HELD
    return replace(Server(f"host-{number}:1", f"life-{number}", states, heard), **given)  # type: ignore[arg-type]


def test_newcomer_gets_a_fifth_from_four_and_nothing_else_moves() -> None:
    servers = [server(n, range(256 * n, 256 * (n + 1))) for n in range(4)] + [server(4)]
    moved = 0
    while (move := next_move(servers)) is not None:
        assert move.target.address == "host-4:1"
        moved += len(move.buckets)
        servers = make(servers, move.source, move.target, move.buckets)
    assert moved == 204
    assert sorted(int(one.held.sum()) for one in servers) == [204, 205, 205, 205, 205]


def make(
    servers: list[Server], source: Server, target: Server, buckets: tuple[int, ...]
) -> list[Server]:
    found = []
    for one in servers:
        held = one.held.copy()
        if one.life == source.life:
            held[list(buckets)] = 0
        if one.life == target.life:
            held[list(buckets)] = HELD
        found.append(replace(one, held=held))
    return found


@given(st.lists(st.tuples(st.integers(0, 1024), st.booleans()), min_size=1, max_size=6))
def test_moves_end_with_even_shares_and_leavers_released(shape: list[tuple[int, bool]]) -> None:
    cuts = sorted(cut for cut, _ in shape[1:])
    bounds = [0, *cuts, BUCKETS]
    servers = [
        server(n, range(bounds[n], bounds[n + 1]), leaving=leaving and n > 0)
        for n, (_, leaving) in enumerate(shape)
    ]
    for _ in range(40):
        move = next_move(servers)
        if move is None:
            break
        servers = make(servers, move.source, move.target, move.buckets)
    assert next_move(servers) is None
    assert NOBODY not in place(servers).owners
    stay = [int(one.held.astype(bool).sum()) for one in servers if not one.leaving]
    assert max(stay) - min(stay) <= 1
    assert all(is_released(one) for one in servers if one.leaving)


def test_bucket_on_its_way_is_the_takers_once_that_holds_it() -> None:
    source, target = server(0, range(BUCKETS)), server(1)
    source.held[:10] = FROZEN
    assert place([source, target]).owners[0] == 0
    target.held[:10] = HELD
    assert place([source, target]).owners[0] == 1
    assert place([source, target]).owners[10] == 0


def test_one_move_at_a_time() -> None:
    assert next_move([server(0, range(BUCKETS), giving=True), server(1)]) is None


def test_silent_server_and_one_that_was_started_again_are_gone() -> None:
    servers = {one.life: one for one in (server(0, heard=100.0), server(1, heard=70.0))}
    assert gone(servers, 70.0 + LOST_SECONDS / 2, 0.0) == set()
    assert gone(servers, 70.0 + LOST_SECONDS, 0.0) == {"life-1"}
    again = replace(server(1, heard=80.0), life="second")
    servers[again.life] = again
    assert gone(servers, 81.0, 0.0) == {"life-1"}
    assert [one.life for one in alive(servers, 81.0)] == ["life-0", "second"]


def test_receiver_that_a_new_first_server_never_heard_of_is_gone_after_a_while() -> None:
    servers = {"life-0": server(0, range(BUCKETS), heard=20.0, giving=True, giving_to="dead")}
    assert gone(servers, 20.0, 20.0) == set()
    servers["life-0"] = replace(servers["life-0"], heard=40.0)
    assert gone(servers, 20.0 + LOST_SECONDS, 20.0) == {"dead"}


def kept(life: str, of: range, turn: int = 0, *, given: bool = False) -> Kept:
    return Kept(life, np.array(of), np.full(len(of), turn), given)


def test_copy_of_a_life_that_is_over_is_adopted_and_no_other_one() -> None:
    present = [
        server(0, range(500), heard=2.0, copies=(kept("life-1", range(500, 900)),)),
        server(2, range(900, BUCKETS), heard=2.0, copies=(kept("life-0", range(500)),)),
    ]
    over = {"life-1": 1.0}
    found = next_adoption(present, over, {})
    assert found is not None and found.may_begin
    assert (found.keeper.life, found.kept.life) == ("life-0", "life-1")
    assert found.kept.buckets.tolist() == list(range(500, 900))
    waits = next_adoption(present, {}, {})
    assert waits is not None and not waits.may_begin, "it may still serve"
    present[1].held[500:600] = HELD
    found = next_adoption(present, over, {"life-1": "life-0"})
    assert found is not None and found.kept.buckets.tolist() == list(range(600, 900))


def test_copy_of_an_earlier_keeper_counts_only_until_the_later_one_has_its_own() -> None:
    older = server(0, range(500), heard=2.0, copies=(kept("life-1", range(500, BUCKETS)),))
    later = server(2, heard=2.0)
    over, keepers = {"life-1": 1.0}, {"life-1": "life-2"}
    assert next_adoption([older, later], over, keepers) is not None
    assert next_adoption([older], over, keepers) is None, "the later one's is lost with it"
    has = replace(later, copies=(kept("life-1", range(500, 600)),))
    found = next_adoption([older, has], over, keepers)
    assert found is not None and found.keeper == has


def test_newest_copy_of_a_bucket_that_moved_is_adopted() -> None:
    rest = range(10, BUCKETS)
    giver = server(0, rest, heard=2.0, copies=(kept("life-1", range(10), 3, given=True),))
    keeper_of_giver = server(2, heard=2.0, copies=(kept("life-0", range(10), 3),))
    over = {"life-1": 1.0}
    found = next_adoption([keeper_of_giver, giver], over, {})
    assert found is not None and found.may_begin and found.keeper == giver
    of_taker = server(3, heard=2.0, copies=(kept("life-1", range(5), 4),))
    found = next_adoption([keeper_of_giver, giver, of_taker], over, {})
    both = [found]
    assert found is not None
    present = [keeper_of_giver, giver, of_taker]
    present = make(present, giver, found.keeper, tuple(found.kept.buckets.tolist()))
    both.append(next_adoption(present, over, {}))
    assert {
        (one.keeper.address, one.kept.given, *one.kept.buckets.tolist()) for one in both if one
    } == {("host-0:1", True, *range(5, 10)), ("host-3:1", False, *range(5))}


def test_copy_waits_while_somebody_may_take_from_who_is_gone() -> None:
    """Else a bucket had two holders."""
    keeps = server(0, heard=2.0, copies=(kept("life-1", range(BUCKETS)),))
    taker = server(2, heard=2.0, expects_from=frozenset({"life-1"}))
    over = {"life-1": 1.0}
    assert not next_adoption([keeps, taker], over, {}).may_begin  # type: ignore[union-attr]
    unheard = replace(taker, heard=1.0, expects_from=frozenset())
    assert not next_adoption([keeps, unheard], over, {}).may_begin  # type: ignore[union-attr]
    told = replace(taker, expects_from=frozenset())
    assert next_adoption([keeps, told], over, {}).may_begin  # type: ignore[union-attr]


def test_rows_are_kept_until_a_later_holder_has_a_copy_and_they_move_on_only_then() -> None:
    turns = np.full(BUCKETS, 4)
    both = (kept("life-1", range(10), 3, given=True), kept("life-2", range(20), 3))
    giver = server(0, range(10, BUCKETS), copies=both)
    taker = server(1, range(10), turns=turns, uncopied=np.arange(5))
    newcomer = server(5)
    found = outdated([giver, taker], "life-0")
    assert [(one.life, one.given, one.buckets.tolist()) for one in found] == [
        ("life-1", True, list(range(5, 10))),
        ("life-2", False, list(range(5, 10))),
    ]
    assert not outdated([giver, taker], "life-1")
    leaves = replace(taker, leaving=True)
    assert next_move([leaves, newcomer]) is None
    copied = replace(leaves, uncopied=np.arange(0))
    assert next_move([copied, newcomer]) is not None
    left = replace(giver, held=np.zeros(BUCKETS, dtype=np.int8), leaving=True)
    assert not is_released(left) and is_released(replace(left, copies=both[1:]))


def test_server_that_comes_back_with_what_others_held_since_is_outdone() -> None:
    newer = server(0, range(10), turns=np.full(BUCKETS, 5))
    back = server(1, range(20), turns=np.full(BUCKETS, 4))
    assert is_outdone(back, [newer, back]) and not is_outdone(newer, [newer, back])
    assert not is_outdone(replace(back, giving=True), [newer]), "it is told what became of it"
    assert not is_outdone(server(1, range(10, 20)), [newer])


@given(st.integers(1, 6), st.data())
def test_each_server_has_a_keeper_that_stays_and_that_stays_its_keeper(
    count: int, data: st.DataObject
) -> None:
    leaving = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    present = [server(n, leaving=leaves) for n, leaves in enumerate(leaving)]
    for one in present:
        first = keeper(present, one.life, "")
        others = [other for other in present if other is not one and not other.leaving]
        assert (first is None) == (not others)
        if first is None:
            continue
        assert first in others
        newcomer = server(9)
        assert keeper([newcomer, *present], one.life, first.life) == first
        restarted = replace(newcomer, copies=(kept(one.life, range(3)),))
        assert keeper([restarted, *present], one.life, "") == restarted, "it has a copy already"


def test_life_that_another_followed_at_its_address_is_over_though_nobody_saw_it() -> None:
    known = {"host-0:1": "older", "host-1:1": "life-1", "host-2:1": "unheard"}
    assert followed(known.items(), [server(0), server(1)]) == {"older"}
