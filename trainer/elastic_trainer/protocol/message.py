"""Messages of agents and the coordinator, as values; coordinator.proto explains them.

The state machine and its tests see only these; encoding.py is the way to the wire.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

MESSAGE_BYTES = 4 << 20
"""Most bytes of one message either way; a round of 10,000 members has an eighth of it."""
VERSION = 4
"""Version of the protocol; the parts of a job must speak the same. It changes with what would be
done wrongly where one side doesn't know it: a message that isn't known is passed over, and nobody
may rely on its answer without end."""
ABRIDGED_VERSION = 5
"""Version of a Hello that has digests in place of a round or an electorate; see abridgement.py."""


MOST_PLACES = 64
"""Storages of a job whose newest commits are remembered."""

STEPS_PATIENCE = 4.0
"""Long steps, as measured lately, that a worker may take to notice that its round is over:
its agent waits so long before it kills it, and the coordinator before it goes on without it."""


@dataclass(frozen=True)
class Member:
    agent: str = ""
    pod_index: int = 0
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class Group:
    members: tuple[Member, ...] = ()

    @cached_property
    def votes(self) -> int:
        """How many members have a vote."""
        return sum(member.port != 0 for member in self.members)


@dataclass(frozen=True)
class Moment:
    """When something was with an agent, or a coordinator."""

    name: str = ""
    ago: int = 0
    """Milliseconds."""


@dataclass(frozen=True)
class Goodput:
    """A job's GPU time by its uses, for the next coordinator to go on from."""

    id: str = ""
    generation: int = 0
    milliseconds: tuple[int, ...] = ()
    """Times processes, in the order of coordinator/goodput.py's Use."""
    keeper: str = ""
    """The coordinator that tells it."""
    departed: tuple[Moment, ...] = ()
    """The last agents that were lost and have not come back, and when."""
    earlier: tuple[Moment, ...] = ()
    """The newest coordinators before, and until when it has what they counted."""


@dataclass(frozen=True)
class Electorate:
    """The voters on which agent hosts the coordinator; see succession/electorate.py."""

    term: int = 0
    round: int = 0
    groups: tuple[Group, ...] = ()
    contested: bool = False

    @cached_property
    def voters(self) -> Mapping[str, Member]:
        """Return all members that have a vote, by agent."""
        return {m.agent: m for group in self.groups for m in group.members if m.port}


@dataclass(frozen=True)
class NewestCommit:
    """The newest step that was brought to a storage, which `place` tells from others."""

    place: str = ""
    step: int = -1


def newest_commits(told: Iterable[NewestCommit]) -> tuple[NewestCommit, ...]:
    """Return one a place, of the MOST_PLACES that were told of last."""
    newest: dict[str, int] = {}
    for one in told:
        newest[one.place] = max(one.step, newest.pop(one.place, one.step))
    return tuple(NewestCommit(*item) for item in list(newest.items())[-MOST_PLACES:])


COMMITS_VARIABLE = "VOLCANO_ELASTIC_COMMITS"
"""`PLACE=STEP`, several with blanks between: commits of this job's that were heard of before the
pod was made, so that a folder which stands empty is not taken for a new one."""


def commits_before(text: str) -> tuple[NewestCommit, ...]:
    """Return the commits that COMMITS_VARIABLE names; what is no such word is passed over."""
    words = (word.rpartition("=") for word in text.split())
    told = (NewestCommit(place, int(step)) for place, _, step in words if step.isdecimal())
    return newest_commits(one for one in told if one.place)


