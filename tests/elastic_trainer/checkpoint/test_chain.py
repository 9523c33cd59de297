"""A state crosses the network once to each node that lacks it."""

from __future__ import annotations

from elastic_trainer.checkpoint.chain import Relay, arrange_chain
from hypothesis import given
from hypothesis import strategies as st


def test_the_givers_node_comes_first_then_one_rank_of_each_other_which_shares_its_memory() -> None:
    nodes = ["a", "a", "b", "b", "c", "c"]
    assert arrange_chain(2, [0, 1, 3, 4, 5], nodes) == {
        2: Relay(None, next=3),
        3: Relay(2, next=0),
        0: Relay(3, next=4, mates=(1,)),
        1: Relay(0, shares=True),
        4: Relay(0, mates=(5,)),
        5: Relay(4, shares=True),
    }


def test_nobody_takes_part_where_nobody_lacks_it() -> None:
    assert arrange_chain(0, [], ["a", "b"]) == {0: Relay(None)}


@given(st.data())
def test_every_taker_gets_it_once_and_each_node_sends_it_to_one_other_at_most(
    data: st.DataObject,
) -> None:
    nodes = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12))
    giver = data.draw(st.integers(0, len(nodes) - 1))
    takers = [rank for rank in range(len(nodes)) if rank != giver and data.draw(st.booleans())]
    relays = arrange_chain(giver, takers, nodes)
    assert relays.keys() == {giver, *takers}
    given_by = {rank: relay.source for rank, relay in relays.items()}
    for rank, relay in relays.items():
        sent_to = [*relay.mates, *([] if relay.next is None else [relay.next])]
        assert all(given_by[other] == rank for other in sent_to)
        assert all(nodes[other] == nodes[rank] and relays[other].shares for other in relay.mates)
    for rank in takers:  # nobody waits for whoever waits for it
        walked = [rank]
        while (source := given_by[walked[-1]]) is not None:
            walked.append(source)
            assert len(walked) <= len(relays)
        assert walked[-1] == giver
    crossing = [
        (nodes[source], nodes[rank])
        for rank, source in given_by.items()
        if source is not None and nodes[source] != nodes[rank]
    ]
    for node in set(nodes):
        assert sum(1 for _, taker in crossing if taker == node) <= (node != nodes[giver])
        assert sum(1 for source, _ in crossing if source == node) <= 1
