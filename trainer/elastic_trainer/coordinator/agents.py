"""The agents that are connected, and counts of them that cost nothing to ask for; pure.

Nearly each message changes one agent of thousands. So the agents are a persistent map, and what
decisions ask of all of them (are all linked? how many wait?) is counted as they change.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from enum import Enum

from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.straggler import Worked
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.protocol.message import Load, StatePart


@dataclass(frozen=True)
class Reached:
    """A step that an agent's workers have applied."""

    round: int
    step: int
    time: float
    stall: int
    """Milliseconds that commits kept its workers from training, since their start."""
    waited: int
    """Likewise, for data."""


@dataclass(frozen=True)
class Agent:
    """A connected agent."""

    agent: str
    pod_index: int
    address: str
    last_seen: float
    node: str = ""
    """The machine it runs on; of an agent that names none, one of its own."""
    joined_at: float | None = None
    """Since when it waits for a round; None: it doesn't."""
    store_port: int = 0
    live: bool = False
    """It waits with workers that run."""
    standby: bool = False
    """It was told to start its workers outside any round."""
    expected: bool = False
    """The next round waits for it."""
    attached: bool = False
    """Its workers are in the current round."""
    linked: bool = False
    finished: bool = False
    """Its workers have left the training loop."""
    processes: int = 0
    """Workers of its node; 0: not known."""
    recovers: bool = False
    """Its workers go from round to round without a restart."""
    pids: tuple[int, ...] = ()
    feed_port: int = 0
    """Where newcomers may follow the state of one of its workers; 0: nowhere."""
    leaving_since: float | None = None
    leave_by: float = 0.0
    """If leaving: when it has to be gone."""
    gives_state: bool = False
    """Leaving, and in no round, it waits for one, to give away there what it alone has."""
    holds: int = 0
    """The newest round that its workers had a place in, whose state, or their part of it, is in
    their processes; 0: they have none."""
    sharded: bool = False
    """Each of them has a part of it that others may not have."""
    parts: tuple[StatePart, ...] = ()
    """Parts of sharded states in its node's memory, told as it asked for a round since its last
    one; none after a fence, at which those with a place in the next round got all."""
    step_seconds: float = 0.0
    """A long one of its workers' recent steps, see agent/step_times.py; 0: not known."""
    reached: Reached | None = None
    """The progress that its workers have told last."""
    worked: tuple[Worked, ...] = ()
    """Likewise, of each by its local rank; empty: not measured."""
    moved_at: float = 0.0
    """When bytes of state were last said to move to or from its workers."""
    late: int = 0
    """How often, in a row, its workers did not take their places in time as newcomers."""
    retry_at: float = 0.0
    """Not before is it let in again, where others are enough."""
    load: Load | None = None
    """The use of its container, as it was told last."""
    tables: tuple[Mapping[str, TableLoad], ...] = ()
    """Embedding tables, as far as its workers hold them; by worker, as they told it last."""
    held_step: int = -1
    """The newest that is in its workers' memory, verified."""
    told_fence: int = 0
    told_stop: int = -1
    told_commit: bool = False
    fenced: bool = False
    port: int = 0
    """Port of its succession service; 0: it serves none."""
    taken: int = 0
    """The newest round of this term that it knows of."""

    @property
    def leaving(self) -> bool:
        return self.leaving_since is not None

    @property
    def leaves_now(self) -> bool:
        """It takes part in no further round."""
        return self.leaving_since is not None and not self.gives_state

    @property
    def stays(self) -> bool:
        """It goes on with the state."""
        return self.holds > 0 and self.leaving_since is None

    @property
    def waiting(self) -> bool:
        """It may take part in the next round."""
        return self.joined_at is not None and not self.standby and not self.leaves_now

    @property
    def order(self) -> tuple[int, str]:
        return (self.pod_index, self.agent)


class Trait(Enum):
    """The facts by which agents are counted."""

    ATTACHED = "attached"
    LINKED = "attached and linked"
    RECOVERS = "attached and recovers"
    FINISHED = "attached and finished"
    LEAVING = "attached and leaving"
    WAITING = "waiting"
    COLD = "waiting without workers"
    LIVE = "asks for a round with workers that run"
    STANDBY = "told to start its workers outside any round"
    AWAITED = "expected, and does not wait yet"
    GIVES_STATE = "leaving, and waits for a round to give away what it alone has"
    STAYS = "goes on with the state in its workers' processes"
    TABLES = "its workers have told of tables"
    HELD = "attached, with this newest step in its workers' memory"
    TAKEN = "has taken this round"
    WORKERS = "with so many workers"

    __hash__ = object.__hash__  # Enum's own, in Python, is asked a dozen times at each message


_Counted = Trait | tuple[Trait, int]


