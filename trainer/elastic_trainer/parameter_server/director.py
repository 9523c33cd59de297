"""Director: the first server's part that knows all servers, and orders moves between them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from elastic_trainer.embeddings.owner_map import NOBODY
from elastic_trainer.parameter_server.placement import (
    FROZEN,
    HELD,
    LOST_SECONDS,
    SETTLE_SECONDS,
    Move,
    Placement,
    Server,
    alive,
    gone,
    is_released,
    next_move,
    place,
)
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages

log = logging.getLogger("elastic_trainer.parameter_server")

TICK_SECONDS = 0.1


class Director:
    """Holds what servers said; every change to it happens on one event loop.

    Args:
        begin: makes the first server hold all buckets, of this epoch.
        order: has a move made; returns whether it was.
    """

    def __init__(
        self, begin: Callable[[str], None], order: Callable[[Move], Awaitable[bool]]
    ) -> None:
        self.epoch = ""
        self._superseded: list[str] = []
        self._begin, self._order = begin, order
        self._started = time.monotonic()
        self._servers: dict[str, Server] = {}
        self._version = 0
        self._placement = Placement((), ())
        self._ownerless_since: float | None = None
        self._lost = ""
        self._move: asyncio.Task[None] | None = None
        self._moved = 0.0
        """When the last move ended; what was said before is out of date."""

    def report(self, server: Server, version: int) -> None:
        """Take in what a server says of itself."""
        self._servers[server.life] = server
        self._version = max(self._version, version)
        if not self.epoch and server.epoch:
            self.epoch = server.epoch

    def owners(self, life: str = "") -> messages.Owners:
        """Return who holds what, as the one of this life is told."""
        now = time.monotonic()
        self._place(now)
        server = self._servers.get(life)
        return messages.Owners(
            epoch=self.epoch,
            version=self._version,
            addresses=self._placement.addresses,
            owners=pack(self._placement.owners),
            gone=sorted(gone(self._servers, now, self._started)),
            lost=self._lost,
            superseded=self._superseded,
            released=server is not None and is_released(server),
        )

    def supersede(self) -> bool:
        """Begin a new epoch, in which nobody holds anything. False while buckets are moved."""
        moving = self._move is not None and not self._move.done()
        if moving or any(one.giving for one in self._present(time.monotonic())):
            return False
        if self.epoch:
            self._superseded.append(self.epoch)
        self.epoch = uuid.uuid4().hex[:16]
        self._ownerless_since, self._lost = None, ""
        return True

    def tick(self) -> None:
        """Do what is to be done next."""
        now = time.monotonic()
        if not self.epoch and now - self._started >= SETTLE_SECONDS:
            self.epoch = uuid.uuid4().hex[:16]
            self._begin(self.epoch)
        self._place(now)
        self._look_for_losses(now)
        present = self._present(now)
        idle = self._move is None or self._move.done()
        if idle and all(one.heard > self._moved for one in present):
            move = next_move(present)
            if move is not None:
                self._move = asyncio.get_running_loop().create_task(self._make(move))

    async def _make(self, move: Move) -> None:
        words = f"{len(move.buckets)} buckets: {move.source.address} to {move.target.address}"
        given = await self._order(move)
        self._moved = time.monotonic()
        if given:
            target = self._servers[move.target.life]
            held = target.held.copy()
            held[list(move.buckets)] = HELD
            self._servers[target.life] = replace(target, held=held, epoch=self.epoch)
            log.info("moved %s", words)
            return
        log.warning("could not move %s; trying again", words)
        await asyncio.sleep(1.0)

    def _present(self, now: float) -> list[Server]:
        return [one for one in alive(self._servers, now) if one.epoch in ("", self.epoch)]

    def _place(self, now: float) -> None:
        placement = place(self._present(now))
        if placement != self._placement:
            self._placement = placement
            self._version += 1

    def _look_for_losses(self, now: float) -> None:
        """Say that rows are lost, once all servers have said so after the last one moved."""
        ownerless = self._placement.owners.count(NOBODY)
        if not self.epoch or not ownerless:
            self._ownerless_since, self._lost = None, ""
            return
        if self._ownerless_since is None:
            self._ownerless_since = now
        # A server that doesn't know yet of a first one that began anew may hold them.
        settled = now - self._started >= LOST_SECONDS or self._has_lives_over(now)
        heard = all(
            one.heard > self._ownerless_since and not one.giving for one in self._present(now)
        )
        if settled and heard and now - self._ownerless_since >= SETTLE_SECONDS and not self._lost:
            self._lost = f"the rows of {ownerless} buckets were lost with the server that held them"
            log.error("%s", self._lost)

    def _has_lives_over(self, now: float) -> bool:
        return bool(gone(self._servers, now, self._started))


def observed(
    address: str,
    life: str,
    held: np.ndarray,
    frozen: np.ndarray,
    *,
    giving: bool = False,
    giving_to: str = "",
    leaving: bool = False,
    epoch: str = "",
) -> Server:
    """Return what a server says of itself just now."""
    states = held.astype(np.int8)
    states[frozen] = FROZEN
    return Server(address, life, states, time.monotonic(), giving, giving_to, leaving, epoch)
