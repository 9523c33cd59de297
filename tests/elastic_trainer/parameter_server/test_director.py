"""Orders of the first server, by what servers say; nothing is ordered, and nobody ended, for
reasons of its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server import director
from elastic_trainer.parameter_server.director import Director
from elastic_trainer.parameter_server.epoch_file import EpochFile
from elastic_trainer.parameter_server.placement import (
    LEASE_SECONDS,
    LOST_SECONDS,
    Adoption,
    Move,
    Server,
)

from tests.elastic_trainer.parameter_server.test_balance import load
from tests.elastic_trainer.parameter_server.test_placement import kept, server


class Told:
    """A director, what it orders, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=time.time_ns)
        monkeypatch.setattr(director, "time", clock)
        self.file = EpochFile(str(folder))
        self.director = Director(lambda _: None, self._order, self._adopt, self.file)
        self.moves: list[Move] = []
        self.adoptions: list[Adoption] = []
        self.numbers: list[tuple[int, int]] = []
        """Number of each adoption, and what was noted by then."""

    async def _order(self, move: Move, turn: int, epoch: str) -> bool:
        self.moves.append(move)
        return True

    async def _adopt(self, adoption: Adoption, turn: int, number: int, epoch: str) -> bool:
        self.adoptions.append(adoption)
        self.numbers.append((number, self.file.read().adopted))
        return False

    def goes_on(self, seconds: float, *present: Server) -> None:
        """Have these servers speak each second, and time pass."""
        for _ in range(int(seconds)):
            self.now += 1
            for one in present:
                self.director.report(replace(one, heard=self.now), 0)
            self.director.tick()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(tmp_path, monkeypatch)


async def test_first_server_that_stood_still_takes_its_own_silence_for_nobody_elses(
    told: Told,
) -> None:
    """Else it ended all whose rows it has, with what they were told since the last copy."""
    first = server(0, range(512), epoch="e", copies=(kept("life-1", range(512, 1024)),))
    second = server(1, range(512, 1024), epoch="e")
    told.goes_on(5, first, second)
    told.now += LOST_SECONDS + 1
    told.director.report(replace(first, heard=told.now), 0)
    told.director.tick()
    assert not told.director.may_end("life-0"), "it has whom to give its rows to"
    told.goes_on(LEASE_SECONDS + 5, first, second)
    assert not told.file.read().ended
    assert not told.director.owners("life-1").gone

    told.goes_on(LOST_SECONDS + 1, first)
    assert told.file.read().ended == ("life-1",), "the second one is silent while the first isn't"


async def test_rows_of_a_new_epoch_go_on_from_a_copy_though_the_clock_was_put_back(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Their turns, which are of that clock, are not compared with those of superseded rows."""
    late, early = (np.full(BUCKETS, turn) for turn in (9, 5))
    first = server(0, range(BUCKETS), epoch="e", turns=late)
    told.goes_on(5, first)
    assert told.director.supersede()
    epoch = told.director.epoch
    second = server(1, range(512), epoch=epoch, turns=early)
    copy = kept("life-1", range(512), np.full(512, 5))
    first = server(0, range(512, BUCKETS), epoch=epoch, turns=early, copies=(copy,))
    told.goes_on(5, first, second)
    told.goes_on(LOST_SECONDS + 5, first)
    await asyncio.sleep(0)
    assert [one.kept.life for one in told.adoptions] == ["life-1"]
    assert "the rows of 512 buckets" in caplog.text
    # Noted before it is done: a worker that was told the number has rows from before it.
    assert told.numbers == [(1, 1)] and told.director.owners().adopted == 1


class Busy:
    """Servers that do what they are ordered, of which the first one's buckets are the busy ones."""

    def __init__(self, told: Told) -> None:
        self._told, self._done = told, 0
        self.held = {place: np.zeros(BUCKETS, dtype=np.int8) for place in range(3)}
        self.held[0][:512] = self.held[1][512:] = 1
        self._rates = np.where(np.arange(BUCKETS) < 512, 40.0, 1.0)

    async def go_on(self, seconds: int, *places: int) -> list[Move]:
        """Let these speak each second; return what was ordered."""
        before = self._done
        for _ in range(seconds):
            self._told.now += 1
            for place in places:
                held = self.held[place].copy()
                rates = np.where(held > 0, self._rates, 0.0)
                said = Server(
                    f"s{place}:1",
                    f"life-{place}",
                    held,
                    self._told.now,
                    epoch="e",
                    load=load(),
                    rates=rates,
                )
                self._told.director.report(said, 0)
            self._told.director.tick()
            for _ in range(3):
                await asyncio.sleep(0)
            for move in self._told.moves[self._done :]:
                gives, takes = (int(one.life[-1]) for one in (move.source, move.target))
                self.held[gives][list(move.buckets)] = 0
                self.held[takes][list(move.buckets)] = 1
            self._done = len(self._told.moves)
        return self._told.moves[before:]


async def test_buckets_that_a_busy_server_gave_stay_there_until_servers_come_or_go(
    told: Told,
) -> None:
    busy = Busy(told)
    moves = await busy.go_on(300, 0, 1)
    assert moves and {(one.source.life, one.target.life) for one in moves} == {("life-0", "life-1")}
    assert busy.held[0].sum() < 512, "it gave some away, and shares were not made even again"
    assert not await busy.go_on(300, 0, 1), "it comes to rest"
    await busy.go_on(40, 0, 1, 2)
    counts = [int(held.sum()) for held in busy.held.values()]
    assert sum(counts) == BUCKETS and counts[2] >= BUCKETS // 3, "a newcomer has its share"
