"""The pure session does what a real Volcano was seen to do.

e2e/test_scheduler.py plays the same on processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.embedded_cluster.scheduler import volcano_scenario
from tests.embedded_cluster.scheduler.volcano_scenario import Scenario, Snapshot
from tests.embedded_cluster.scheduler.world import Cluster, configuration

SCENARIOS = volcano_scenario.load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_it_ends_as_volcano_ended(scenario: Scenario) -> None:
    scenario.check(play(scenario))


def play(scenario: Scenario) -> list[Snapshot]:
    c = Cluster(configuration(scenario.configuration), classes=dict(scenario.priorities))
    for name, gpus in scenario.nodes.items():
        c.node(name, gpus)
    for name, spec in scenario.queues.items():
        c.queue(name, **spec)
    c.settle()
    gangs: dict[str, Mapping[str, Any]] = {}
    made: list[str] = []
    seen: list[Snapshot] = []
    for step in scenario.steps:
        match step:
            case {"gang": gang}:
                gangs[gang["name"]] = gang
                c.add_podgroup(volcano_scenario.podgroup("default", gang))
                made += c.add_pods(volcano_scenario.pods("default", gang))
            case {"add_pods": {"gang": name, "indexes": indexes}}:
                made += c.add_pods(volcano_scenario.pods("default", gangs[name], indexes))
            case {"delete_pod": name}:
                del c.pods[f"default/{name}"]
            case {"patch_podgroup": {"name": name, "spec": spec}}:
                c.podgroups[f"default/{name}"]["spec"] |= spec
            case {"patch_queue": {"name": name, "status": status}}:
                c.queues[name]["status"] |= status
            case {"sleep": _}:
                c.now += volcano_scenario.duration(step)
            case {"snapshot": at}:
                c.settle()
                seen.append(
                    volcano_scenario.snapshot(
                        at,
                        made=made,
                        pods=c.pods.values(),
                        podgroups=c.podgroups.values(),
                        queues=c.queues.values(),
                        evicted=[one.replace(" by ", " ") for one in c.evicted],
                    )
                )
            case _:
                pytest.fail(f"no such step: {step}")
    return seen