@dataclass(frozen=True)
class Exclusion:
    """A node that rounds are made without for now, and why."""

    node: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Round:
    """A round's members by rank."""

    round: int = 0
    members: tuple[Member, ...] = ()
    master_address: str = ""
    master_port: int = 0
    reason: str = ""
    commits: tuple[NewestCommit, ...] = ()
    term: int = 0
    groups: tuple[Group, ...] = ()
    contested: bool = False
    last_run: int = 0
    diverged: tuple[int, ...] = ()
    reduced: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    stepless: bool = False

    def rank_of(self, agent: str) -> int | None:
        return self._ranks.get(agent)

    def member_at(self, pod_index: int) -> Member | None:
        return self._by_index.get(pod_index)

    @property
    def names(self) -> Collection[str]:
        """Return the members' agents, by rank."""
        return self._ranks.keys()

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {member.agent: rank for rank, member in enumerate(self.members)}

    @cached_property
    def _by_index(self) -> dict[int, Member]:
        return {member.pod_index: member for member in self.members}


@dataclass(frozen=True)
class Hello:
    agent: str = ""
    pod_index: int = -1
    address: str = ""
    last_round: int = 0
    round: Round | None = None
    step: int = -1
    committed_step: int = -1
    linked: bool = False
    leaving: bool = False
    finished: bool = False
    fence: int = 0
    stop_step: int = -1
    fenced: bool = False
    pids: tuple[int, ...] = ()
    recovers: bool = False
    version: int = 0
    job: str = ""
    processes: int = 0
    succeeded: bool = False
    node: str = ""
    grace_seconds: float = 0.0
    commits: tuple[NewestCommit, ...] = ()
    term: int = 0
    port: int = 0
    electorate: Electorate | None = None
    goodput: Goodput = dataclasses.field(default_factory=Goodput)
    uncounted_milliseconds: int = 0
    last_run: int = 0
    alive_milliseconds: int = 0
    keepers: tuple[Moment, ...] = ()
    """Coordinators that told it of the ledger, the newest first, and since when."""
    round_digest: bytes = b""
    electorate_digest: bytes = b""
    feed_port: int = 0
    stop_commits: bool = False
    holds: bool = False
    sharded: bool = False
    program: str = ""


@dataclass(frozen=True)
class Whole:
    """Value that AskWhole asks for, as the wire has it; empty: Hello told it, or there is none."""

    encoded_round: bytes = b""
    encoded_electorate: bytes = b""


@dataclass(frozen=True, slots=True, order=True)
class StatePart:
    """A part of a sharded state in a node's memory; coordinator.proto has the fields' meaning. Of
    two the one of the newer state is the greater."""

    run: int = 0
    step: int = 0
    state: str = ""
    number: int = 0
    numbers: int = 1


@dataclass(frozen=True)
class Join:
    store_port: int = 0
    live: bool = False
    round: int = 0
    """That its workers were in; 0: none, or not known."""
    parts: tuple[StatePart, ...] = ()


@dataclass(frozen=True)
class Heartbeat:
    term: int = 0
    host: Member | None = None
    min_nodes: int = 0
    max_nodes: int = 0
    goodput: Goodput = dataclasses.field(default_factory=Goodput)
    beat_seconds: float = 0.0


@dataclass(frozen=True)
class Linked:
    round: int = 0
    pids: tuple[int, ...] = ()
    recovers: bool = False
    last_run: int = 0
    feed_port: int = 0
    sharded: bool = False


@dataclass(frozen=True)
class Progress:
    round: int = 0
    step: int = -1
    age_seconds: float = 0.0
    samples: int = 0
    step_seconds: float = 0.0
    stall_milliseconds: int = 0
    input_milliseconds: int = 0
    total_samples: int = 0
    compute: tuple[int, ...] = ()
    waited: tuple[int, ...] = ()
    network: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    batch_samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class FenceReply:
    fence: int = 0
    step: int = -1


@dataclass(frozen=True)
class Stopped:
    fence: int = 0


@dataclass(frozen=True)
class Fenced:
    fence: int = 0
    step: int = -1
    store_port: int = 0
    """Port of a store for the next round, which its workers will wait for in process: with it this
    is their Join, once the round is over. 0: they say so when they wait."""


