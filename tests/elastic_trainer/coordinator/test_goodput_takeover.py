"""Each second of an agent is counted once, whichever coordinators it had and how they ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from elastic_trainer.coordinator.bookkeeping import ledger_as_of
from elastic_trainer.coordinator.goodput import Ledger
from elastic_trainer.coordinator.model import Phase, Tick
from elastic_trainer.protocol.message import Goodput, Heartbeat, Hello, Join, Moment
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import Job
from tests.examples import examples

PROCESSES = 4
LOST_AFTER = 4.0
MOMENT = 0.125


@dataclass
class Node:
    name: str
    index: int
    born: float
    coordinator: Job | None = None
    reached: bool = True
    """By its coordinator."""
    told: Goodput = field(default_factory=Goodput)
    heard: float = 0.0
    keepers: list[tuple[str, float]] = field(default_factory=list)

    def hear(self, told: Goodput, now: float) -> None:
        self.told, self.heard = told, now
        if not self.keepers or self.keepers[0][0] != told.keeper:
            self.keepers.insert(0, (told.keeper, now))


class World:
    """Nodes and the coordinators that they followed, on one clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.nodes: list[Node] = []
        self.coordinators: list[Job] = []

    def start(self, *, seconds_ago: float = 0.0) -> Node:
        index = len(self.nodes)
        born = self.now - seconds_ago
        node = Node(f"a{index}", index, born, heard=born)
        self.nodes.append(node)
        return node

    def open(self) -> Job:
        job = Job(min_nodes=1, max_nodes=16, lost_after=LOST_AFTER)
        name = f"c{len(self.coordinators)}"
        job.now = self.now
        job.state = replace(job.state, started=self.now, ledger=Ledger(name, name))
        self.coordinators.append(job)
        return job

    def attend(self, node: Node, job: Job) -> None:
        """It leaves its coordinator, which sees that in its own time, for another."""
        self.pass_time(MOMENT)  # no two things at once
        node.coordinator, node.reached = job, True
        hello = Hello(
            node.name,
            node.index,
            "h",
            processes=PROCESSES,
            goodput=node.told,
            uncounted_milliseconds=round((self.now - node.heard) * 1000),
            alive_milliseconds=round((self.now - node.born) * 1000),
            keepers=tuple(Moment(k, round((self.now - since) * 1000)) for k, since in node.keepers),
        )
        job.say(node.name, hello, Join(5000 + node.index))
        node.hear(job.state.ledger.tell(round(self.now * 1000)), self.now)
        self.pass_time(MOMENT)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / MOMENT)):
            self.now += MOMENT
            for job in self.coordinators:
                job.now = self.now
                for node in self._of(job):
                    job.say(node.name, Heartbeat())
                job.feed(Tick())

    def tell(self, job: Job) -> None:
        """Its heartbeat comes to all whom it reaches."""
        told = job.state.ledger.tell(round(self.now * 1000))
        for node in self._of(job):
            node.hear(told, self.now)

    def _of(self, job: Job) -> list[Node]:
        return [node for node in self.nodes if node.coordinator is job and node.reached]

    def counted(self, job: Job) -> int:
        return sum(ledger_as_of(job.state, self.now).uses().values())

    @property
    def lived(self) -> int:
        """All milliseconds of all processes."""
        return sum(round((self.now - node.born) * 1000) * PROCESSES for node in self.nodes)


def test_an_old_coordinator_that_goes_on_alone_and_a_new_one_count_each_second_once() -> None:
    world = World()
    first = world.open()
    for _ in range(3):
        world.attend(world.start(seconds_ago=20.0), first)
    world.pass_time(10.0)
    world.tell(first)
    alone, *others = world.nodes
    for node in others:  # the first goes on counting them until it knows
        node.reached = False
    second = world.open()
    for number in range(40):
        world.pass_time(0.25)
        world.tell(first)
        if number == 20:
            for node in others:
                world.attend(node, second)
    assert second.state.phase is not Phase.FORMING
    world.attend(alone, second)
    world.pass_time(2.0)
    assert world.counted(second) == world.lived


def test_one_that_was_not_there_for_two_coordinators_is_counted_on_from_the_first() -> None:
    world = World()
    first = world.open()
    for _ in range(3):
        world.attend(world.start(), first)
    world.pass_time(10.0)
    world.tell(first)
    alone, *others = world.nodes
    for _ in range(2):
        following = world.open()
        for node in others:
            world.attend(node, following)
        world.pass_time(5.0)
        world.tell(following)
        world.tell(first)
    world.attend(alone, following)
    assert world.counted(following) == world.lived


@settings(max_examples=examples(40), deadline=None)
@given(agents=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_whoever_follows_whom_each_second_is_counted_once(agents: int, seed: int) -> None:
    random = Random(seed)
    world = World()
    newest = world.open()
    for _ in range(agents):
        world.attend(world.start(seconds_ago=random.choice((0.0, 7.0))), newest)
    world.pass_time(1.0)
    world.tell(newest)
    for _ in range(30):
        what = random.random()
        node = random.choice(world.nodes)
        if what < 0.4:
            world.pass_time(random.choice((0.125, 0.25, 1.0, 6.0)))
        elif what < 0.6:
            for job in world.coordinators:
                if random.random() < 0.7:
                    world.tell(job)
        elif what < 0.75:
            node.reached = False
        elif what < 0.85 and not (node.reached and node.coordinator is newest):
            world.attend(node, newest)
        elif what < 0.9 and len(world.nodes) < 6:
            started = world.start(seconds_ago=random.choice((0.0, 3.0)))
            world.attend(started, random.choice(world.coordinators))
        elif newest.state.phase is not Phase.FORMING and node.coordinator is newest:
            world.attend(node, following := world.open())
            newest = following
    for node in world.nodes:
        if not (node.reached and node.coordinator is newest):
            world.attend(node, newest)
    assert world.counted(newest) == world.lived
