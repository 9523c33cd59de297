"""One agent's stream to the coordinator: what waits to be sent, and how much it may say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

OUTBOX = 1000
"""Messages that wait for an agent to read them; then its stream is closed."""
BURST, PER_SECOND = 2000.0, 500.0
"""Messages that an agent may send at once, and lastingly; then its stream is closed."""

CLOSE = None
"""The entry of a session's queue after its last message."""
BEAT = b""
"""It holds this for a heartbeat that is made when it is sent."""


class AgentSession:
    """
    Args:
        cut: ends the stream from outside, called once: the agent does not read, or writes without
            end, or has come back by another stream. Nothing in the outbox matters any more.
    """

    def __init__(self, agent: str, now: float, cut: Callable[[AgentSession], None]) -> None:
        self.agent = agent
        self.outbox: asyncio.Queue[bytes | None] = asyncio.Queue(OUTBOX)
        """Messages as the wire has them; `CLOSE` ends it."""
        self.closed = False
        """This coordinator has closed it: the agent was silent, or it is sent away."""
        self._cut, self._is_cut = cut, False
        self._credit, self._credited = BURST, now

    def put(self, envelope: bytes | None) -> None:
        try:
            self.outbox.put_nowait(envelope)
        except asyncio.QueueFull:
            self.cut()

    def cut(self) -> None:
        if not self._is_cut:
            self._is_cut = self.closed = True
            self._cut(self)

    def may_speak(self, now: float) -> bool:
        """Counts a message that came."""
        earned = (now - self._credited) * PER_SECOND
        self._credit, self._credited = min(BURST, self._credit + earned) - 1.0, now
        return self._credit >= 0.0