@dataclass(frozen=True)
class Committed:
    round: int = 0
    step: int = -1
    in_memory: bool = False
    place: str = ""
    size: int = 0


@dataclass(frozen=True)
class Digested:
    round: int = 0
    step: int = -1
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Load:
    """Use of a container; coordinator.proto has units."""

    cpus: float = 0.0
    memory_bytes: int = 0
    gpu_memory_bytes: int = -1
    gpu_percent: int = -1
    gpu_memory_total_bytes: int = -1


@dataclass(frozen=True)
class Reported:
    """Figures of training, by name, that its script reports, as texts of numbers."""

    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tables:
    """Parts of embedding tables that workers hold: a text of metrics.table_load for each."""

    loads: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkersFailed:
    round: int = 0


@dataclass(frozen=True)
class Doubted:
    round: int = 0
    doubt: int = 0


@dataclass(frozen=True)
class Standing:
    round: int = 0
    question: int = 0


@dataclass(frozen=True)
class Transferring:
    round: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Leave:
    grace_seconds: float = 0.0


@dataclass(frozen=True)
class Finished:
    round: int = 0


@dataclass(frozen=True)
class WorkersSucceeded:
    round: int = 0


@dataclass(frozen=True)
class Failed:
    """A worker that failed; coordinator.proto has units."""

    round: int = 0
    pod_index: int = -1
    rank: int = -1
    local_rank: int = 0
    pid: int = 0
    code: int = 0
    message: str = ""
    stack: str = ""
    time: float = 0.0
    log: str = ""
    error: str = ""
    step: int = -1
    node: str = ""
    node_fault: str = ""


@dataclass(frozen=True)
class WorkerReport:
    """Where a worker was when no step came; coordinator.proto has units."""

    rank: int = 0
    pid: int = 0
    step: int = -1
    collectives: int = -1
    answers: bool = False
    committing: bool = False
    cpus: float = 0.0
    stack: str = ""
    flight: str = ""


@dataclass(frozen=True)
class Inspected:
    round: int = 0
    reports: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True)
class Goodbye:
    pass


@dataclass(frozen=True)
class Taken:
    round: int = 0


@dataclass(frozen=True)
class FenceAsk:
    fence: int = 0
    round: int = 0
    at_once: bool = False


@dataclass(frozen=True)
class FenceStop:
    fence: int = 0
    round: int = 0
    step: int = 0
    leaving: bool = False
    commit: bool = False
    memory_stays: bool = False
    displaced: bool = False


@dataclass(frozen=True)
class FenceCancel:
    fence: int = 0


@dataclass(frozen=True)
class RoundOver:
    round: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Dismissed:
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Standby:
    feeders: tuple[Member, ...] = ()
    """Whose port is that of a worker's feed."""


@dataclass(frozen=True)
class CheckNode:
    pass


@dataclass(frozen=True)
class Completed:
    pass


@dataclass(frozen=True)
class AskWhole:
    pass


@dataclass(frozen=True)
class Inspect:
    round: int = 0


@dataclass(frozen=True)
class AskStanding:
    round: int = 0
    question: int = 0


@dataclass(frozen=True)
class RoundStands:
    round: int = 0
    doubt: int = 0


AgentMessage = (
    Hello
    | Join
    | Heartbeat
    | Linked
    | Progress
    | FenceReply
    | Fenced
    | Committed
    | WorkersFailed
    | Leave
    | Finished
    | Goodbye
    | Failed
    | WorkersSucceeded
    | Stopped
    | Transferring
    | Taken
    | Inspected
    | Digested
    | Load
    | Whole
    | Reported
    | Tables
    | Doubted
    | Standing
)
CoordinatorMessage = (
    Heartbeat
    | Round
    | FenceAsk
    | FenceStop
    | FenceCancel
    | RoundOver
    | Dismissed
    | Standby
    | Completed
    | Electorate
    | Inspect
    | AskWhole
    | CheckNode
    | AskStanding
    | RoundStands
)
