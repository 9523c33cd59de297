"""Asks other agents of the job where the coordinator is."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Collection
from dataclasses import dataclass

from elastic_trainer.identity import Identity
from elastic_trainer.succession.agent_status import AgentStatus
from elastic_trainer.succession.peers import Place
from elastic_trainer.succession.service import HOST_PATH, ask, read_status

SECONDS = 0.5
"""For the answers."""
MOST = 8
"""Agents asked at a time."""


@dataclass(frozen=True)
class Answers:
    """The result of a search."""

    statuses: tuple[AgentStatus, ...] = ()
    silent: bool = False
    """Somebody may be there, and gave no answer."""

    @property
    def others_know(self) -> bool:
        """Return whether somebody may know of a round: an agent that does, or gave no answer."""
        return self.silent or any(one.round for one in self.statuses)

    @property
    def others_may_stay(self) -> bool:
        """Return whether there may be somebody who takes part in further rounds."""
        return self.silent or any(one.stays for one in self.statuses)

    @property
    def others_may_train(self) -> bool:
        """Return whether there may be a round without this agent's knowledge: somebody is silent,
        or knows of one and has lost its coordinator."""
        lost = any(one.round and not one.heard for one in self.statuses)
        return self.silent or lost


class HostSearch:
    """On an agent's event loop.

    Args:
        identity: of the agent that asks; its own answer doesn't count.
        chance: who is asked where there are many.
    """

    def __init__(self, identity: Identity, chance: random.Random) -> None:
        self._identity, self._chance = identity, chance

    async def ask(self, places: Collection[Place]) -> Answers:
        """Return the answers of some of those at `places`."""
        asked = self._chance.sample(sorted(places), min(MOST, len(places)))
        found = await asyncio.gather(*(self._ask(place) for place in asked))
        statuses = tuple(
            one
            for one in found
            if isinstance(one, AgentStatus) and one.agent != self._identity.agent
        )
        return Answers(statuses, silent=any(one is _SILENT for one in found))

    async def _ask(self, place: Place) -> AgentStatus | object | None:
        """Return an agent's status, `_SILENT`, or None where there is nobody of this job."""
        try:
            body = await ask(*place, "GET", HOST_PATH, None, self._identity.token, SECONDS)
            status = read_status(body)
        except (ConnectionRefusedError, socket.gaierror, ValueError):
            return None
        except (OSError, TimeoutError, EOFError):
            return _SILENT
        return status if status.job == self._identity.job else None


_SILENT = object()
