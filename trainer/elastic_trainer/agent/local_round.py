"""The reports of a node's workers since their round began, and the connections to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from elastic_trainer.link.message import FromAgent, Whereabouts, encode
from elastic_trainer.link.peer import has_ended
from elastic_trainer.link.progress import ProgressPage
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.protocol.message import Committed

KEPT_STEPS = 4
"""Steps whose digests are waited for."""


@dataclass
class Worker:
    """A connected worker: its end of the link, and what it has told."""

    writer: asyncio.StreamWriter
    rank: int
    local_rank: int
    pid: int
    progress: ProgressPage
    recovers: bool
    local: LocalRound
    error_file: str = ""
    reply: int | None = None
    stopped: bool = False
    """At the fence, not yet committed."""
    fenced: bool = False
    idle: bool = False
    """Out of any round, waiting for the next."""
    stuck: bool = False
    """It can't leave its round by itself."""
    failing: bool = False
    """It has an error, maybe because a peer vanished, and waits to be told."""
    doubt: int = 0
    """Number of its question whether the round stands; 0: it waits for no answer."""
    ending: bool = False
    """Its process is on its way to end by an exception."""
    closing: bool = False
    tables: dict[str, TableLoad] = field(default_factory=dict)
    """Embedding tables that it holds parts of, by name."""
    parked: bool = False
    """Only waits for its end."""
    whereabouts: Whereabouts | None = None
    """Its newest answer, until it is asked again."""

    def tell(self, message: FromAgent) -> None:
        """Sends a message, unless the connection is about to close."""
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    @property
    def stands(self) -> bool:
        """Return whether it is there, or has ended well; False also while that isn't known."""
        if self.pid in self.local.ended:
            return True
        if self.ending or self.writer.is_closing():
            return False
        return not has_ended(self.writer.get_extra_info("socket"), self.pid)


@dataclass
class LocalRound:
    """Holds the reports of this node's workers in one round; each round has a new one."""

    round: int = 0
    workers: dict[int, Worker] = field(default_factory=dict)
    """By local rank."""
    local_world_size: int = 0
    step: int = -1
    told_step: int = -1
    told_bytes: int = 0
    fence: int = 0
    stop: int = -1
    commit: bool = False
    """All commit to storage where they stop."""
    leaving: bool = False
    over: bool = False
    finished: bool = False
    """A worker has left the training loop; its script's tail may still fail."""
    ended: set[int] = field(default_factory=set)
    """Process ids of those that ended with code 0."""
    succeeded: bool = False
    """All have."""
    doubts: int = 0
    """How often one has asked whether the round stands."""
    failed: bool = False

    savers: int = 0
    """How many workers save to memory."""
    sealed: dict[int, int] = field(default_factory=dict)
    """By local rank, the newest step that is verified in memory."""
    held_step: int = -1
    """The newest that is so of all that save."""
    held_round: int = 0
    """That made what is in memory: another than this one, of a state that was restored."""
    digests: dict[int, dict[int, str]] = field(default_factory=dict)
    """By step and local rank, until all workers' of a step are known."""
    joined: set[int] = field(default_factory=set)
    """Local ranks that took their place in a round they did not start with."""
    feed_port: int = 0
    """Where newcomers may follow its first worker's state; 0: nowhere."""
    sharded: bool = False
    """Each of its workers has a part of the state that others may not have."""
    carried: bool = False
    """Its workers were in another round before."""
    came: bool = False
    """Its workers have come to the state of a round before this one."""

    def next(self, number: int) -> LocalRound:
        """Return the round in which the same workers get places after this one."""
        return LocalRound(
            number,
            self.workers,
            self.local_world_size,
            told_bytes=self.told_bytes,
            failed=self.failed,
            sharded=self.sharded,
            carried=True,
            came=self.holds,
        )

    def digested(self, step: int, local_rank: int, digest: str) -> tuple[str, ...]:
        """Note a worker's digest; return all of that step by local rank, once they are known."""
        found = self.digests.setdefault(step, {})
        found[local_rank] = digest
        if not self.complete or len(found) < len(self.workers):
            for old in sorted(self.digests)[:-KEPT_STEPS]:  # what was saved fast isn't all verified
                del self.digests[old]
            return ()
        self.digests = {known: one for known, one in self.digests.items() if known > step}
        return tuple(found[one] for one in sorted(found))

    @property
    def complete(self) -> bool:
        """All its workers are connected."""
        return 0 < self.local_world_size == len(self.workers)

    @property
    def linked(self) -> bool:
        return self.complete and (not self.carried or len(self.joined) == len(self.workers))

    @property
    def recovers(self) -> bool:
        """Its workers wait for the next round in process."""
        workers = self.workers.values()
        able = self.complete and not (self.failed or self.finished or self.ended)
        return able and all(worker.recovers for worker in workers)

    @property
    def holds(self) -> bool:
        """Its workers have what this round, or one before it, trained: unlike newcomers whose round
        ended before they came to its state."""
        came = self.came or (self.round > 0 and len(self.joined) == len(self.workers))
        return self.recovers and came

    @property
    def failing(self) -> bool:
        """One of its workers has an error, and doesn't know yet whether it is its own."""
        return any(worker.failing for worker in self.workers.values())

    @property
    def stuck(self) -> bool:
        """One of its workers can't leave the round by itself."""
        return any(worker.stuck for worker in self.workers.values())

    @property
    def idle(self) -> bool:
        return self.recovers and all(worker.idle for worker in self.workers.values())

    @property
    def late(self) -> str:
        """Those that could wait for the next round in process and don't yet, in words."""
        workers = [worker for worker in self.workers.values() if not worker.idle]
        names = (f"rank {worker.rank} (process {worker.pid})" for worker in workers)
        return ", ".join(names) if self.recovers else ""

    @property
    def held(self) -> Committed:
        """The commits in memory, for the coordinator."""
        return Committed(self.held_round, self.held_step, in_memory=True)

    @property
    def fenced(self) -> bool:
        return self.linked and all(worker.fenced for worker in self.workers.values())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for _, worker in sorted(self.workers.items()))
