"""One agent's stream to the coordinator: what waits to be sent, and how much it may say."""

from __future__ import annotations

import asyncio

OUTBOX = 1000
"""Messages that wait for an agent to read them; then its stream is closed."""
BURST, PER_SECOND = 2000.0, 500.0
"""Messages that an agent may send at once, and lastingly; then its stream is closed."""

CLOSE = None
"""What a session's queue holds after its last message."""


class AgentSession:
    def __init__(self, agent: str, now: float) -> None:
        self.agent = agent
        self.outbox: asyncio.Queue[bytes | None] = asyncio.Queue(OUTBOX)
        """Messages as the wire has them; `CLOSE` ends it."""
        self.over = asyncio.Event()
        """It does not read, or writes without end: nothing in the outbox matters any more."""
        self._credit, self._credited = BURST, now

    def put(self, envelope: bytes | None) -> None:
        try:
            self.outbox.put_nowait(envelope)
        except asyncio.QueueFull:
            self.over.set()

    def may_speak(self, now: float) -> bool:
        """Counts a message that came."""
        earned = (now - self._credited) * PER_SECOND
        self._credit, self._credited = min(BURST, self._credit + earned) - 1.0, now
        return self._credit >= 0.0
