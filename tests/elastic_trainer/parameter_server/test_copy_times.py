"""How old a copy of a server's rows may be when that server is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from elastic_trainer.parameter_server import copying

from tests.elastic_trainer.parameter_server.servers import Direct
from tests.elastic_trainer.parameter_server.test_copying import Run
from tests.virtual_time import VirtualTimeLoop

EVERY, MESSAGE = 5.0, 0.3
"""Seconds between two copies, and that each message of one takes."""


@pytest.mark.parametrize("pushes", [True, False])
def test_copies_are_of_moments_so_many_seconds_apart_however_long_one_takes(
    pushes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[float] = []

    async def copy_for_a_minute() -> None:
        run, loop = Run(), asyncio.get_running_loop()
        run.pushes = pushes
        monkeypatch.setattr(copying, "time", SimpleNamespace(monotonic=loop.time))

        class Slow(Direct):
            async def Keep(self, request: Any, timeout: float | None = None) -> Any:  # noqa: N802
                if request.last:
                    moments.append(loop.time())
                await asyncio.sleep(MESSAGE)
                self._fails("Keep")
                return await self._answers.Keep(request, None)

        run.copier._stub = lambda _: Slow(run.keeper, run._at)
        for _ in range(10):
            run.push()
        copies = asyncio.create_task(run.copier.run(EVERY))
        await asyncio.sleep(60.0)
        copies.cancel()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(copy_for_a_minute())
    apart = [b - a for a, b in pairwise(moments)]
    # All rows come first; later copies have as many messages as much has changed.
    assert len(apart) == 11 and max(apart) <= EVERY + 3 * MESSAGE
