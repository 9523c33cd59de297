"""A role beside Master and Worker is one more row of api/role.py's table: a parameter server, which
an elastic job can't do without, and which neither trains nor counts in the size."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pytorchjob.world import NOW, World, job_object, values
from volcano_elastic.api import role
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.operator.convert import convert_job
from volcano_elastic.pytorchjob import action as a

PS = role.Role(name="PS", priority=2_000_000, vital=True, trains=False)


@pytest.fixture(autouse=True)
def third_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "ROLES", (*role.ROLES, PS))


def world(*, master: bool = False, servers: int = 2, **spec: Any) -> World:
    elastic = spec.pop("elastic", {"min": 2, "max": 4})
    obj = job_object(elastic=elastic, master=master, **spec)
    replica = obj["spec"]["pytorchReplicaSpecs"]["Worker"]
    obj["spec"]["pytorchReplicaSpecs"]["PS"] = replica | {"replicas": servers}
    found = World(obj, NOW)
    found.settle()
    return found


def test_its_pods_and_services_come_with_names_labels_and_priority() -> None:
    w = world()
    names = {"a-ps-0", "a-ps-1", "a-worker-0", "a-worker-1"}
    assert w.pods.keys() == w.services.keys() == names
    meta = w.pods["a-ps-1"]["metadata"]
    assert meta["labels"]["training.kubeflow.org/replica-type"] == "ps"
    assert meta["annotations"]["volcano.sh/task-spec"] == "ps"
    assert meta["annotations"]["volcano.sh/task-priority"] == "1999999"
    assert w.services["a-ps-1"]["spec"]["selector"] == {
        name: meta["labels"][name] for name in w.services["a-ps-1"]["spec"]["selector"]
    }


def test_it_joins_the_gang_and_may_not_be_evicted() -> None:
    w = world(master=True)
    assert w.podgroup is not None
    assert w.podgroup["spec"]["minMember"] == 2 + 1 + 2
    assert w.podgroup["spec"]["minResources"]["nvidia.com/gpu"] == "5"
    w.grow(4)
    assert [n for n in sorted(w.pods) if w.protected(n)] == [
        "a-master-0",
        "a-ps-0",
        "a-ps-1",
        "a-worker-0",
        "a-worker-1",
    ]


def test_a_role_that_does_not_train_is_no_node_of_torchruns_world() -> None:
    w = world(master=True)
    assert values(w, "a-worker-1")["PET_NNODES"] == "3:5"
    assert values(w, "a-worker-1")["RANK"] == "2"
    assert "RANK" not in values(w, "a-ps-0")
    fixed = world(master=True, elastic=None)
    assert values(fixed, "a-worker-0")["PET_NNODES"] == "3"
    assert values(fixed, "a-worker-0")["WORLD_SIZE"] == "3"
    waits = [name for name in fixed.pods if "initContainers" in fixed.pods[name]["spec"]]
    assert waits == ["a-worker-0", "a-worker-1"]


def test_its_pods_are_counted_in_the_status_and_not_in_the_size() -> None:
    w = world()
    w.run_all()
    assert w.status["replicaStatuses"]["PS"]["active"] == 2
    assert "replica-type=ps" in w.status["replicaStatuses"]["PS"]["selector"]
    assert (w.status["elastic"]["desired"], w.status["elastic"]["ready"]) == (2, 2)


def test_the_job_runs_only_while_all_of_a_vital_role_do() -> None:
    w = world()
    for name in ("a-worker-0", "a-worker-1", "a-ps-0"):
        w.run(name)
    w.settle()
    assert w.state == "Created"
    w.run("a-ps-1")
    w.settle()
    assert w.state == "Running"


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_one_that_fails_for_good_fails_the_job(elastic: dict[str, Any] | None) -> None:
    w = world(elastic=elastic, restartPolicy="Never")
    w.run_all()
    w.fail("a-ps-1")
    w.settle()
    assert w.state == "Failed"
    (message,) = [c["message"] for c in w.status["conditions"] if c["type"] == "Failed"]
    assert "1 PS replica(s) failed. a-ps-1 (exit code 1)" in message


def test_one_that_may_restart_is_made_again_at_its_index() -> None:
    w = world()
    w.run_all()
    w.fail("a-ps-1")
    actions = w.step()
    assert w.created(actions) == ["a-ps-1"]
    assert w.state == "Restarting"


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_the_job_succeeds_without_it(elastic: dict[str, Any] | None) -> None:
    w = world(elastic=elastic)
    w.run_all()
    w.finish("a-ps-0")
    w.finish("a-ps-1")
    w.settle()
    assert not w.ended
    w.finish("a-worker-0")
    w.finish("a-worker-1")
    w.settle()
    assert w.state == "Succeeded"


def test_its_replicas_have_the_tables_default_and_bounds() -> None:
    obj = job_object(elastic={"min": 1, "max": 2})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = {"template": replicas["Worker"]["template"]}
    found = World(obj, NOW)
    found.settle()
    assert "a-ps-0" in found.pods and "a-ps-1" not in found.pods
    replicas["PS"]["replicas"] = 0
    (problem,) = validate(obj)
    assert str(problem).startswith("spec.pytorchReplicaSpecs[PS].replicas")
    replicas["Chief"] = replicas.pop("PS")
    (problem,) = validate(obj)
    assert '"PS", "Master", "Worker"' in str(problem)


def test_the_planner_does_not_size_a_job_with_pods_that_it_cannot_foresee() -> None:
    from volcano_elastic.api.pytorchjob import parse

    w = world()
    seen = convert_job(parse(w.job), succeeded=0, priority=0, podgroup=None)
    assert seen.unmodelled == "PS pods"


def test_taking_the_role_out_takes_its_pods_away() -> None:
    w = world()
    w.run_all()
    del w.job["spec"]["pytorchReplicaSpecs"]["PS"]
    going = [x.name for x in w.step() if isinstance(x, a.DeletePod)]
    assert going == ["a-ps-0", "a-ps-1"]
