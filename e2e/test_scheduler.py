"""The scheduler does what a real Volcano was seen to do.

Ours on the embedded and on the real control plane, and, with VOLCANO_BIN, Volcano's own, so that
what was seen stays true.
"""

from __future__ import annotations

import asyncio

import pytest

from e2e.scheduler_player import play, scheduler
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.embedded_cluster.scheduler.volcano_scenario import load

SCENARIOS = load()
# In the order in which they come first.
CONFIGURATIONS = list(dict.fromkeys(scenario.configuration for scenario in SCENARIOS))


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=range(len(CONFIGURATIONS)))
def test_the_scheduler_does_what_volcano_was_seen_to_do(
    control_plane: ControlPlane, configuration: str, subtests: pytest.Subtests
) -> None:
    if control_plane.kept:
        pytest.skip("a cluster that is in use has a scheduler and nodes of its own")
    with scheduler(control_plane, configuration) as running:
        for scenario in SCENARIOS:
            if scenario.configuration == configuration:
                with subtests.test(scenario.name):
                    scenario.check(asyncio.run(play(control_plane, scenario, running)))
