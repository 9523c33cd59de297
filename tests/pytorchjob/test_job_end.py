"""The end of a job, and its suspension: what goes, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pytorchjob.world import begin, conditions, running
from volcano_elastic.pytorchjob.action import (
    DeleteJob,
    Requeue,
)


def test_any_worker_that_succeeds_ends_an_elastic_job() -> None:
    world = begin(2)
    world.grow(4)
    for name in ("a-worker-0", "a-worker-1", "a-worker-2"):
        world.run(name)
    world.settle()
    world.finish("a-worker-2")
    world.settle()
    assert world.state == "Succeeded"
    # the pending one would never contribute; the running ones may finish by themselves
    assert "a-worker-3" not in world.live()
    assert {"a-worker-0", "a-worker-1"} <= set(world.live())
    assert world.podgroup is not None
    world.finish("a-worker-0")
    world.now += timedelta(seconds=30)
    world.settle()
    world.collect()
    world.settle()
    assert world.live() == [] and world.podgroup is None
    assert set(world.pods) == {"a-worker-0", "a-worker-2"}  # their logs remain
    assert world.status["completionTime"]


@pytest.mark.parametrize(
    ("policy", "left"),
    [("Running", {"a-worker-1"}), ("All", set())],
)
def test_clean_pod_policy(policy: str, left: set[str]) -> None:
    world = begin(2, runPolicy={"cleanPodPolicy": policy})
    world.run_all()
    world.finish("a-worker-1")
    world.settle()
    world.collect()
    world.settle()
    assert set(world.pods) == left
    assert world.services == {} and world.podgroup is None


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    world = begin(2, runPolicy={"ttlSecondsAfterFinished": 100})
    world.run_all()
    world.finish("a-worker-1")
    world.settle()
    assert Requeue(timedelta(seconds=100)) in world.reconcile()
    world.now += timedelta(seconds=100)
    assert DeleteJob() in world.reconcile()


def test_a_job_that_ended_without_completion_time_is_deleted_after_its_time_to_live_too() -> None:
    """Kubeflow's operator leaves one so that an exit code below 128 ended."""
    world = begin(2, runPolicy={"ttlSecondsAfterFinished": 100})
    world.run_all()
    world.finish("a-worker-1")
    world.settle()
    del world.status["completionTime"]
    world.now += timedelta(seconds=60)
    assert Requeue(timedelta(seconds=40)) in world.reconcile()
    world.now += timedelta(seconds=40)
    assert DeleteJob() in world.reconcile()


def test_suspending_takes_all_away_and_resuming_brings_the_minimum() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.settle()
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    world.collect()
    world.settle()
    assert (world.pods, world.services, world.podgroup) == ({}, {}, None)
    assert world.state == "Suspended"
    world.job["spec"]["runPolicy"] = {"suspend": False}
    world.now += timedelta(seconds=30)
    world.settle()
    assert len(world.live()) == 2
    assert world.status["startTime"] == "2026-01-01T12:00:30Z"


def test_a_job_created_suspended_has_no_start_time_until_it_runs() -> None:
    world = begin(runPolicy={"suspend": True})
    assert conditions(world) == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert world.status["conditions"][-1]["message"] == "PyTorchJob a is suspended."
    assert "startTime" not in world.status and not world.pods
    world.job["spec"]["runPolicy"]["suspend"] = False
    world.now += timedelta(minutes=1)
    world.settle()
    assert conditions(world)[-1] == ("Suspended", "False", "PyTorchJobResumed")
    assert world.status["conditions"][-1]["message"] == "PyTorchJob a is resumed."
    assert world.status["startTime"] == "2026-01-01T12:01:00Z"


def test_suspending_keeps_names_and_gang_until_the_last_checkpoint_is_written() -> None:
    world = running(2)
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.live() == [] and len(world.services) == 2 and world.podgroup is not None
    assert world.status["replicaStatuses"]["Worker"]["active"] == 0
    world.collect()
    told = world.events(world.settle())
    assert (world.services, world.podgroup) == ({}, None)
    assert told["JobTerminated"] == "Job has been terminated. Deleting PodGroup"
    assert told["SuccessfulDeletePodGroup"] == "Deleted PodGroup: a"
