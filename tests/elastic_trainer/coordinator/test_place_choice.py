"""A sharded state's parts decide who has a place in a round for which too many wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from elastic_trainer.agent.held_parts import held_parts
from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.places import choose_places
from elastic_trainer.protocol.message import (
    FenceAsk,
    Fenced,
    FenceReply,
    FenceStop,
    Hello,
    Join,
    Leave,
    StatePart,
    WorkersFailed,
)
from elastic_trainer.store.slot import Label
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.test_leavers import ShardedJob
from tests.examples import examples


def waiting(index: int, *parts: StatePart, holds: int = 1) -> Agent:
    return Agent(f"a{index}", index, "", 0.0, joined_at=0.0, live=True, holds=holds, parts=parts)


def mirrored(nodes: int, local: int, shards: int, step: int = 4) -> list[tuple[StatePart, ...]]:
    """Return by node what is in its memory: its ranks' parts, and those of the node before it.

    Args:
        shards: ranks that each replica is divided among.
    """
    world = nodes * local

    def parts(node: int) -> list[StatePart]:
        ranks = range(node * local, (node + 1) * local)
        return [StatePart(1, step, "spread", rank % shards, shards) for rank in ranks]

    assert world % shards == 0
    return [tuple({*parts(node), *parts((node - 1) % nodes)}) for node in range(nodes)]


def is_whole(agents: tuple[Agent, ...] | list[Agent], step: int = 4) -> bool:
    held = {part for agent in agents for part in agent.parts if part.step == step}
    return len({part.number for part in held}) == next(iter(held)).numbers if held else False


@settings(max_examples=examples(200), deadline=None)
@given(
    unit=st.integers(1, 5),
    units=st.integers(2, 4),
    local=st.integers(1, 3),
    hybrid=st.booleans(),
    lost=st.integers(0, 19),
)
def test_after_any_one_node_is_lost_those_with_a_place_have_all_of_the_state(
    unit: int, units: int, local: int, hybrid: bool, lost: int
) -> None:
    nodes = unit * units
    held = mirrored(nodes, local, (unit if hybrid else nodes) * local)
    agents = [waiting(node, *held[node]) for node in range(nodes) if node != lost % nodes]
    chosen = choose_places(agents, len(agents) // unit * unit)
    assert len(chosen) == len(agents) // unit * unit
    assert is_whole(chosen)


PARTS = st.frozensets(
    st.builds(
        StatePart, st.just(1), st.sampled_from([3, 4]), st.just("s"), st.integers(0, 4), st.just(5)
    ),
    max_size=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(held=st.lists(PARTS, min_size=1, max_size=6), size=st.integers(1, 6))
def test_nobody_is_chosen_who_has_less_than_another_choice_by_the_same_rule(
    held: list[frozenset[StatePart]], size: int
) -> None:
    agents = [waiting(index, *sorted(parts, key=repr)) for index, parts in enumerate(held)]
    size = min(size, len(agents))
    chosen = choose_places(agents, size)
    assert len(chosen) == size
    assert chosen == sorted(chosen, key=lambda agent: agent.order)
    if is_whole(agents[:size]):
        assert is_whole(chosen), "the first ones would have done"
    possible = [one for one in combinations(agents, size) if is_whole(one)]
    if not possible and not any(is_whole(one, 3) for one in combinations(agents, size)):
        assert chosen == agents[:size]


def test_the_newest_state_that_is_whole_counts() -> None:
    old, new = (tuple(StatePart(1, step, "s", n, 2) for n in (0, 1)) for step in (3, 4))
    agents = [waiting(0, *old), waiting(1, new[0]), waiting(2, new[1])]
    assert choose_places(agents, 2) == agents[1:]
    assert choose_places(agents, 1) == agents[:1]


def test_newcomers_come_after_those_with_the_state() -> None:
    part = StatePart(1, 4, "s", 0, 1)
    agents = [waiting(0, holds=0), waiting(1, part), waiting(2, part)]
    assert choose_places(agents, 2) == agents[1:]
    assert choose_places(agents, 2, {"a0"}) == agents[:2]


def test_the_first_ones_have_a_place_where_they_hold_all() -> None:
    held = [(0, 1), (2, 3), (0,), (1,), (2,)]
    agents = [waiting(n, *(StatePart(1, 4, "s", i, 4) for i in one)) for n, one in enumerate(held)]
    old = tuple(StatePart(1, 3, "s", number, 2) for number in (0, 1))
    agents[2:4] = [replace(agents[2], parts=(*agents[2].parts, old[0])), waiting(3, *old)]
    assert choose_places(agents, 2) == agents[:2]


def test_what_was_told_before_a_round_counts_no_more_after_its_fence() -> None:
    """Those who were promised a place have it, with all that was given to them at the fence."""
    job = ShardedJob(min_nodes=2, max_nodes=4, node_unit=2)
    held = mirrored(4, 1, 4)
    for index in range(4):
        hello = Hello(f"a{index}", index, f"10.0.0.{index}")
        job.say(f"a{index}", hello, Join(5000 + index, parts=held[index]))
    job.pass_time(5.0)
    assert job.members() == ["a0", "a1", "a2", "a3"]
    job.linking(0, 1, 2, 3)
    job.say("a3", Leave())
    fence = job.last("a0", FenceAsk).fence
    for index in range(4):
        job.say(f"a{index}", FenceReply(fence, 3))
    for index in range(4):
        stop = job.last(f"a{index}", FenceStop)
        job.say(f"a{index}", Fenced(stop.fence, 4, store_port=6000 + index))
    assert job.members() == ["a0", "a1"] and not job.stepless


def test_places_go_to_those_with_the_only_whole_state_however_many_newer_ones_there_are() -> None:
    # Step 2 was mirrored; a node has joined, and one was lost, before anything newer was. The steps
    # are those that nodes' memory held after such rounds of the sharded harness.
    def labels(node: int) -> list[Label]:
        mirrored = [_label(2, owner, 4) for owner in (node, (node - 1) % 4)]
        return mirrored + [_label(step, node, 5) for step in (4, 7, 9, 10)]

    agents = [
        Agent(f"a{node}", node, "", 0.0, parts=held_parts(labels(node))) for node in (0, 1, 2)
    ]
    assert [agent.agent for agent in choose_places(agents, 2)] == ["a0", "a2"]


def test_a_part_that_is_in_two_slots_is_told_once_and_a_replicated_state_not_at_all() -> None:
    told = held_parts([_label(3, 0, 2), _label(3, 0, 2), _label(3, 1, 2), _label(3, 0, 2, False)])
    assert [(part.step, part.number) for part in told] == [(3, 0), (3, 1)]


def _label(step: int, owner: int, world: int, sharded: bool = True) -> Label:
    return Label("t", 1, step, owner, world, sharded, 0, 0, part=owner, parts=world)


@pytest.mark.parametrize(("lost", "placed"), [(0, [1, 3]), (1, [0, 2]), (2, [1, 3]), (3, [0, 2])])
def test_the_round_after_a_loss_is_made_of_those_with_the_parts(
    lost: int, placed: list[int]
) -> None:
    job = ShardedJob(min_nodes=2, max_nodes=4, node_unit=2).training(0, 1, 2, 3)
    job.say(f"a{lost}", WorkersFailed(1))
    held = mirrored(4, 1, 4)
    for index in {0, 1, 2, 3} - {lost}:
        job.say(f"a{index}", Join(5000 + index, live=True, parts=held[index]))
    assert job.members() == [f"a{index}" for index in placed]
