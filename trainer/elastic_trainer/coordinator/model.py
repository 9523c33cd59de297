"""The coordinator's state: data only. Times are seconds of one monotonic clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic_trainer.coordinator.agents import Agents
from elastic_trainer.coordinator.divergence import Diverged, ReplicaWatch
from elastic_trainer.coordinator.doubts import Doubts
from elastic_trainer.coordinator.goodput import Ledger
from elastic_trainer.coordinator.hang import Hang, StepWatch
from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.rebalance import Shares
from elastic_trainer.coordinator.straggler import StragglerWatch
from elastic_trainer.protocol.message import (
    AgentMessage,
    CoordinatorMessage,
    Electorate,
    Failed,
    Member,
    NewestCommit,
    Round,
)
from elastic_trainer.protocol.pace import Pace


class Phase(Enum):
    """A phase of the job; transitions.py lists the ways between them."""

    FORMING = "forming"
    ADOPTING = "adopting"
    RUNNING = "running"
    FENCING = "fencing"
    RESTARTING = "restarting"
    COMPLETING = "completing"
    """Some workers have left the training loop; what their scripts do then may still fail."""
    FINISHED = "finished"
    FAILED = "failed"


LONG_STEP = 1.0
"""Seconds. Where steps are longer, leavers stop at the end of the one in progress."""


@dataclass(frozen=True)
class Settings:
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    grace: float = 0.3
    """Seconds to wait for further agents once the first round could start."""
    batching: float = 0.3
    """Seconds without a further joiner before the running round is fenced for the ones there."""
    batching_limit: float = 1.0
    """The longest a joiner waits for others."""
    lost_after: float = 1.0
    """Seconds of silence after which an agent is lost."""
    adopt_grace: float = 3.0
    """Seconds without a further member in which those of a running round must find a restarted
    coordinator: thousands come one after another."""
    leave_grace: float = 30.0
    """Seconds from a leave to the kill, where the leaver doesn't say. Until `leave_margin` before
    the kill its fence may be reached, and committed; then the round is broken instead."""
    leave_margin: float = 5.0
    """Seconds, at most a quarter of the grace, that a leaver keeps to end its processes."""
    join_deadline: float = 600.0
    """Seconds for a fence of joiners to be reached, and once more for its commit."""
    unlinked_leave: float = 2.0
    """Seconds a leaver waits for the workers to link before it goes without a fence."""
    unlinked_join: float = 10.0
    """Age (seconds) below which no round whose workers have not linked is restarted for joiners."""
    unlinked_quiet: float = 60.0
    """Seconds without a further joiner after which such a round is restarted for those there,
    unless they are as many as the round's members, for whom it is restarted at once."""
    unlinked_limit: float = 300.0
    """The longest (seconds) that a joiner waits for such a round."""
    place_deadline: float = 60.0
    """Seconds without a sign of progress in which waiting workers must take their places in a
    round; bytes of state that move are such a sign."""
    retry_late: float = 10.0
    """Seconds that a newcomer which did not take its place in time waits for the next try; twice
    as long each time, up to `retry_late_limit`."""
    retry_late_limit: float = 600.0
    restart_deadline: float = 45.0
    """Seconds that members have to come back after a round, torchrun's 30 s of SIGTERM included,
    or STEPS_PATIENCE steps (message.py) where that is longer."""
    hang_seconds: float = 60.0
    """The least without a step after which training may hang; infinite: it never does."""
    straggler_seconds: float = 5.0
    """The shortest time over which ranks are compared; infinite: they never are."""
    rebalance: bool = False
    """Slow ranks take fewer samples."""
    exclude_seconds: float = math.inf
    """How long a node is left out of rounds."""
    join_wait: float = 0.0
    """The longest that newcomers wait where a change of the round is dear, see joining.py."""
    recheck_seconds: float = 0.0
    """The longest that a check of the nodes holds up the round after a failure of devices; 0: there
    is none."""
    term: int = 0
    """That this coordinator acts in; see succession/electorate.py."""
    host: str = ""
    """The agent that runs this coordinator; empty: none does."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"expected 1 <= min <= max, found min {self.min_nodes}, max {self.max_nodes}"
            )
        if self.node_unit < 1 or self.size(self.max_nodes) == 0:
            raise ValueError(
                f"no multiple of node unit {self.node_unit} lies in "
                f"{self.min_nodes}..{self.max_nodes}; set min and max to multiples of it"
            )

    def size(self, available: int) -> int:
        """The world to form of so many agents; 0 if too few."""
        size = min(available, self.max_nodes) // self.node_unit * self.node_unit
        return size if size >= self.min_nodes else 0


@dataclass(frozen=True)
class Fence:
    fence: int
    reason: str
    deadline: float
    at_once: bool = False
    """Ranks hold at the end of the step in progress, not of the one after it."""
    replies: PersistentMap[str, int] = field(default_factory=PersistentMap)
    stop: int | None = None
    leavers: frozenset[str] = frozenset()
    """The agents that leave, as was told with the stop."""
    commits: bool = False
    """All were told to commit to storage, and are from then on: who has heard of that waits for the
    others there, whatever the range is by now."""
    fenced: frozenset[str] = frozenset()
    offers: PersistentMap[str, int] = field(default_factory=PersistentMap)
    """By agent, the port of its store for the next round, which its workers will wait for."""
    reached: bool = False
    """Workers of a node stand there, and commit."""


@dataclass(frozen=True)
class RoundRecord:
    """A round, as /status shows it."""

    round: int
    world: int
    time: float
    reason: str
    first_step: int | None = None
    first_step_time: float | None = None
    last_step: int | None = None
    last_step_time: float | None = None
    first_samples: int = 0
    """Consumed by all ranks once `first_step` was applied; 0 where that isn't known."""
    last_samples: int = 0
    end: str | None = None
    end_time: float | None = None
    lost: int = 0
    """Workers whose loss ended it."""
    pause_seconds: float | None = None
    """From the last step of the round before to the first step of this one."""
    adopted: bool = False
    """It was found after our restart, and may have made steps before."""
    live: bool = False
    """The workers of all its members waited for it in process."""


