"""What a real Volcano was seen to do, the scheduler does: ours on the embedded and on the real
control plane, and, with VOLCANO_BIN, Volcano's own, so that what was seen stays true."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from e2e.control_plane import ControlPlane
from e2e.scheduler_player import Player, scheduler
from tests.volcano_scenario import Scenario, Snapshot, load

SCENARIOS = sorted(load(), key=lambda scenario: scenario.configuration)
CONFIGURATIONS = [key for key, _ in itertools.groupby(SCENARIOS, lambda s: s.configuration)]


@pytest.fixture(scope="module", params=CONFIGURATIONS, ids=range(len(CONFIGURATIONS)))
def scheduling(
    request: pytest.FixtureRequest, control_plane: ControlPlane
) -> Iterator[tuple[ControlPlane, str]]:
    if control_plane.kept:
        pytest.skip("a cluster that is in use has a scheduler and nodes of its own")
    with scheduler(control_plane, request.param):
        yield control_plane, request.param


def test_the_scheduler_does_what_volcano_was_seen_to_do(
    scheduling: tuple[ControlPlane, str], subtests: pytest.Subtests
) -> None:
    plane, configuration = scheduling
    for scenario in SCENARIOS:
        if scenario.configuration == configuration:
            with subtests.test(scenario.name):
                scenario.check(asyncio.run(_play(plane, scenario)))


async def _play(plane: ControlPlane, scenario: Scenario) -> list[Snapshot]:
    async with plane.client() as client:
        return await Player(client, scenario).play()
