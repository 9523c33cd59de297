"""The first server orders nothing, and ends nobody, for reasons of its own."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
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

from tests.elastic_trainer.parameter_server.test_placement import kept, server


class Told:
    """A director, what it orders, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=time.time_ns)
        monkeypatch.setattr(director, "time", clock)
        self.file = EpochFile(str(folder))
        self.director = Director(lambda _: None, self._order, self._adopt, self.file)

    async def _order(self, move: Move, turn: int, epoch: str) -> bool:
        return False

    async def _adopt(self, adoption: Adoption, turn: int, epoch: str) -> bool:
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
