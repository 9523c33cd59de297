"""A new worker 0 asks for no round that would be one beside the others'."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.succession import Hooks, Succession
from elastic_trainer.protocol.message import Heartbeat

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.agent.identity import alone


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[Succession]:
    """The succession of worker 0's agent, whose only peer has ended."""
    port = free_endpoint()
    peers = (("127.0.0.1", free_endpoint()),)
    identity = replace(alone(port, 30.0), dedicated=False, peers=peers)
    hooks = Hooks(
        connected=lambda: True,
        ended_by=lambda: None,
        address=lambda: "127.0.0.1",
        dial_anew=lambda to: None,
        dialled=lambda: ("127.0.0.1", port),
        tell=lambda message: None,
        stays=lambda: True,
    )
    place = Succession(identity, CoordinatorProcess(identity), hooks)
    await place.serve()
    watch = asyncio.ensure_future(place.watch())
    try:
        yield place
    finally:
        watch.cancel()
        await place.close(failures_seconds=0.0, end_seconds=0.0)


def waits(place: Succession) -> bool:
    return place.unheard_seconds(time.monotonic()) > 0.0


async def has_asked(place: Succession) -> None:
    for _ in range(3000):
        if not waits(place):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it waits without end")


async def test_it_asks_again_once_its_coordinator_was_lost_before_the_first_round() -> None:
    """Others may have told that one of a round, and elect another now; the next knows nothing."""
    async with watching() as place:
        assert waits(place)
        await has_asked(place)
        place.lost()
        assert not waits(place), "it has only not begun yet"
        place.heard(Heartbeat())
        place.lost()
        assert waits(place)
        await has_asked(place)
