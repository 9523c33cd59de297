"""Validation and reconcile bear any JSON that claims to be a PyTorchJob."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from embedded_cluster.apiserver import patch as apiserver_patch
from tests.examples import examples
from tests.pytorchjob.manifest import TEMPLATE, edited, manifest, said
from tests.pytorchjob.world import NOW
from volcano_elastic.api import json_patch, shape
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_shape import ELASTIC_POLICY, REPLICA, RUN_POLICY, SPEC
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.api.pytorchjob_warning import warn
from volcano_elastic.operator.snapshot_builder import snapshot_of
from volcano_elastic.pytorchjob.observed import Observed
from volcano_elastic.pytorchjob.reconcile import reconcile

Object = dict[str, Any]
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**64)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "1Gi", "1e999999999", "Worker", "All", "None", "volcano"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=6,
)


def _of(field: shape.Shape, wild: int = 1) -> st.SearchStrategy[Any]:
    """Draw what the field takes, and in `wild` of ten cases anything."""
    match field:
        case shape.Integer(least, most):
            right: st.SearchStrategy[Any] = st.integers(max(least, -1), min(most, 6))
        case shape.Text(words):
            right = st.sampled_from([*words, "", "pytorch", "x"])
        case shape.Flag():
            right = st.booleans()
        case shape.Amount():
            right = st.sampled_from(["1", "500m", 2, "8Gi"])
        case shape.Items(item):
            right = st.lists(_of(item, wild), max_size=2)
        case shape.Named(value):
            right = st.dictionaries(st.sampled_from(["Worker", "Master", "cpu"]), _of(value, wild))
        case shape.Fields(fields, _, needed):
            parts = {name: _of(field, wild) for name, field in fields.items()}
            optional = {n: part for n, part in parts.items() if wild or n not in needed}
            must = {} if wild else {n: parts[n] for n in needed}
            right = st.fixed_dictionaries(must, optional=optional)
    return st.one_of(*[right] * (10 - wild), *[_json] * wild)


_PROFILE = settings(
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@_PROFILE
@given(st.one_of(_json, _of(SPEC)), st.one_of(_json, st.just({"name": "a"})))
def test_no_json_breaks_the_checks(spec: Any, meta: Any) -> None:
    obj = {"metadata": meta, "spec": spec}
    before = copy.deepcopy(obj)
    full = defaulted(obj)
    assert defaulted(full) == full
    assert apiserver_patch.json_patch(obj, json_patch.difference(obj, full)) == full
    problems = validate(obj)
    assert validate(obj) == problems
    if not problems:
        warn(obj)
        parse(obj)
    if not validate(full):
        warn(full)
        parse(obj)
    else:
        with pytest.raises(InvalidJob):
            parse(obj)
    assert obj == before


_ends = st.none() | st.integers(1, 9)


@st.composite
def _jobs_of_kubeflow(draw: st.DrawFn) -> Object:
    """Jobs that training-operator 1.9 and its webhook accept, and that could run there."""
    container = {"name": "pytorch", "image": "i"}
    template = {
        "spec": {"containers": draw(st.permutations([container, {"name": "b", "image": "j"}]))}
    }
    replicas: Object = {}
    worker: Object = {"template": template}
    if (count := draw(_ends)) is not None:
        worker["replicas"] = count
    if policy := draw(st.sampled_from(["", "Always", "OnFailure", "Never", "ExitCode"])):
        worker["restartPolicy"] = policy
    master = draw(st.booleans())
    if master:
        replicas["Master"] = {"replicas": 1, "template": template}
    elastic = draw(st.none() | st.just({}))
    if elastic is not None or not master or draw(st.booleans()):
        replicas["Worker"] = worker
    spec: Object = {"pytorchReplicaSpecs": replicas}
    if elastic is not None:
        low, high = draw(_ends), draw(_ends)
        if low is not None:
            elastic["minReplicas"] = low
        if high is not None:
            # The one range that Kubeflow takes and nobody can run.
            elastic["maxReplicas"] = max(high, low or 1)
        elastic |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "rdzvBackend": st.sampled_from(["c10d", "etcd", "etcd-v2", "zeus", ""]),
                    "rdzvPort": st.integers(1, 65535),
                    "rdzvHost": st.just("h"),
                    "rdzvId": st.just("7"),
                    "rdzvConf": st.lists(st.just({"key": "a", "value": "b"})),
                    "standalone": st.booleans(),
                    "maxRestarts": st.integers(0, 9),
                    "metrics": st.just([{"type": "Resource"}]),
                },
            )
        )
        spec["elasticPolicy"] = elastic
    if elastic is not None and draw(st.booleans()):
        elastic["nProcPerNode"] = 2
    elif draw(st.booleans()):
        spec["nprocPerNode"] = draw(st.sampled_from(["auto", "cpu", "gpu", "4", "xpu"]))
    spec["runPolicy"] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "cleanPodPolicy": st.sampled_from(["All", "Running", "None", "Other", ""]),
                "ttlSecondsAfterFinished": st.integers(0, 2**31 - 1),
                "activeDeadlineSeconds": st.integers(0, 2**63 - 1),
                "backoffLimit": st.integers(0, 2**31 - 1),
                "suspend": st.booleans(),
                "managedBy": st.sampled_from(
                    ["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]
                ),
                "schedulingPolicy": st.fixed_dictionaries(
                    {},
                    optional={
                        "minAvailable": st.integers(0, 20),
                        "queue": st.sampled_from(["", "q"]),
                        "minResources": st.just({"cpu": 4, "memory": "8Gi"}),
                        "priorityClass": st.just("high"),
                        "scheduleTimeoutSeconds": st.integers(-1, 9),
                    },
                ),
            },
        )
    )
    return {"metadata": {"name": "a"}, "spec": spec}


@_PROFILE
@given(_jobs_of_kubeflow())
def test_what_kubeflow_accepts_and_can_run_is_accepted(obj: Object) -> None:
    assert said(obj) == []
    assert said(defaulted(obj)) == []
    job = parse(obj)
    assert job.elastic is None or 1 <= job.elastic.min <= job.elastic.max
    warn(obj)


_replica_shape = REPLICA.fields["template"]


@_PROFILE
@given(
    _of(_replica_shape, 0),
    _of(ELASTIC_POLICY, 0),
    _of(RUN_POLICY, 0),
    st.booleans(),
    st.booleans(),
)
def test_what_is_accepted_can_be_planned_and_carried_out(
    template: Object, elastic: Object, run_policy: Object, is_elastic: bool, master: bool
) -> None:
    spec = template.setdefault("spec", {})
    for i, container in enumerate(spec.setdefault("containers", [])):
        container |= {"name": f"c{i}", "image": "i"}
    spec["containers"].append({"name": "pytorch", "image": "i"})
    obj = edited(*TEMPLATE, value=template, of=manifest(elastic if is_elastic else None))
    obj["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    obj["spec"]["runPolicy"] = run_policy
    if master:
        obj["spec"]["pytorchReplicaSpecs"]["Master"] = {"replicas": 1, "template": template}
    assume(not validate(defaulted(obj)))
    snapshot_of([obj])
    reconcile(parse(obj), Observed(), NOW)
