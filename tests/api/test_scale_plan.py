"""ScalePlans as they are read, and which of a job's counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic import assets
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.role import known
from volcano_elastic.api.scale_plan import (
    InvalidPlan,
    Phase,
    RolePlan,
    ScalePlan,
    counting,
    parse,
)

CRD = Path(__file__).parents[2] / "crds" / "policy.volcano-elastic.io_scaleplans.yaml"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def plan(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": "p", "namespace": "team", "creationTimestamp": "2026-01-01T12:00:00Z"}
    roles = {"Worker": {"replicas": 4, "resource": {"cpu": "1500m", "memory": "2Gi"}}}
    said = {"ownerJob": "resnet", "replicaResourceSpecs": roles} | spec
    return {"metadata": meta | ({} if labels is None else {"labels": labels}), "spec": said}


def problems(obj: dict[str, Any]) -> str:
    with pytest.raises(InvalidPlan) as caught:
        parse(obj)
    return str(caught.value)


def test_a_plan_is_a_persons_unless_its_label_says_auto() -> None:
    found = parse(plan(expireSeconds=60))
    assert found.roles == {"Worker": RolePlan(4, Cpu.cores(1.5), Bytes.gib(2))}
    assert (found.manual, found.job_key) == (True, "team/resnet")
    assert found.expires == NOW + timedelta(minutes=1)
    assert not parse(plan({"scale-type": "auto"})).manual
    assert parse(plan()).expires is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (plan({"scale-type": "sometimes"}), "must be auto or manual, found 'sometimes'"),
        (plan(ownerJob=""), "spec.ownerJob: must name a PyTorchJob"),
        (plan(replicaResourceSpecs={}), "spec.replicaResourceSpecs: must say something"),
        (plan(replicaResourceSpecs={"Evaluator": {"replicas": 1}}), "is no role; there are"),
        (plan(replicaResourceSpecs={"Worker": {"replicas": -1}}), "Worker.replicas: must be"),
        (plan(replicaResourceSpecs={"Worker": {"resource": {"cpu": "fast"}}}), "resource.cpu"),
        (plan(replicaResourceSpecs={"Worker": {"resource": {"cpu": 0}}}), "more than 0"),
        (plan(replicaResourceSpecs={"Worker": {"resource": {"memory": 0}}}), "at least 1Mi"),
        (plan(replicaResourceSpecs={"PS": {"resource": {"memory": 512}}}), "is its unit missing"),
        (plan(replicaResourceSpecs={"PS": {"resource": {"memory": "512m"}}}), "unit missing"),
        (plan(expireSeconds="soon"), "spec.expireSeconds: must be a number"),
        (plan(removePods=["a-worker-1"]), "spec.removePods: must be a list of objects with"),
        (plan(migratePods=[{"name": ""}]), "spec.migratePods: must be a list of objects with"),
        (plan(migratePods=[{"name": 3}]), "spec.migratePods: must be a list of objects with"),
        (plan(createPods=["a-worker-1"]), "spec.createPods: must be a list of objects with"),
        (
            plan(createPods=[{"name": "a"}], removePods=[{"name": "b"}]),
            "spec.createPods: can't stand beside removePods: say migratePods",
        ),
        ({"metadata": {}, "spec": None}, "spec.ownerJob"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field(wrong: dict[str, Any], said: str) -> None:
    assert said in problems(wrong)


@pytest.mark.parametrize("name", assets.schema(assets.SCALEPLANS, "spec")["properties"])
def test_every_field_of_the_schema_is_read(name: str) -> None:
    assert f"spec.{name}: must" in problems(plan(**{name: True}))


def test_pods_are_named_once_and_who_is_removed_is_not_made_anew() -> None:
    named = [{"name": "a-worker-1"}, {"name": "a-worker-2", "resource": {}}, {"name": "a-worker-1"}]
    found = parse(plan(removePods=named[:1], migratePods=named, replicaResourceSpecs={}))
    assert (found.remove, found.migrate) == (("a-worker-1",), ("a-worker-2",))


def test_dlrovers_fields_are_taken_and_what_is_not_carried_out_of_them_is_named() -> None:
    fields: dict[str, Any] = {"createPods": [{"name": "x"}], "psHosts": ["x:3333"]}
    found = parse(plan(**fields))
    assert found.not_carried_out.keys() == {"createPods", "psHosts"} and not found.made
    assert found.not_carried_out["createPods"].endswith("resnet-worker-NUMBER or resnet-ps-NUMBER")
    sized = {"name": "resnet-worker-5", "type": "worker", "resource": {"cpu": "4"}}
    found = parse(plan(createPods=[sized], replicaResourceSpecs={}))
    assert found.not_carried_out.keys() == {"createPods.resource"}
    assert found.made == {"Worker": 6}


def test_pods_that_are_made_by_name_say_how_many_there_are_and_take_none_away() -> None:
    named = [{"name": f"resnet-{name}"} for name in ("worker-4", "worker-2", "ps-1")]
    found = parse(plan(createPods=named, replicaResourceSpecs={}))
    assert found.made == {"Worker": 5, "PS": 2} and not found.not_carried_out
    assert [found.replicas("Worker", has) for has in (2, 5, 8)] == [5, 5, 8]
    assert (found.replicas("PS", 1), found.replicas("PS", 3)) == (2, 3)
    assert found.replicas("Master", 1) is None
    said = parse(plan(createPods=named))
    assert said.replicas("Worker", 8) == 4, "replicas count before it"
    for name in ("worker-04", "worker--1", "master-0", "worker-1000000", "worker-"):
        wrong = parse(plan(createPods=[*named, {"name": f"resnet-{name}"}]))
        assert not wrong.made and "createPods" in wrong.not_carried_out


@given(
    st.lists(
        st.builds(
            ScalePlan,
            st.sampled_from("abc"),
            st.just("team"),
            st.just("resnet"),
            manual=st.booleans(),
            created=st.integers(0, 9).map(lambda i: NOW + timedelta(minutes=i)),
            job_uid=st.sampled_from(["", "u1", "u2"]),
            over=st.booleans(),
        )
    )
)
def test_a_manual_plan_counts_before_an_auto_one_and_a_newer_before_an_older(
    plans: list[ScalePlan],
) -> None:
    found = counting(plans, "u1")
    rest = [p for p in plans if not p.over and p.job_uid != "u2"]
    assert (found is None) == (not rest)
    if found is None:
        return
    assert found in rest
    assert found.manual or not any(p.manual for p in rest)
    assert all(p.created <= found.created for p in rest if p.manual == found.manual)


def test_the_crd_names_the_roles_and_phases_that_there_are() -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    spec = schema["spec"]["properties"]
    (rule,) = spec["replicaResourceSpecs"]["x-kubernetes-validations"]
    assert all(f"'{role.name}'" in rule["rule"] for role in known())
    assert schema["status"]["properties"]["phase"]["enum"] == [str(phase) for phase in Phase]
