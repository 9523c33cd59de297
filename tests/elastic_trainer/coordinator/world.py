"""A coordinator's state machine and the agents' view of it, with a clock in our hand; and agents
that keep the protocol by themselves."""

from __future__ import annotations

from typing import Any

from elastic_trainer.coordinator.model import (
    Effect,
    Phase,
    Received,
    Send,
    Settings,
    State,
    Tick,
)
from elastic_trainer.coordinator.state import step
from elastic_trainer.metrics.table_load import TableLoad, encoded
from elastic_trainer.protocol.message import (
    AgentMessage,
    AskStanding,
    FenceAsk,
    FenceCancel,
    Fenced,
    FenceReply,
    FenceStop,
    Heartbeat,
    Hello,
    Join,
    Linked,
    Round,
    RoundOver,
    RoundStands,
    Standby,
    Standing,
    Tables,
)
from elastic_trainer.protocol.pace import BEAT_SECONDS

SMALL_SECONDS = 0.05
LONG_SECONDS = 5.0
"""Less than that passes in small steps, which tell a moment from the next."""
TABLES = Tables((encoded({"items": TableLoad(rows=7)}),))

STARTED = object()
"""In an agent's inbox: its workers, started anew after a failure, ask for a round."""


class Job:
    def __init__(self, **settings_: Any) -> None:
        self.state = State(settings=Settings(**settings_), started=0.0)
        self.now = 0.0
        self.heard: dict[str, list[Any]] = {}

    def feed(self, event: Any) -> None:
        self.state, effects = step(self.state, event, self.now)
        for effect in effects:
            self._hear(effect)

    def _hear(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.heard.setdefault(effect.agent, []).append(effect.message)

    def say(self, agent: str, *messages: AgentMessage) -> None:
        for message in messages:
            self.feed(Received(agent, message))

    def pass_time(self, seconds: float) -> None:
        """Let it pass while agents beat and the coordinator looks, for long no more often than
        they do."""
        end = self.now + seconds
        each = SMALL_SECONDS if seconds < LONG_SECONDS else BEAT_SECONDS
        while self.now < end - 1e-9:
            self.now += min(each, end - self.now)
            for agent in list(self.state.agents):
                self.say(agent, Heartbeat())
            self.feed(Tick())

    def join(self, *indexes: int) -> None:
        for index in indexes:
            hello = Hello(agent=f"a{index}", pod_index=index, address=f"10.0.0.{index}")
            self.say(f"a{index}", hello, Join(5000 + index))

    def link(self, *indexes: int) -> None:
        assert self.state.round is not None
        for index in indexes:
            self.say(f"a{index}", Linked(self.state.round.round))

    def last(self, agent: str, kind: type[Any]) -> Any:
        return next(m for m in reversed(self.heard[agent]) if isinstance(m, kind))

    def members(self) -> list[str]:
        return [m.agent for m in self.state.round.members] if self.state.round else []

    def running(self, *indexes: int) -> Job:
        self.join(*indexes)
        self.pass_time(0.5)
        self.link(*indexes)
        assert self.state.phase is Phase.RUNNING
        self.heard.clear()
        return self


class FakeAgent:
    """An agent that keeps the protocol: what it answers, it answers in any order and late."""

    def __init__(self, name: str, index: int, recovers: bool) -> None:
        self.name, self.index = name, index
        self.recovers = recovers
        """Its workers go from round to round in process."""
        self.round: Round | None = None
        self.inbox: list[Any] = []
        self.linked = self.leaving = self.joined = self.live = False
        self.fence = 0
        self.stop = -1
        self.commits = False
        """It was told to commit to storage there."""
        self.fenced = False
        self.step = -1
        self.last_round = 0
        self.finished = self.succeeded = False
        self.doubts = 0
        self.doubt = 0
        """Number of its question whether its round stands, until it is answered."""

    def hello(self) -> Hello:
        return Hello(
            self.name,
            self.index,
            f"10.0.0.{self.index}",
            self.last_round,
            self.round,
            self.step,
            linked=self.linked,
            leaving=self.leaving,
            fence=self.fence,
            stop_step=self.stop,
            stop_commits=self.commits,
            fenced=self.fenced,
            finished=self.finished,
            succeeded=self.succeeded,
            recovers=self.recovers,
            holds=self.recovers and self.last_round > 0 and (self.live or self.linked),
        )

    def read(self) -> list[AgentMessage]:
        """Handle the oldest message; return what it says to it."""
        message = self.inbox.pop(0)
        if message is STARTED:
            return self.restart()
        if isinstance(message, Round):
            self.round, self.joined, self.linked = message, False, True
            self.last_round = max(self.last_round, message.round)
            self.fence, self.stop, self.fenced, self.step = 0, -1, False, -1
            self.commits = False
            self.finished = self.succeeded = False
            return [Linked(message.round, recovers=self.recovers, last_run=1)]
        if isinstance(message, FenceAsk) and self.in_round(message.round):
            self.fence, self.stop, self.fenced = message.fence, -1, False
            self.commits = False
            return [FenceReply(message.fence, self.step)]
        if isinstance(message, FenceStop) and self.in_round(message.round) and not self.finished:
            self.fence, self.stop, self.fenced = message.fence, message.step, True
            self.commits = message.commit
            self.step = max(self.step, message.step)
            port = 1000 + self.index if self.recovers and not self.leaving else 0
            return [Fenced(message.fence, message.step, port)]
        if isinstance(message, FenceCancel) and message.fence == self.fence:
            self.fence = 0
        if isinstance(message, RoundOver) and self.in_round(message.round):
            placed = any(isinstance(one, Round) for one in self.inbox)  # or it crosses its Join
            said = self.wait_in_process(message.round) if self.recovers else self.restart()
            return [] if self.live and placed else said
        if isinstance(message, AskStanding) and self.in_round(message.round):
            return [Standing(message.round, message.question)]
        if isinstance(message, RoundStands) and self.in_round(message.round):
            self.doubt = self.doubt if self.doubt > message.doubt else 0
        if isinstance(message, Standby) and self.joined and not self.live:
            return self.wait_in_process()  # its workers have started
        return []

    def in_round(self, number: int) -> bool:
        return self.round is not None and self.round.round == number

    def restart(self) -> list[AgentMessage]:
        self.doubt = 0
        self.round, self.joined, self.linked, self.fence, self.fenced = None, True, False, 0, False
        self.finished = self.succeeded = self.live = False
        return [self.join()]

    def fail(self) -> None:
        self.restart()
        self.joined = False
        self.inbox.append(STARTED)

    def wait_in_process(self, round_: int = 0) -> list[AgentMessage]:
        if self.finished:
            return self.restart()  # out of the loop, they can only be started again
        self.restart()
        self.live = True
        return [self.join(round_)]

    def join(self, round_: int = 0) -> Join:
        return Join(1000 + self.index, live=self.live, round=round_)