def _traits(agent: Agent) -> tuple[_Counted, ...]:
    found: list[_Counted] = [(Trait.WORKERS, agent.processes), (Trait.TAKEN, agent.taken)]
    if agent.attached:
        found += Trait.ATTACHED, (Trait.HELD, agent.held_step)
        if agent.linked:
            found.append(Trait.LINKED)
        if agent.recovers:
            found.append(Trait.RECOVERS)
        if agent.finished:
            found.append(Trait.FINISHED)
        if agent.leaving:
            found.append(Trait.LEAVING)
    if agent.waiting:
        found.append(Trait.WAITING)
        if not agent.live:
            found.append(Trait.COLD)
    if agent.live and agent.joined_at is not None:
        found.append(Trait.LIVE)
    if agent.standby:
        found.append(Trait.STANDBY)
    if agent.expected and not agent.leaves_now and (agent.joined_at is None or agent.standby):
        found.append(Trait.AWAITED)
    if agent.gives_state:
        found.append(Trait.GIVES_STATE)
    if agent.stays:
        found.append(Trait.STAYS)
    if agent.tables:
        found.append(Trait.TABLES)
    return tuple(found)


class Agents(Mapping[str, Agent]):
    """All that are connected, by name."""

    __slots__ = ("_agents", "_counts", "_nodes", "_retrying")

    def __init__(self) -> None:
        self._agents: PersistentMap[str, Agent] = PersistentMap()
        self._counts: Mapping[_Counted, int] = {}
        self._nodes: PersistentMap[str, frozenset[str]] = PersistentMap()
        self._retrying: frozenset[str] = frozenset()
        """Those with a time before which they are not let in again."""

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __len__(self) -> int:
        return len(self._agents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    # As fast as a dict's.

    def keys(self) -> KeysView[str]:
        return self._agents.as_dict().keys()

    def values(self) -> ValuesView[Agent]:
        return self._agents.as_dict().values()

    def items(self) -> ItemsView[str, Agent]:
        return self._agents.as_dict().items()

    def with_agent(self, agent: Agent) -> Agents:
        """Return them with one added, or another one of its name."""
        before = self._agents.get(agent.agent)
        return self._changed(before, agent, self._agents.with_entry(agent.agent, agent))

    def without(self, name: str) -> Agents:
        return self._changed(self._agents[name], None, self._agents.without(name))

    def _changed(
        self, before: Agent | None, after: Agent | None, agents: PersistentMap[str, Agent]
    ) -> Agents:
        made = Agents.__new__(Agents)
        made._agents, made._counts = agents, self._counts
        made._nodes, made._retrying = self._nodes, self._retrying
        old = _traits(before) if before is not None else ()
        new = _traits(after) if after is not None else ()
        if old != new:
            counts = dict(self._counts)
            for trait in new:
                counts[trait] = counts.get(trait, 0) + 1
            for trait in old:
                counts[trait] -= 1
                if not counts[trait]:
                    del counts[trait]
            made._counts = counts
        if before is None or after is None or before.node != after.node:
            made._nodes = self._nodes_with(before, after)
        for agent, is_new in ((before, False), (after, True)):
            if agent is not None and agent.retry_at > 0:
                name = frozenset({agent.agent})
                made._retrying = made._retrying | name if is_new else made._retrying - name
        return made

    def _nodes_with(
        self, before: Agent | None, after: Agent | None
    ) -> PersistentMap[str, frozenset[str]]:
        nodes = self._nodes
        if before is not None:
            left = nodes[before.node] - {before.agent}
            nodes = nodes.with_entry(before.node, left) if left else nodes.without(before.node)
        if after is not None:
            here = nodes.get(after.node, frozenset())
            nodes = nodes.with_entry(after.node, here | {after.agent})
        return nodes

    @property
    def counts(self) -> Mapping[_Counted, int]:
        """Return how many have each trait that any has."""
        return self._counts

    def count(self, trait: Trait) -> int:
        """Return how many have a trait."""
        return self._counts.get(trait, 0)

    def count_taken(self, number: int) -> int:
        """Return how many have taken a round."""
        return self._counts.get((Trait.TAKEN, number), 0)

    def all_attached(self, trait: Trait) -> bool:
        """Tell whether all that are attached have a trait, of which there is at least one."""
        attached = self.count(Trait.ATTACHED)
        return 0 < attached == self.count(trait)

    def count_on(self, nodes: Iterable[str], trait: Trait) -> int:
        """Return how many have a trait on some nodes."""
        return sum(trait in _traits(agent) for node in nodes for agent in self.on(node))

    def on(self, node: str) -> list[Agent]:
        """Return those of a node, in order."""
        found = [self._agents[name] for name in self._nodes.get(node, ())]
        return sorted(found, key=lambda agent: agent.order)

    def retrying(self) -> list[Agent]:
        """Return those with a time before which they are not let in again."""
        return [self._agents[name] for name in sorted(self._retrying)]

    def least_held_step(self) -> int:
        """Return the newest step that the workers of all attached agents have in memory."""
        return min(self._numbers(Trait.HELD), default=-1)

    def numbers_of_workers(self) -> list[int]:
        """Return how many workers nodes have, each number once; 0: not known."""
        return self._numbers(Trait.WORKERS)

    def _numbers(self, trait: Trait) -> list[int]:
        return [one[1] for one in self._counts if isinstance(one, tuple) and one[0] is trait]
