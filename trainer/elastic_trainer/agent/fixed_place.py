"""Where the coordinator is if no elections are held: where it was at the job's beginning."""

from __future__ import annotations

import asyncio
from typing import Any

from elastic_trainer.identity import Identity
from elastic_trainer.protocol.message import Electorate


class FixedPlace:
    """The same interface as `Succession`'s."""

    term = 0
    port = 0
    electorate: Electorate | None = None
    is_awaited = False

    def __init__(self, identity: Identity) -> None:
        self._endpoint = identity.host, identity.port
        self.hosts_by_right = identity.may_host

    def unheard_seconds(self, now: float) -> float:
        return 0.0

    def where(self) -> tuple[str, int]:
        return self._endpoint

    def heard(self, message: Any) -> None:
        """Whatever comes is this coordinator's."""

    def lost(self) -> None:
        """It is dialled again and again."""

    async def serve(self) -> None:
        """Others have nothing to ask."""

    async def watch(self) -> None:
        """There is nothing to see to."""
        await asyncio.Event().wait()

    async def nobody_stays(self) -> None:
        """Nobody is asked."""

    async def close(self, *, failures_seconds: float, end_seconds: float) -> None:
        """It runs no coordinator in this process."""
