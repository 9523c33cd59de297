"""Gets a node's workers out of rounds that are over: those who stay are started anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from elastic_trainer.agent.inspection import record_late
from elastic_trainer.agent.local_round import LocalRound
from elastic_trainer.agent.round_end import RoundEnd
from elastic_trainer.protocol.message import Failed


class RoundExit:
    """Asked at each beat of the agent, so that nothing that was told, or was not, leaves a worker
    where it is. On the agent's event loop, but for `restarting`.

    Args:
        add: takes a failure of each worker that has to be ended, with its stacks.
    """

    def __init__(self, add: Callable[[Failed], None]) -> None:
        self.restarting = 0
        """The round whose workers are to be started anew."""
        self.ending: RoundEnd | None = None
        """A round that is over, and whose workers are to come out of it."""
        self._add = add
        self._looking: asyncio.Task[None] | None = None

    def begin(self, number: int, patience: float) -> None:
        """Round `number` is over: its workers have so many seconds."""
        if self.ending is None or self.ending.round != number:
            self.ending = RoundEnd(number, time.monotonic() + patience, patience)

    def look(self, current: int | None, local: LocalRound, now: float) -> None:
        """Has workers started anew that don't come out.

        Args:
            current: the round that they are in, for the agent; None: they are out.
        """
        ending = self.ending
        if ending is None:
            return
        if current != ending.round:
            self.ending = None
        elif ending.must_restart(local, now):
            self.ending = None
            if local.late:
                self._looking = asyncio.ensure_future(self._restart_late(ending, local))
            else:
                self.restarting = ending.round

    async def _restart_late(self, ending: RoundEnd, local: LocalRound) -> None:
        try:
            await record_late(local, ending.patience, self._add)
        finally:
            self.restarting = ending.round
