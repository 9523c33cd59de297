"""The coordinator of an agent that was elected, in the agent's own process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Callable, Iterable
from typing import Any

from elastic_trainer.coordinator.__main__ import deadlines, limits
from elastic_trainer.coordinator.model import Settings
from elastic_trainer.coordinator.server import CoordinatorServer, Succeeds
from elastic_trainer.identity import Identity
from elastic_trainer.succession.candidacy import Count
from elastic_trainer.succession.peers import Place

log = logging.getLogger(__name__)


class HostedCoordinator:
    """Serves from its making on, until it is stopped or deposed.

    Args:
        identity: of the agent.
        term: for which it was elected.
        place: where it serves.
        count: of the votes.
        nodes: fewest and most of a round, as the coordinator before was told.
        ended: called with the term of a later coordinator, 0 if there is none, once it has ended.
    """

    def __init__(
        self,
        identity: Identity,
        term: int,
        place: Place,
        count: Count,
        nodes: tuple[int, int],
        ended: Callable[[int], None],
    ) -> None:
        low, high = nodes
        settings = Settings(
            low,
            high,
            identity.node_unit,
            lost_after=identity.heartbeat_timeout,
            term=term,
            host=identity.agent,
            **deadlines(os.environ),
        )
        log.warning(
            "this agent's coordinator takes over, in term %d, with the votes of %d agents",
            term,
            len(count.granted),
        )
        succeeds = Succeeds(count.electorate, frozenset(count.gone), frozenset(count.granted))
        self._server = CoordinatorServer(
            identity.job,
            settings,
            identity.token,
            limits(os.environ),
            succeeds,
            identity.program,
        )
        self._ended = ended
        self._stopped = asyncio.Event()
        self._task = asyncio.ensure_future(self._run(*place))

    def stop(self) -> None:
        self._stopped.set()

    async def close(self, *, failures_seconds: float, end_seconds: float) -> None:
        """Ends it, once others have been told the last, or after so long."""
        if failures_seconds:
            await self._server.failures_delivered(failures_seconds)
        if end_seconds:
            await self._server.end_delivered(end_seconds)
        self.stop()
        with contextlib.suppress(Exception):
            await self._task

    async def _run(self, host: str, port: int) -> None:
        try:
            await self._server.run(host, port, self._stopped)
        except OSError as error:
            log.error("the coordinator taken over has ended: %s", error)
        finally:
            self._ended(self._server.deposed)


def free_port(host: str, wished: int) -> int:
    """Return a port of `host` that is free, and whose next one is; the wished one if it can be.

    Raises OSError if there is none.
    """
    for port in (wished, *(random.randrange(20_000, 32_000) for _ in range(50))):
        if _is_free(host, port) and _is_free(host, port + 1):
            return port
    raise OSError(f"{host}: expected two neighbouring ports that are free, found none")


def _is_free(host: str, port: int) -> bool:
    try:
        found: Iterable[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError:
        return False
    return True
