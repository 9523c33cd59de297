"""A further role is a further row of the table: pods, gang, size, status and refusals follow from
what the row says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pytorchjob.world import NOW, World, job_object, values
from volcano_elastic.api import role
from volcano_elastic.api.pytorchjob_validation import validate


@pytest.fixture(autouse=True)
def evaluator(monkeypatch: pytest.MonkeyPatch) -> role.Role:
    """A pod that evaluates what the others train, below all workers, and at most two of them."""
    found = role.Role(name="Evaluator", priority=-1, trains=False, grace=7, most_replicas=2)
    monkeypatch.setattr(role, "ROLES", (*role.ROLES, found))
    return found


def manifest(**spec: Any) -> dict[str, Any]:
    obj = job_object(elastic={"min": 2, "max": 4}, master=True, **spec)
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["Evaluator"] = {"template": replicas["Worker"]["template"]}
    return obj


@pytest.fixture
def world() -> World:
    found = World(manifest(), NOW)
    found.settle()
    return found


def test_its_pods_and_services_are_made_as_its_row_says(world: World) -> None:
    meta, spec = (world.pods["a-evaluator-0"][part] for part in ("metadata", "spec"))
    assert "a-evaluator-0" in world.services
    assert meta["labels"]["training.kubeflow.org/replica-type"] == "evaluator"
    assert meta["annotations"]["volcano.sh/task-spec"] == "evaluator"
    assert spec["terminationGracePeriodSeconds"] == 7
    assert "initContainers" not in spec, "it waits for nobody"


def test_the_gang_has_it_beside_the_minimum(world: World) -> None:
    assert world.podgroup is not None
    gang = world.podgroup["spec"]
    assert (gang["minMember"], gang["minResources"]["nvidia.com/gpu"]) == (1 + 2 + 1, "4")
    assert gang["minTaskMember"] == {"master": 1, "worker": 2, "evaluator": 1}
    world.grow(4)
    kept = {name for name in world.pods if world.protected(name)}
    assert kept == {"a-master-0", "a-worker-0", "a-worker-1", "a-evaluator-0"}


def test_neither_size_nor_torchruns_world_counts_it(world: World) -> None:
    world.grow(4)
    world.run_all()
    assert values(world, "a-worker-0")["PET_NNODES"] == "3:5"
    assert "RANK" not in values(world, "a-evaluator-0")
    assert world.status["replicaStatuses"]["Evaluator"]["active"] == 1
    assert world.status["elastic"]["ready"] == 4


def test_the_job_goes_on_without_it_as_it_is_not_vital(world: World) -> None:
    world.run_all()
    world.finish("a-evaluator-0")
    world.settle()
    assert not world.ended
    for name in ("a-master-0", "a-worker-0", "a-worker-1"):
        world.finish(name)
    world.settle()
    assert world.state == "Succeeded"


def test_what_its_row_does_not_allow_is_refused_by_name() -> None:
    obj = manifest()
    obj["spec"]["pytorchReplicaSpecs"]["Evaluator"]["replicas"] = 3
    (problem,) = validate(obj)
    assert str(problem).startswith("spec.pytorchReplicaSpecs[Evaluator].replicas")
    assert str(problem).endswith("must be at most 2")
