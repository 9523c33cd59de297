"""Other controllers on our jobs: noticed, said, and never a fight over pods."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pytorchjob.world import World, active, job_object
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.operator.convert import convert_job, read_job
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.coexistence import left_alone, missing_fields
from volcano_elastic.pytorchjob.guard import refuse

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CRD = Path(__file__).parents[2] / "crds" / "kubeflow.org_pytorchjobs.yaml"


def wrote(world: World, manager: str, seconds: float = 0, subresource: str = "status") -> None:
    """Somebody wrote the job, `seconds` from now."""
    meta = world.job["metadata"]
    time = (world.now + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {"manager": manager, "subresource": subresource, "time": time, "operation": "Update"}
    kept = [e for e in meta.get("managedFields", []) if e["manager"] != manager]
    meta["managedFields"] = [*kept, entry]


def ours(low: int = 2, high: int = 4, **spec: Any) -> World:
    world = World(job_object(elastic={"min": low, "max": high}, **spec), NOW)
    world.settle()
    world.run_all()
    wrote(world, "volcano-elastic")
    world.now += timedelta(minutes=1)
    return world


@pytest.mark.parametrize("manager", ["training-operator", "manager"])
def test_a_job_that_training_operator_writes_too_is_left_alone_and_that_is_said(
    manager: str,
) -> None:
    world = ours()
    wrote(world, manager)
    world.remove("a-worker-1")  # it deletes pods of ours
    actions = world.step()
    assert {type(x) for x in actions} == {a.PatchStatus, a.EmitEvent}
    (warning,) = [x for x in actions if isinstance(x, a.EmitEvent)]
    assert (warning.reason, warning.warning, warning.deduplicated) == (
        "ForeignController",
        True,
        True,
    )
    assert f"field manager {manager}" in warning.message
    assert "volcano-elastic.io/adopt=true" in warning.message
    assert world.status["elastic"]["message"] == warning.message
    assert world.status["elastic"]["desired"] == 2, "the memory of its size stays"
    # Saying so was a write of ours, later than the other's.
    wrote(world, "volcano-elastic", seconds=1)
    world.now += timedelta(days=1)
    assert not active(world.reconcile())
    assert left_alone(parse(world.job)), "nothing is planned for it either"


def test_a_wrong_job_of_training_operators_is_not_failed_by_us_too() -> None:
    world = World(job_object(elastic={"min": 4, "max": 2}), NOW)
    world.job["status"] = {"conditions": [{"type": "Created", "status": "False"}]}
    wrote(world, "training-operator")

    def refused() -> list[a.Action]:
        return refuse(world.job, validate(world.job), (), world.now)

    (event, _) = refused()
    assert isinstance(event, a.EmitEvent) and event.reason == "ForeignController"
    # It has gone, and five minutes later the job is ours to judge.
    world.now += timedelta(minutes=6)
    world.apply(refused())
    assert world.state == "Failed"
    # Both wrote: nobody touches the other's conditions again.
    wrote(world, "volcano-elastic", seconds=-60)
    wrote(world, "training-operator")
    before = world.status["conditions"]
    world.apply(refused())
    assert world.status["conditions"] == before
    assert world.status["elastic"]["message"].startswith("Left alone: training-operator")
    assert not active(refused())


def test_a_job_that_is_given_back_goes_on() -> None:
    world = ours()
    wrote(world, "manager")
    world.remove("a-worker-1")
    world.settle()
    world.job["metadata"]["annotations"] = {"volcano-elastic.io/adopt": "true"}
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]
    assert not left_alone(parse(world.job))
    assert "message" not in world.status["elastic"], "what it said is no longer true"
    wrote(world, "volcano-elastic")
    # The annotation may go again: only another write of the other's would matter.
    world.job["metadata"]["annotations"] = {}
    world.remove("a-worker-1")
    wrote(world, "volcano-elastic", seconds=1)
    world.settle()
    assert len(world.live()) == 2
    wrote(world, "manager", seconds=2)
    assert world.events(world.reconcile())["ForeignController"]


def test_a_new_job_that_training_operator_saw_first_waits_for_its_silence() -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    wrote(world, "training-operator")
    waits = world.step()
    assert not active(waits) and a.Requeue(timedelta(minutes=5)) in waits
    assert left_alone(parse(world.job))
    world.now += timedelta(minutes=5)
    world.settle()
    assert len(world.live()) == 2, "it has gone: the job is ours"


def test_a_swap_of_operators_takes_running_jobs_over_with_all_their_pods() -> None:
    world = World(job_object(elastic={"min": 1, "max": 4}, replicas=3), NOW)
    for index in range(3):
        world.seed(index, "running")
    wrote(world, "training-operator", seconds=-3600)
    world.settle()
    assert len(world.live()) == 3
    assert world.status["elastic"]["desired"] == 3


def test_a_pod_that_training_operator_made_is_noticed() -> None:
    world = ours()
    owner = {"f:metadata": {"f:ownerReferences": {}}}
    entry = {"manager": "manager", "time": "2026-01-01T12:00:30Z", "fieldsV1": owner}
    world.pods["a-worker-1"]["metadata"]["managedFields"] = [entry]
    assert world.events(world.reconcile())["ForeignController"]


def test_others_that_write_other_things_do_not_coexist() -> None:
    world = ours()
    wrote(world, "manager", subresource="")  # Kueue and others are called that too
    wrote(world, "kubectl", subresource="status")
    labels = {"f:metadata": {"f:labels": {}}}
    entry = {"manager": "manager", "time": "2026-01-01T12:00:30Z", "fieldsV1": labels}
    world.pods["a-worker-1"]["metadata"]["managedFields"] = [entry]
    assert not active(world.reconcile())
    assert not world.events(world.reconcile())


# Kueue


def test_a_job_that_kueue_admitted_keeps_exactly_its_replicas() -> None:
    job = job_object(elastic={"min": 1, "max": 8}, replicas=3)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    world = World(job, NOW)
    world.settle()
    assert len(world.live()) == 3
    world.run_all()
    world.resize = world.resize_to(3, 8)
    world.settle()
    assert len(world.live()) == 3 and world.status["elastic"]["desired"] == 3
    world.now += timedelta(seconds=5)
    world.leaving("a-worker-2", evicted=True)
    world.settle()
    assert len(world.live()) == 3, "it comes back: Kueue counts on it"
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    assert "ScaleIgnored" not in world.events(world.settle())
    assert len(world.live()) == 2


def test_to_the_planner_a_job_that_kueue_admitted_is_of_fixed_size() -> None:
    job = job_object(elastic={"min": 1, "max": 8}, replicas=3)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    parsed = read_job(job)
    assert parsed is not None
    view = convert_job(parsed, succeeded=0, priority=0, podgroup=None)
    assert (view.min, view.desired, view.max, view.elastic) == (3, 3, 3, False)


def test_to_the_planner_a_job_that_is_left_alone_is_no_job() -> None:
    world = ours()
    assert read_job(world.job) is not None
    wrote(world, "manager")
    assert read_job(world.job) is None


# The served schema


def crd() -> Any:
    return yaml.safe_load(CRD.read_text())


def test_our_crd_lacks_nothing() -> None:
    assert missing_fields(crd()) == []


def test_a_crd_of_an_earlier_version_is_noticed_whatever_it_lacks() -> None:
    # What it drops, the operator would write anew for ever.
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    memory = schema["status"]["properties"]["elastic"]["properties"]
    assert len(memory) >= 10
    for name in memory:
        found = crd()
        status = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        del status["properties"]["elastic"]["properties"][name]
        assert missing_fields(found) == [f"status.elastic.{name}"]


def test_kubeflows_crd_over_ours_is_noticed() -> None:
    found = crd()
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"]["elastic"]
    for name in ("min", "max", "nodeUnit", "cooldownSeconds", "scaler", "coordinator"):
        del schema["spec"]["properties"]["elasticPolicy"]["properties"][name]
    lacking = missing_fields(found)
    assert "spec.elasticPolicy.min" in lacking and "status.elastic.desired" in lacking
    assert "spec.elasticPolicy.minReplicas" not in lacking


@pytest.mark.parametrize("broken", ["no status subresource", "not served", "open schema"])
def test_what_else_a_crd_may_lack(broken: str) -> None:
    found = copy.deepcopy(crd())
    (version,) = found["spec"]["versions"]
    if broken == "no status subresource":
        del version["subresources"]["status"]
        assert missing_fields(found) == ["the status subresource"]
    elif broken == "not served":
        version["served"] = False
        assert missing_fields(found) == ["version v1"]
    else:
        schema = version["schema"]
        schema["openAPIV3Schema"] = {"x-kubernetes-preserve-unknown-fields": True}
        assert missing_fields(found) == []
