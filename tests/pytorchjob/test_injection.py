"""A job that asks for the trainer gets it beside its image, and what to do without it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.pytorchjob.world import NOW, World, job_object, merged
from volcano_elastic.api.pytorchjob import BACKEND, TORCHRUN, parse
from volcano_elastic.api.pytorchjob_warning import warn
from volcano_elastic.pytorchjob import rendezvous
from volcano_elastic.pytorchjob.settings import DEFAULTS

Object = dict[str, Any]
ASKS = "volcano-elastic.io/inject-trainer"


def job(value: str | None = "true", **policy: Any) -> Object:
    found = job_object(elastic={"min": 1, "max": 4} | policy)
    found["kind"] = "PyTorchJob"
    if value is not None:
        found["metadata"]["annotations"] = {ASKS: value}
    return found


def settled(obj: Object, **settings: Any) -> World:
    world = World(obj, NOW)
    world.settings = replace(DEFAULTS, **settings)
    world.settle()
    return world


def variables(pod: Object) -> dict[str, str]:
    env = pod["spec"]["containers"][0]["env"]
    return {v["name"]: v["value"] for v in env if "value" in v}


def test_the_trainer_is_copied_into_a_volume_where_python_finds_it() -> None:
    pod = settled(job(), trainer_image="trainer:1", trainer_folder="/opt/t").pods["a-worker-0"]
    (copies,) = pod["spec"]["initContainers"]
    assert (copies["image"], copies["command"]) == (
        "trainer:1",
        ["cp", "-r", "/opt/t/.", "/volcano-elastic"],
    )
    (volume,) = pod["spec"]["volumes"]
    (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
    assert volume == {"name": mount["name"], "emptyDir": {}} and mount["readOnly"]
    assert copies["volumeMounts"] == [{k: v for k, v in mount.items() if k != "readOnly"}]
    assert variables(pod)["PYTHONPATH"] == "/volcano-elastic/start"
    assert variables(pod)["PET_RDZV_BACKEND"] == BACKEND


def test_what_torchrun_is_told_instead_is_what_it_would_have_been_told() -> None:
    injected, plain = settled(job()).pods, settled(job(None)).pods
    for name, pod in injected.items():
        told = variables(pod)
        for key, value in json.loads(told["VOLCANO_ELASTIC_INSTEAD"]).items():
            told.pop(key, None)
            if value is not None:
                told[key] = value
        expected = variables(plain[name])
        assert {k: v for k, v in told.items() if k in expected or k.startswith("PET_")} == expected
        assert expected["PET_RDZV_BACKEND"] == TORCHRUN


def test_the_annotation_may_name_the_image_and_a_path_of_the_job_is_kept() -> None:
    obj = job("mine:2")
    container = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "PYTHONPATH", "value": "/app"}]
    pod = settled(obj).pods["a-worker-0"]
    assert pod["spec"]["initContainers"][0]["image"] == "mine:2"
    assert variables(pod)["PYTHONPATH"] == "/volcano-elastic/start:$(PYTHONPATH)"


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        ("false", {}),
        (None, {}),
        ("true", {"rdzvBackend": "etcd", "rdzvHost": "etcd"}),
        ("true", {"rdzvHost": "elsewhere"}),
        ("true", {"standalone": True}),
    ],
)
def test_nothing_is_injected_where_it_is_not_asked_for_or_they_meet_elsewhere(
    value: str | None, policy: Object
) -> None:
    pod = settled(job(value, **policy)).pods["a-worker-0"]
    assert "initContainers" not in pod["spec"] and "PYTHONPATH" not in variables(pod)
    assert "VOLCANO_ELASTIC_INSTEAD" not in variables(pod)


def test_a_fixed_job_and_a_useless_wish_are_said() -> None:
    fixed = job()
    del fixed["spec"]["elasticPolicy"]
    said = f"annotation {ASKS} has no effect"
    assert any(said in line for line in warn(fixed))
    assert any(said in line for line in warn(job(rdzvHost="elsewhere")))
    assert not any(said in line for line in [*warn(job()), *warn(job(None))])


def test_running_pods_go_on_as_they_were_made() -> None:
    world = settled(job())
    world.run_all()
    without = copy.deepcopy(world.job)
    without["metadata"]["annotations"] = {}
    pod = world.pods["a-worker-0"]
    found = rendezvous.in_force(parse(without), pod)
    assert found.job.elastic is not None and found.job.elastic.injected
    assert found.differs == (
        f"metadata.annotations[{ASKS}]: false is asked for, and true is in force",
    )
    assert rendezvous.in_force(parse(world.job), pod).differs == ()
    plain = settled(job(None))
    plain.run_all()
    late = rendezvous.in_force(parse(merged(plain.job, job())), plain.pods["a-worker-0"])
    assert late.job.elastic is not None and not late.job.elastic.injected
    assert late.job.elastic.rdzv_backend == TORCHRUN and len(late.differs) == 1
    (problem,) = rendezvous.problems(parse(plain.job), parse(merged(plain.job, job())))
    assert problem.path == f"metadata.annotations[{ASKS}]"
