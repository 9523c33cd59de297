"""The CRDs' schemas, which validation goes by: API server and operator refuse the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embedded_cluster.apiserver import cel
from embedded_cluster.apiserver import schema as apiserver_schema
from tests.examples import examples
from volcano_elastic import assets
from volcano_elastic.api import queue_policy, scale_plan
from volcano_elastic.api.field_reader import FieldReader
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.api.shape import (
    Amount,
    Fields,
    Flag,
    Integer,
    Items,
    Named,
    Text,
    defaults,
    from_schema,
    part,
    replaced,
)

Object = dict[str, Any]
_SIZE = {"type": "integer", "minimum": 1}
_JOB = assets.schema(assets.PYTORCHJOBS, "spec")["properties"]
_AMOUNT = {"x-kubernetes-int-or-string": True}


def _job(**spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
    replicas = {"Worker": {"replicas": 2, "template": template}}
    return {"metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": replicas} | spec}


@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        ({"type": "integer"}, Integer(-(2**31), 2**31 - 1)),
        ({"type": "integer", "format": "int64", "minimum": 0}, Integer(0, 2**63 - 1)),
        ({"type": "integer", "minimum": 1, "maximum": 9}, Integer(1, 9)),
        ({"type": "string"}, Text()),
        ({"type": "string", "enum": ["a", "b"], "maxLength": 63}, Text(("a", "b"), 63)),
        ({"type": "boolean"}, Flag()),
        (_AMOUNT, Amount(fractions=False)),
        ({"type": "array", "items": _SIZE}, Items(Integer(1))),
        ({"type": "object", "additionalProperties": _AMOUNT}, Named(Amount(fractions=False))),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, Fields({}, open=True)),
        (
            {"type": "object", "required": ["a"], "properties": {"a": _SIZE}},
            Fields({"a": Integer(1)}, required=("a",)),
        ),
    ],
)
def test_a_schema_says_what_a_field_may_hold(schema: Object, shape: object) -> None:
    assert from_schema(schema) == shape


def test_a_type_that_no_shape_stands_for_is_refused() -> None:
    with pytest.raises(ValueError, match="'number'"):
        from_schema({"type": "number"})


def test_parts_are_found_and_replaced_by_their_paths() -> None:
    inner = Fields({"a": Text(), "b": Flag()})
    whole = Fields({"roles": Named(inner)})
    assert part(whole, "roles", "*") == inner
    new = replaced(whole, ("roles", "*", "a"), Text(("x",)))
    assert part(new, "roles", "*") == Fields({"a": Text(("x",)), "b": Flag()})
    for path in (("rules",), ("roles", "a"), ("roles", "*", "a", "b")):
        with pytest.raises(KeyError):
            replaced(whole, path, Text())
    for path in (("roles",), ("roles", "*", "a"), ("roles", "*", "c")):
        with pytest.raises(KeyError):
            part(whole, *path)


def test_defaults_are_an_objects_own() -> None:
    inner = {"type": "object", "properties": {"c": {"default": 2}}}
    schema = {"properties": {"a": {"default": 1}, "b": {}, "inner": inner}}
    assert defaults(schema) == {"a": 1}
    assert defaults({}) == {}


def test_code_asks_for_no_field_that_the_schema_lacks() -> None:
    reader = FieldReader({"a": 1}, {"properties": {"a": _SIZE}})
    assert reader.get("a") == 1
    with pytest.raises(KeyError):
        reader.integer("b")


def test_bounds_of_a_job_are_those_of_its_crd() -> None:
    # One that had stood in the CRD alone.
    most: int = _JOB["runPolicy"]["properties"]["schedulingPolicy"]["properties"]["queue"][
        "maxLength"
    ]
    assert parse(_job(runPolicy={"schedulingPolicy": {"queue": "q" * most}})).queue == "q" * most
    with pytest.raises(InvalidJob, match=f"queue: .* at most {most} characters"):
        parse(_job(runPolicy={"schedulingPolicy": {"queue": "q" * (most + 1)}}))


# Values at, and beyond, the bounds of each field


def _drawn(schema: Object) -> st.SearchStrategy[Any]:
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from(["1", "500m", "2Gi", 3, 0, -1, "-1", "", "much", "1 Gi", True, 1.5])
    match schema["type"]:
        case "integer" | "number":
            least, most = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
            near = [least - 1, least, least + 1, most, most + 1, 0.75, 1.5, 2**63, "1", True, None]
            return st.sampled_from(near)
        case "string":
            longest = schema.get("maxLength", 8)
            words = schema.get("enum", ["a", "a.b/c-d", "nvidia gpu", "/a", "a/"])
            odd = ["", "x\n", "x" * longest, "x" * (longest + 1), 3, None]
            return st.sampled_from([*words, *words, *odd])
        case "array":
            return st.lists(_drawn(schema["items"]), max_size=2)
        case _ if "additionalProperties" in schema:
            roles = st.sampled_from(["Worker", "Master", "PS", "Other"])
            return st.dictionaries(roles, _drawn(schema["additionalProperties"]), max_size=2)
        case _:
            parts = {name: _drawn(one) for name, one in schema.get("properties", {}).items()}
            right = st.fixed_dictionaries({}, optional=parts)
            return st.one_of(right, right, right, right, st.sampled_from([[], "x", None]))


def _one_or_two_fields(schema: Mapping[str, Any]) -> st.SearchStrategy[Object]:
    """Draw few fields at a time: of many, one is always wrong."""
    fields = schema["properties"]
    return st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: _drawn(fields[name]) for name in names})
    )


def _served(crd: str, spec: Object) -> list[Any]:
    """Return what the API server finds wrong with a new object."""
    schema = {"type": "object", "properties": {"spec": assets.schema(crd, "spec")}}
    obj = {"spec": copy.deepcopy(spec)}
    apiserver_schema.apply_defaults(obj, schema)
    causes = apiserver_schema.validate(obj, schema)
    return [*causes, *cel.causes(obj, None, schema, causes)]


_PROFILE = settings(deadline=None, max_examples=examples(500))


@_PROFILE
@given(_one_or_two_fields(assets.schema(assets.QUEUEPOLICIES, "spec")))
@example({"headroom": {"amount": 1, "percent": 10}})
def test_a_policy_is_refused_by_the_operator_as_by_the_api_server(fields: Object) -> None:
    spec = {"queue": "q"} | fields
    try:
        queue_policy.parse({"spec": spec}, strict=True)
        problems = ""
    except queue_policy.InvalidPolicy as error:
        problems = str(error)
    causes = _served(assets.QUEUEPOLICIES, spec)
    assert bool(problems) == bool(causes), (problems, causes)


@_PROFILE
@given(_one_or_two_fields(assets.schema(assets.SCALEPLANS, "spec")))
def test_no_plan_that_the_api_server_refuses_is_carried_out(fields: Object) -> None:
    spec = {"ownerJob": "a", "createPods": [{"name": "a-worker-1"}]} | fields
    try:
        scale_plan.parse({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
    except scale_plan.InvalidPlan:
        return
    assert _served(assets.SCALEPLANS, spec) == []


@_PROFILE
@given(_one_or_two_fields(_JOB["elasticPolicy"]), _one_or_two_fields(_JOB["runPolicy"]))
def test_no_job_that_the_api_server_refuses_is_carried_out(elastic: Object, run: Object) -> None:
    # An empty word counts as absent, as Kubeflow has it.
    elastic, run = ({k: v for k, v in one.items() if v != ""} for one in (elastic, run))
    for policies in ({"elasticPolicy": elastic}, {"elasticPolicy": {}, "runPolicy": run}):
        job = _job(**policies)
        if not validate(defaulted(job)):
            assert _served(assets.PYTORCHJOBS, job["spec"]) == []
