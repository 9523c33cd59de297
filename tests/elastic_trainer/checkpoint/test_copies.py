"""Copies of a sharded state's parts before nodes leave: each is on two that stay."""

from __future__ import annotations

from elastic_trainer.checkpoint.copies import Copy, plan_copies
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 3))
def test_each_part_is_on_two_nodes_that_stay_and_no_node_takes_what_it_has(
    nodes: list[bool], local: int
) -> None:
    stays = [one for one in nodes for _ in range(local)]
    copies = plan_copies(stays, local)
    if sum(nodes) < 2:
        assert copies is None
        return
    assert copies is not None
    world = len(stays)
    there = {owner: {owner, (owner + local) % world} for owner in range(world)}
    for copy in copies:
        assert stays[copy.taker] and copy.taker not in there[copy.owner]
        assert copy.giver in there[copy.owner]
        there[copy.owner].add(copy.taker)
    for ranks in there.values():
        assert len({rank // local for rank in ranks if stays[rank]}) >= 2
    leaving = sum(not one for one in stays)
    assert len(copies) <= 2 * leaving


def test_one_leaver_of_three_costs_two_copies() -> None:
    # Its own part, of which one copy is left, and the one that it was the mirror of.
    assert plan_copies([True, False, True], 1) == [Copy(0, 0, 2), Copy(1, 1, 0)]
