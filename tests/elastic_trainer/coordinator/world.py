"""A coordinator's state machine and the agents' view of it, with a clock in our hand."""

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
from elastic_trainer.protocol.message import (
    AgentMessage,
    Heartbeat,
    Hello,
    Join,
    Linked,
)


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
        """Everybody goes on beating."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += 0.05
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
