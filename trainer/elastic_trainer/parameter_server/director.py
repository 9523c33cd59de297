"""Director: the first server's part that knows all servers, and orders moves between them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from elastic_trainer.embeddings.owner_map import NOBODY
from elastic_trainer.parameter_server import gazer, placement
from elastic_trainer.parameter_server.epoch_file import Epoch, EpochFile
from elastic_trainer.parameter_server.gazer import Observations
from elastic_trainer.parameter_server.load import WINDOW_SECONDS
from elastic_trainer.parameter_server.placement import (
    HELD,
    LEASE_SECONDS,
    LOST_SECONDS,
    NEVER_COPIED,
    SETTLE_SECONDS,
    Adoption,
    Move,
    Placement,
    Server,
)
from elastic_trainer.parameter_server.reports import copy_message
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages

log = logging.getLogger("elastic_trainer.parameter_server")

TICK_SECONDS = 0.1
REST_SECONDS = 3 * WINDOW_SECONDS
"""After a move, until loads tell of what is so since."""


class Director:
    """Holds what servers said; every change to it happens on one event loop.

    Args:
        begin: makes the first server hold all buckets, of this epoch.
        order: has a move made, by a turn, of an epoch; returns whether it was.
        adopt: has a copy's rows held, by a turn, as the adoption of a number, of an epoch; returns
            whether they are.
        file: what outlives this process.

    Raises:
        OSError, ValueError: the file can't be read.
    """

    def __init__(
        self,
        begin: Callable[[str], None],
        order: Callable[[Move, int, str], Awaitable[bool]],
        adopt: Callable[[Adoption, int, int, str], Awaitable[bool]],
        file: EpochFile,
    ) -> None:
        self._file, self._noted = file, file.read()
        self._known = dict(self._noted.servers)
        """Lives of whom the one before this knew."""
        self._over_since: dict[str, float] = {}
        """Lives that are over, by when that was found."""
        self._outdone: set[str] = set()
        """Lives that came back with what others have held since."""
        self._keepers: dict[str, str] = {}
        """By life, the one that is to keep a copy of its rows, or was at last."""
        self._begin, self._order, self._adopt = begin, order, adopt
        self._started = self._ticked = time.monotonic()
        self._woke = -float("inf")
        """When this one last went on after it had stood still, as others' silence could be its own.
        """
        self._servers: dict[str, Server] = {}
        self._copied = NEVER_COPIED
        """By bucket, the last turn by which it came to who has, or had, a copy of it elsewhere."""
        self._version = 0
        self._placement = Placement((), ())
        self._ownerless_since: float | None = None
        self._lost = ""
        self._unwritten = ""
        """Why something couldn't be noted."""
        self._move: asyncio.Task[None] | None = None
        self._moved = 0.0
        """When the last move ended; what was said before is out of date."""
        self._relieved: frozenset[str] = frozenset()
        """Lives between which buckets were moved from one with too much to do; as long as there are
        no others, shares needn't be even."""
        self.observed = Observations()

    def report(self, server: Server, version: int) -> None:
        """Take in what a server says of itself."""
        before = self._servers.get(server.life)
        if server.load is None and before is not None:
            server = replace(server, load=before.load, rates=before.rates)
        comes_back = before is None or server.heard - before.heard >= LEASE_SECONDS
        ours = server.epoch == self.epoch
        if comes_back and ours and placement.is_outdone(server, self._present(server.heard)):
            self._outdone.add(server.life)
        self._servers[server.life] = server
        self._version = max(self._version, version)
        noted = self._noted
        if not noted.name and server.epoch:
            noted = replace(noted, name=server.epoch)
        is_over = server.life in noted.ended or server.life in self._outdone
        if ours and not is_over:
            self._copied = placement.newest_copied([server], self._copied)
        if noted.servers.get(server.address) != server.life and not is_over:
            noted = replace(noted, servers={**noted.servers, server.address: server.life})
        if noted != self._noted:
            self._noted = noted
            if noted.name:
                self._try_to_note(noted)

    @property
    def epoch(self) -> str:
        """The tables' epoch; empty: nobody holds any yet."""
        return self._noted.name

    def _try_to_note(self, noted: Epoch) -> bool:
        """Note what is so from now on. False where that can't be written; then it isn't so."""
        try:
            self._file.write(noted)
        except OSError as error:
            if str(error) != self._unwritten:
                log.error("cannot note what the servers are to know after a restart: %s", error)
            self._unwritten = str(error)
            return False
        self._noted, self._unwritten = noted, ""
        return True

    def owners(self, life: str = "") -> messages.Owners:
        """Return who holds what, as the one of this life is told."""
        now = time.monotonic()
        self._place(now)
        server, present = self._servers.get(life), self._present(now)
        kept_by = placement.keeper(present, life, self._keepers.get(life, ""))
        if kept_by is not None:
            self._keepers[life] = kept_by.life
        return messages.Owners(
            epoch=self.epoch,
            version=self._version,
            addresses=self._placement.addresses,
            owners=pack(self._placement.owners),
            gone=sorted(self._cannot_come_back(now)),
            lost=self._lost,
            superseded=self._noted.superseded,
            adopted=self._noted.adopted,
            keeper="" if kept_by is None else kept_by.address,
            keeper_life="" if kept_by is None else kept_by.life,
            released=server is not None and placement.is_released(server),
            outdated=[copy_message(one) for one in placement.outdated(present, life)],
        )

    def supersede(self) -> bool:
        """Begin a new epoch, in which nobody holds anything. False while buckets are moved.

        Raises:
            OSError: it can't be noted, so it hasn't begun.
        """
        moving = self._move is not None and not self._move.done()
        if moving or any(one.giving for one in self._present(time.monotonic())):
            return False
        old = (self.epoch,) if self.epoch else ()
        noted = replace(self._noted, name=_new_epoch(), superseded=(*self._noted.superseded, *old))
        self._file.write(noted)
        self._noted = noted
        self._ownerless_since, self._lost = None, ""
        self._copied = NEVER_COPIED  # turns of rows that nobody goes on from
        return True

    def tick(self) -> None:
        """Do what is to be done next."""
        now = time.monotonic()
        if now - self._ticked >= LEASE_SECONDS:
            self._woke = now
        self._ticked = now
        if now - self._woke < LEASE_SECONDS:
            return  # who is there says so by then
        if (
            not self.epoch
            and now - self._started >= SETTLE_SECONDS
            and self._try_to_note(replace(self._noted, name=_new_epoch()))
        ):
            self._begin(self.epoch)
        self._place(now)
        present = self._present(now)
        over = self._over(now)
        for one in present:
            if one.giving_to in over:
                self._end(one.giving_to)
        adoption = placement.next_adoption(present, over, self._keepers, self._copied)
        if adoption is None:
            self._look_for_losses(now)
        elif adoption.kept.life in over:
            self._end(adoption.kept.life)  # so that nobody goes on taking from it
        idle = self._move is None or self._move.done()
        if not idle or any(one.heard <= self._moved for one in present):
            return
        if adoption is not None:
            if adoption.may_begin and self._knows_all(now):
                self._move = asyncio.get_running_loop().create_task(self._have_adopted(adoption))
        elif (move := self._next_move(present, now)) is not None:
            self._move = asyncio.get_running_loop().create_task(self._make(move))

    def _next_move(self, present: list[Server], now: float) -> Move | None:
        lives = frozenset(one.life for one in present)
        if lives != self._relieved and (move := placement.next_move(present)) is not None:
            return move
        if now - self._moved < REST_SECONDS:
            return None
        if (move := placement.next_relief(present)) is not None:
            self._relieved = lives
        return move

    def may_end(self, life: str) -> bool:
        """Tell whether the first server, of this life, may end: it has given all away, or nobody
        stays whom it could give to."""
        now = time.monotonic()
        if now - self._woke < LEASE_SECONDS:
            return False
        present = self._present(now)
        others = [one for one in present if one.life != life]
        mine = [one for one in present if one.life == life]
        return all(one.leaving for one in others) or all(map(placement.is_released, mine))

    def gazed(self, job: str) -> dict[str, Any]:
        """Return what all servers and workers say, as `gazer.status` has it."""
        present = self._present(time.monotonic())
        return gazer.status(
            job,
            {one.address: one.load for one in present if one.load is not None},
            {one.address: int((one.held > 0).sum()) for one in present},
            self.observed,
            self._lost,
            placement.slow(present),
        )

    async def _make(self, move: Move) -> None:
        words = f"{len(move.buckets)} buckets: {move.source.address} to {move.target.address}"
        turn = self._next_turn()
        given = await self._order(move, turn, self.epoch)
        self._moved = time.monotonic()
        if given:
            target = self._servers[move.target.life]
            held, turns = target.held.copy(), target.turns.copy()
            held[list(move.buckets)], turns[list(move.buckets)] = HELD, turn
            self._servers[target.life] = replace(
                target,
                held=held,
                turns=turns,
                uncopied=np.union1d(target.uncopied, move.buckets),
                epoch=self.epoch,
            )
            log.info("moved %s", words)
            return
        log.warning("could not move %s; trying again", words)
        await asyncio.sleep(1.0)

    async def _have_adopted(self, adoption: Adoption) -> None:
        """End a life for good, then have a server hold what it held."""
        source = adoption.kept.life
        # Before it is done, so that whoever reads the number then goes on from rows before it.
        number = self._noted.adopted + 1
        if not self._end(source) or not self._try_to_note(replace(self._noted, adopted=number)):
            await asyncio.sleep(1.0)
            return
        adopted = await self._adopt(adoption, self._next_turn(), number, self.epoch)
        self._moved = time.monotonic()
        log.warning(
            "%s %s the rows of %d buckets as it %s %s, which is gone",
            adoption.keeper.address,
            "holds" if adopted else "couldn't hold",
            len(adoption.kept.buckets),
            "gave them to" if adoption.kept.given else "copied them last from",
            source,
        )
        if not adopted:
            await asyncio.sleep(1.0)

    def _end(self, life: str) -> bool:
        """Note that a life will never serve again. False where it can't be noted."""
        if life in self._noted.ended:
            return True
        return self._try_to_note(replace(self._noted, ended=(*self._noted.ended, life)))

    def _next_turn(self) -> int:
        """Return a turn after all others, those of an earlier first server too."""
        known = [0]
        for one in self._servers.values():
            known.append(int(one.turns.max()))
            known += [int(kept.turns.max()) for kept in one.copies if len(kept.turns)]
        return max(time.time_ns(), 1 + max(known))

    def _over(self, now: float) -> dict[str, float]:
        """Return the lives of servers that are silent, or will never serve again, and since when
        that is known."""
        found = placement.gone(self._servers, now, self._started) | self._cannot_come_back(now)
        self._over_since = {life: self._over_since.get(life, now) for life in found}
        return self._over_since

    def _cannot_come_back(self, now: float) -> set[str]:
        """Return the lives that will never serve again."""
        present = placement.alive(self._servers, now)
        heard = {(one.address, one.life) for one in self._servers.values()}
        over = placement.followed({*self._known.items(), *heard}, present)
        return over | set(self._noted.ended) | self._outdone

    def _knows_all(self, now: float) -> bool:
        """Tell whether each server that may hold something has said so to this first one."""
        heard = {one.address for one in self._servers.values()}
        if now - self._started >= LOST_SECONDS:
            return True
        return self._file.outlives and set(self._known) <= heard

    def _present(self, now: float) -> list[Server]:
        return [
            one
            for one in placement.alive(self._servers, now)
            if one.epoch in ("", self.epoch)
            and one.life not in self._noted.ended
            and one.life not in self._outdone
        ]

    def _place(self, now: float) -> None:
        found = placement.place(self._present(now))
        if found != self._placement:
            self._placement = found
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
        is_seen = not self._file.outlives and bool(self._over(now))
        settled = is_seen or self._knows_all(now)
        heard = all(
            one.heard > self._ownerless_since and not one.giving for one in self._present(now)
        )
        if settled and heard and now - self._ownerless_since >= SETTLE_SECONDS and not self._lost:
            self._lost = f"the rows of {ownerless} buckets were lost with the server that held them"
            log.error("%s", self._lost)


def _new_epoch() -> str:
    return uuid.uuid4().hex[:16]
