"""A job's cost: each call to the API server counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.operation_count import operations
from tests.pytorchjob.world import METRICS, NOW, World, active, begin, job_object, running
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.reconcile import reconcile


def test_nothing_is_asked_of_the_api_server_while_nothing_changes() -> None:
    for world in (running(2, policy={"metrics": METRICS}), running(master=True)):
        world.now += timedelta(hours=1)
        assert not active(world.reconcile())


def test_counts_of_a_burst_are_told_once_a_second() -> None:
    world = begin(4, 8)
    world.now += timedelta(seconds=5)
    world.run("a-worker-0")
    assert any(isinstance(x, a.PatchStatus) for x in world.step())
    world.run("a-worker-1")
    waits = world.step()
    assert not active(waits) and a.Requeue(timedelta(seconds=1)) in waits
    world.now += timedelta(seconds=1)
    world.step()
    assert world.status["elastic"]["ready"] == 2
    world.run("a-worker-2")
    world.run("a-worker-3")
    world.step()
    assert (world.state, world.status["elastic"]["ready"]) == ("Running", 4), "the last at once"


def test_a_thousand_replicas_cost_one_call_a_pod_one_a_service_and_a_few_more() -> None:
    world = World(job_object(elastic={"min": 1000, "max": 1000}), NOW)
    calls = [x for x in world.settle() if not isinstance(x, a.Requeue)]
    kinds = {kind: sum(type(x) is kind for x in calls) for kind in {type(x) for x in calls}}
    assert kinds[a.CreatePod] == kinds[a.CreateService] == 1000
    assert len(calls) - 2000 <= 12, kinds


@pytest.mark.parametrize("elastic", [True, False])
def test_a_reconcile_costs_a_few_operations_a_replica(elastic: bool) -> None:
    policy = {"min": 1000, "max": 1000} if elastic else None
    world = World(job_object(elastic=policy, replicas=1000), NOW)
    world.step()
    wanted, observed = parse(world.job), world.observed()
    spent = operations(lambda: reconcile(wanted, observed, world.now, world.settings))
    world.apply(world.reconcile())
    assert len(world.pods) == 1000
    # A copy of the template for each pod would take some four hundred more.
    assert spent < 300 * 1000
