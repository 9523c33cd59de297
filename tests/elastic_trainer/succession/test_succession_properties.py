"""Never two sides: whatever is lost, late, cut off or dead, in any order."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.succession.calm import TICK, Calm, may_decide
from tests.elastic_trainer.succession.world import World
from tests.examples import examples

SOON = int(30.0 / TICK)
"""Ticks in which those who may decide are to have elected a host, and to train."""


def disturb(world: World, random: Random, *, deaths: bool) -> None:
    """Let one random thing happen."""
    agents = [agent for agent in world.agents.values() if agent.alive]
    running = [one for one in world.coordinators if one.alive]
    streams = world.streams()
    what = random.random()
    if what < 0.6 and streams:
        stream = random.choice(streams)
        for _ in range(random.choice((1, 1, 10))):
            world.deliver_up(stream)
            world.deliver_down(stream)
    elif what < 0.68 and running:
        random.choice(running).pass_time()
    elif what < 0.78 and running and agents:
        agent = random.choice(agents)
        if agent.stream is None or random.random() < 0.02:
            newest = max(running, key=lambda one: one.term)
            world.dial(agent, random.choice((newest, newest, random.choice(running))))
    elif what < 0.79 and agents:
        world.give_up(random.choice(agents))
    elif what < 0.81 and running:
        coordinator = random.choice(running)
        if coordinator.streams:
            world.lose(coordinator, random.choice(sorted(coordinator.streams)))
    elif what < 0.815 and agents:
        world.stand(random.choice(agents))
    elif what < 0.89 and world.ballots:
        world.answer_ballot(random.randrange(len(world.ballots)), random.random() < 0.8)
    elif what < 0.97 and world.votes:
        world.count_vote(random.randrange(len(world.votes)))
    elif what < 0.98:
        pair = frozenset(random.sample(sorted(world.agents), 2))
        world.cut ^= {pair}
    elif what < 0.985 and running:
        world.restart(random.choice(running))
    elif deaths:
        disturb_by_death(world, random)


def disturb_by_death(world: World, random: Random) -> None:
    agents = [agent for agent in world.agents.values() if agent.alive]
    dead = [agent for agent in world.agents.values() if not agent.alive]
    running = [one for one in world.coordinators if one.alive]
    what = random.random()
    if agents and what < 0.15:
        world.kill(random.choice(agents))
    elif agents and what < 0.2:
        world.leave(random.choice(agents))
    elif dead and what < 0.35:
        world.make_anew_and_ask(random.choice(dead))
    elif what < 0.6 and any(agent.hesitates for agent in agents):
        for agent in agents:
            world.ask_others(agent)
    elif dead and agents:
        world.prove(random.choice(agents), random.choice(dead))
        if running:
            world.prove_to_coordinator(random.choice(running), random.choice(dead))


def see_leavers_out(world: World) -> None:
    """Nobody waits for ever to be heard."""
    for agent in world.agents.values():
        if agent.alive and agent.leaves:
            world.kill(agent)


def gather(world: World) -> None:
    """Bring all agents into a first round."""
    for agent in world.agents.values():
        world.dial(agent, world.coordinators[0])
    for _ in range(10):
        deliver_all(world)
        world.coordinators[0].pass_time()
    assert [len(made.members) for made in world.sides()] == [len(world.agents)]


def deliver_all(world: World) -> None:
    for stream in world.streams():
        for _ in range(20):
            world.deliver_up(stream)
            world.deliver_down(stream)


@settings(max_examples=examples(200), deadline=None)
@given(agents=st.integers(2, 5), seed=st.integers(0, 2**32), deaths=st.booleans())
def test_no_two_sides_make_steps_at_once(agents: int, seed: int, deaths: bool) -> None:
    """And each goes on from the newest step that was committed (`World.train`)."""
    random = Random(seed)
    world = World(agents, random)
    gather(world)
    for _ in range(400):
        disturb(world, random, deaths=deaths)
        assert len(world.sides()) <= 1, world.sides()
        world.train()


@settings(max_examples=examples(60), deadline=None)
@given(agents=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_a_new_worker_0_begins_no_side_beside_those_who_train(agents: int, seed: int) -> None:
    """Whenever the first one dies, and however often its pod is made anew."""
    random = Random(seed)
    world = World(agents, random)
    gather(world)
    for number in range(400):
        if number == 50:
            world.kill(world.agents["a0"])
        if random.random() < 0.05:
            world.make_anew_and_ask(random.choice(list(world.agents.values())))
        if random.random() < 0.1:
            for agent in list(world.agents.values()):
                world.ask_others(agent)
        disturb(world, random, deaths=True)
        assert len(world.sides()) <= 1, world.sides()
        world.train()


@settings(max_examples=examples(100), deadline=None)
@given(agents=st.integers(2, 5), seed=st.integers(0, 2**32), deaths=st.booleans())
def test_whoever_can_decide_trains_on_soon(agents: int, seed: int, deaths: bool) -> None:
    """Whatever happened: once more than half of those who elect reach one another."""
    random = Random(seed)
    world = World(agents, random)
    gather(world)
    for _ in range(400):
        disturb(world, random, deaths=deaths)
        world.train()
    see_leavers_out(world)
    assume(may_decide(world))
    calm = Calm(world, random)
    living = {agent.name for agent in world.agents.values() if agent.alive}
    for _ in range(SOON):
        calm.tick()
        world.train()
        assert len(world.sides()) <= 1, world.sides()
        if any({m.agent for m in made.members} == living for made in world.sides()):
            return
    raise AssertionError(f"{living} don't train together: {world.sides()}")


@settings(max_examples=examples(100), deadline=None)
@given(agents=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_newcomers_train_soon_though_all_who_have_been_in_a_round_are_gone(
    agents: int, seed: int
) -> None:
    """Whoever they followed, elected or deposed before."""
    random = Random(seed)
    world = World(agents, random)
    gather(world)
    for _ in range(400):
        disturb(world, random, deaths=True)
        if random.random() < 0.02:
            world.make_anew(random.choice(list(world.agents.values())))
    see_leavers_out(world)
    for agent in list(world.agents.values()):
        if agent.alive and agent.voter.electorate is not None and random.random() < 0.9:
            world.kill(agent)
        world.make_anew(agent)
    assume(may_decide(world))
    calm = Calm(world, random)
    living = {agent.name for agent in world.agents.values() if agent.alive}
    for _ in range(SOON):
        calm.tick()
        if any({m.agent for m in made.members} == living for made in world.sides()):
            return
    raise AssertionError(f"{living} don't train together: {world.sides()}")


def test_a_new_worker_0_joins_those_who_train_under_its_own_coordinator() -> None:
    """They know of a round that it doesn't know, and hear its coordinator."""
    world = World(2, random := Random(0))
    gather(world)
    first, other = world.agents["a0"], world.agents["a1"]
    world.kill(first)
    world.make_anew(first)
    own = world.coordinators[-1]
    world.dial(other, own)
    deliver_all(world)
    world.prove_to_coordinator(own, first)
    for _ in range(10):
        deliver_all(world)
        own.pass_time()
    assert [[m.agent for m in made.members] for made in world.sides()] == [["a1"]]
    calm = Calm(world, random)
    for _ in range(SOON):
        calm.tick()
    assert [len(made.members) for made in world.sides()] == [2]
