"""reconcile(job, observed, now): how a job begins, and whose it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.pytorchjob.world import NOW, World, job_object
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.pytorchjob.action import (
    CreatePod,
    CreatePodGroup,
    PatchStatus,
    Requeue,
    Stage,
)
from volcano_elastic.pytorchjob.observed import Observed
from volcano_elastic.pytorchjob.reconcile import reconcile


def test_a_new_job_gets_its_podgroup_and_waits_for_the_planner() -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    world.admission_wait = timedelta(seconds=2)
    actions = world.reconcile()
    assert [type(a) for a in actions if a.stage is not Stage.TELL] == [PatchStatus, CreatePodGroup]
    assert Requeue(timedelta(seconds=2)) in actions
    world.admission_wait = timedelta(0)
    assert any(isinstance(a, CreatePod) for a in world.reconcile())


@pytest.mark.parametrize("policy", [None, {"min": 100_000, "max": 2**31 - 1}])
def test_a_huge_job_is_made_in_portions(policy: dict[str, Any] | None) -> None:
    world = World(job_object(elastic=policy, replicas=100_000), NOW)
    if policy:
        assert world.created(world.step()) == ["a-worker-0"]
    for so_far in (0, 2000):
        actions = world.reconcile()
        assert sum(isinstance(a, CreatePod) for a in actions) == 2000
        assert Requeue(timedelta(0)) in actions
        assert len(world.created(world.step())) == 2000
        assert len(world.pods) == so_far + 2000 + bool(policy)


def test_worker_0_comes_first_and_the_others_when_it_exists() -> None:
    world = World(job_object(elastic={"min": 3, "max": 4}), NOW)
    assert world.created(world.step()) == ["a-worker-0"]
    assert world.created(world.step()) == ["a-worker-1", "a-worker-2"]
    assert world.step() == []


def test_a_fixed_job_with_master_is_kubeflows() -> None:
    world = World(job_object(master=True, replicas=2), NOW)
    assert world.created(world.step()) == ["a-master-0", "a-worker-0", "a-worker-1"]
    env = {v["name"]: v.get("value") for v in world.env("a-worker-1")}
    assert (env["MASTER_ADDR"], env["RANK"], env["WORLD_SIZE"]) == ("a-master-0", "2", "3")
    assert env["PET_NNODES"] == "3"
    assert "PET_RDZV_BACKEND" not in env and "VOLCANO_ELASTIC_JOB" not in env
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 3
    world.settle()
    world.run_all()
    assert world.state == "Running"
    world.finish("a-worker-0")
    world.settle()
    assert world.state == "Running"
    world.finish("a-master-0")
    world.settle()
    assert world.state == "Succeeded"


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_pods_of_a_type_that_was_taken_out_go_and_decide_nothing(phase: str) -> None:
    world = World(job_object(master=True, restartPolicy="Never"), NOW)
    world.settle()
    world.run_all()
    world.settle()
    world.pods["a-worker-1"]["status"]["phase"] = phase
    del world.services["a-worker-1"]
    del world.job["spec"]["pytorchReplicaSpecs"]["Worker"]
    world.step()
    world.collect()
    world.settle()
    assert world.pods.keys() == world.services.keys() == {"a-master-0"}
    assert world.state == "Running"


def test_jobs_managed_by_others_or_being_deleted_are_left_alone() -> None:
    obj = job_object(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert reconcile(parse(obj), Observed(), NOW) == []
    obj = job_object()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert reconcile(parse(obj), Observed(), NOW) == []


def test_a_job_of_somebody_elses_manager_gets_nothing_at_all() -> None:
    job = job_object(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert reconcile(parse(job), Observed(), NOW) == []