@dataclass(frozen=True)
class LostWorker:
    """A member of a round that was lost."""

    worker: int
    """Its pod's index."""
    node: str
    """Empty: it named none."""
    why: str


@dataclass(frozen=True)
class Divergence:
    """A rank whose state is, or was, another than the others'."""

    key: tuple[str, int]
    """Agent and local rank."""
    found: Diverged
    rank: int
    """When it was found."""
    worker: int
    node: str
    until: float | None = None
    """When it had the same again, or was gone; None: it differs still."""


@dataclass(frozen=True)
class Recheck:
    """A node check between two rounds."""

    agents: frozenset[str]
    """Those that were asked to take part."""
    deadline: float


@dataclass(frozen=True)
class State:
    settings: Settings
    started: float
    phase: Phase = Phase.FORMING
    agents: Agents = field(default_factory=Agents)
    round: Round | None = None
    """The current round, while adopting, running, fencing, completing or finished."""
    round_since: float = 0.0
    last_round: int = 0
    last_fence: int = 0
    fence: Fence | None = None
    doubts: Doubts = field(default_factory=Doubts)
    """Agents' that the current round stands."""
    succeeded: frozenset[str] = frozenset()
    """Members of the round whose workers have all ended with code 0; some may be gone."""
    expected: frozenset[str] = frozenset()
    """Members of the last round that the next one waits for; those who are connected know it."""
    restart_deadline: float = 0.0
    newcomers: frozenset[str] = frozenset()
    """Members of the round that were not in the one before."""
    last_members: frozenset[str] = frozenset()
    """Members of the newest round."""
    promised: frozenset[str] = frozenset()
    """Agents of the round that a fence was told have a place in the next one."""
    trained: frozenset[str] = frozenset()
    """Members of the newest round that made a step; none: this coordinator has seen none."""
    recovering: bool = False
    """The last round's workers go on in process, so the next one waits for nobody who failed, and
    newcomers start their workers before they join."""
    enough_since: float | None = None
    larger_since: float | None = None
    """Since when newcomers would make the round larger that is trained in."""
    reason: str = "start"
    """Why the next round will have been made."""
    lost: tuple[LostWorker, ...] = ()
    """Members of the newest round that were lost at its end, by time, those of the first few nodes;
    empty where it ended for another reason. See losses.py."""
    others_lost: int = 0
    """How many more were lost then, of further nodes."""
    step: int = -1
    committed_step: int = -1
    commits: tuple[NewestCommit, ...] = ()
    """The newest in each storage: a folder without any isn't a new one."""
    commit_bytes: int = 0
    """Size of the newest commit that was told of; 0: none was."""
    last_run: int = 0
    """The greatest number of a run that any agent told of. The next one's is greater, whatever
    clocks say: else two runs would have one name, or an older one the newer name."""
    samples: tuple[tuple[float, int], ...] = ()
    """Recent (time, step), for the speed."""
    total_samples: int = 0
    """Samples that training will have consumed in the end; 0: not known."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Those that the script reported last, by name."""
    rounds: tuple[RoundRecord, ...] = ()
    watch: StepWatch = field(default_factory=StepWatch)
    """The watch over steps that come, or don't."""
    hangs: tuple[Hang, ...] = ()
    """The newest, by time."""
    stragglers: StragglerWatch = field(default_factory=StragglerWatch)
    """The watch over ranks that are slower by themselves than the others."""
    shares: Shares = field(default_factory=Shares)
    """The shares of ranks that take fewer samples than the others."""
    replicas: ReplicaWatch = field(default_factory=ReplicaWatch)
    """The watch over ranks whose state is another than the others'."""
    divergences: tuple[Divergence, ...] = ()
    """The newest, by time."""
    repaired: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Agents and local ranks for whose states rounds were ended, and when."""
    ledger: Ledger = field(default_factory=Ledger)
    """The account of GPU time."""
    checking: bool = False
    """A node check is under way."""
    suspects: frozenset[str] = frozenset()
    """Nodes whose devices have failed since the last check; they are checked before their next
    round."""
    recheck: Recheck | None = None
    """The check that the next round waits for."""
    hangs_total: int = 0
    """Rounds that were ended for one."""
    failures: tuple[Failed, ...] = ()
    """By time; see failures.py."""
    failures_total: int = 0
    failure_reason: str = ""
    """Why training has failed for good; see failure_policy.py."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Nodes whose agents are in no round for now, and why; see exclusion.py."""
    excluded_at: Mapping[str, float] = field(default_factory=dict)
    """Since when each is."""
    short_since: float | None = None
    """Since when too few others have been there."""
    rejected_agents: frozenset[str] = frozenset()
    """Agents that are to end by the verdict. Another that joins begins a new attempt."""
    attempt_since: int = 0
    """The last round of the attempts before this one."""
    last_tick: float | None = None
    heard_since: float = 0.0
    """Nobody's newest sign of life is older, so that silence is looked for only once it may be."""
    pace: Pace = field(default_factory=Pace)
    """The pace of all agents' signs of life."""
    electorate: Electorate | None = None
    """Members that must agree to the next round: the newest that any agent told of, or we made."""
    gone: frozenset[str] = frozenset()
    """Agents that never come back: they count no more."""
    left: frozenset[str] = frozenset()
    """Those of them that said so to this coordinator."""
    missing: tuple[Member, ...] = ()
    """For whom the next round waits: without some of them another side may make one, too."""
    returning: frozenset[str] = frozenset()
    """Agents that elected this coordinator, and come to it. Other members of the round are not
    waited for."""

    @property
    def attempt_rounds(self) -> list[RoundRecord]:
        """Return the rounds of the attempt that is under way, in order."""
        return [record for record in self.rounds if record.round > self.attempt_since]

    @property
    def fewest_agents(self) -> int:
        """Return how many there are, or will be before there is a round."""
        return max(len(self.agents), self.settings.min_nodes)

    @property
    def step_seconds(self) -> float:
        """The longest that any agent tells; 0: not known."""
        return max((agent.step_seconds for agent in self.agents.values()), default=0.0)


@dataclass(frozen=True)
class Received:
    agent: str
    message: AgentMessage


@dataclass(frozen=True)
class Lost:
    """An agent's stream ended."""

    agent: str
    reason: str = "its connection ended"


@dataclass(frozen=True)
class Tick:
    last_seen: Mapping[str, float] = field(default_factory=dict)
    """Agents that gave a sign of life and nothing more since the last tick, and when."""


@dataclass(frozen=True)
class NewRange:
    """The job's owner wants rounds of so many agents from now on."""

    min_nodes: int
    max_nodes: int


@dataclass(frozen=True)
class FaultyNodes:
    """A node check has found nodes broken: by name, why."""

    nodes: Mapping[str, str]


@dataclass(frozen=True)
class Checking:
    """A node check has begun, or is over."""

    under_way: bool


@dataclass(frozen=True)
class Gone:
    """Agents are proven to have ended."""

    agents: frozenset[str]


Event = Received | Lost | Tick | NewRange | FaultyNodes | Checking | Gone


@dataclass(frozen=True)
class Send:
    agent: str
    message: CoordinatorMessage


@dataclass(frozen=True)
class Drop:
    """Close an agent's stream: it was declared lost; alive, it will say hello again."""

    agent: str


Effect = Send | Drop
