"""The custom resource: quantities, defaults, refusals, conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pytorchjob.world import merged
from volcano_elastic.api import condition, merge_patch, pod, quantity
from volcano_elastic.api.pytorchjob import parse

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def manifest(elastic: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "u1",
            "creationTimestamp": "2026-01-01T12:00:00Z",
        },
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}}
        | ({"elasticPolicy": elastic} if elastic is not None else {})
        | spec,
    }


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("2", 2000),
        (1, 1000),
        (0.5, 500),
        ("500m", 500),
        ("1.5", 1500),
        (".5", 500),
        ("100n", 1),
        ("5u", 1),
        ("1k", 10**6),
        ("3M", 3 * 10**9),
        ("1e3", 10**6),
        ("2E", 2 * 10**21),
        ("5e-1", 500),
        ("1Ki", 1024 * 1000),
        ("8Gi", 8 * 1024**3 * 1000),
        ("1Ei", 1024**6 * 1000),
        ("-1", -1000),
    ],
)
def test_quantity_is_read_as_kubernetes_reads_it(text: str | float, thousandths: int) -> None:
    assert quantity.milli(text) == thousandths


@pytest.mark.parametrize(
    "text", ["", "two", "1 Gi", "1GB", "0x10", "1K", True, "--1", "1e99999999", "9" * 99, 1e300]
)
def test_what_is_no_quantity_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(quantity.QuantityError, match="expected a quantity such as 2, 500m"):
        quantity.milli(text)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=0, max_value=10**25))
def test_quantity_text_is_exact(amount: int) -> None:
    assert quantity.milli(quantity.text(amount)) == amount


def test_requests_are_what_the_scheduler_counts() -> None:
    spec = {
        "containers": [
            {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "4"}}},
            {"name": "log", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}},
        ],
        "initContainers": [
            {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}},
            {"name": "load", "resources": {"requests": {"cpu": "7", "memory": "1Ki"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert pod.requests(spec) == {
        "cpu": 8250,  # the init step (7) beside the sidecar (1) needs more than 4 + 0.5 + 1
        "memory": 1024 * 1000,
        "nvidia.com/gpu": 2000,
    }


def test_defaults_are_kubeflows() -> None:
    job = parse(manifest())
    assert job.elastic is None
    assert job.nproc_per_node == "auto"
    assert job.run_policy.clean_pod_policy == "None"
    assert job.sized is not None
    assert job.sized.restart_policy == "OnFailure"
    assert job.sized.port == 23456
    assert (job.queue, job.min_members, job.uses_volcano) == ("default", 2, True)


@pytest.mark.parametrize(
    ("elastic", "low", "high"),
    [
        ({"minReplicas": 1, "maxReplicas": 4}, 1, 4),
        ({"min": 1, "max": 4}, 1, 4),
        ({"min": 1, "minReplicas": 1, "maxReplicas": 4}, 1, 4),
        ({"maxReplicas": 4}, 4, 4),
        ({"minReplicas": 3}, 3, 3),
        ({}, 2, 2),
    ],
)
def test_a_missing_end_of_the_range_is_filled_in(
    elastic: dict[str, Any], low: int, high: int
) -> None:
    policy = parse(manifest(elastic)).elastic
    assert policy is not None
    assert (policy.min, policy.max) == (low, high)
    assert policy.cooldown is None
    assert policy.scaler == "volcano"


def test_metrics_make_hpa_the_scaler() -> None:
    policy = parse(manifest({"metrics": [{"type": "Resource"}]})).elastic
    assert policy is not None and policy.scaler == "hpa"


def test_the_queue_annotation_is_used_where_the_policy_names_none() -> None:
    obj = manifest()
    obj["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "research"}
    assert parse(obj).queue == "research"
    obj["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "prod"}}
    assert parse(obj).queue == "prod"


def test_conditions_replace_each_other_and_the_newest_is_last() -> None:
    later = NOW + timedelta(seconds=5)
    found: list[dict[str, Any]] = []
    for word in ("Created", "Running", "Restarting", "Running"):
        found = condition.with_condition(found, word, f"PyTorchJob{word}", "m", NOW)
    assert [c["type"] for c in found] == ["Created", "Running"]
    assert condition.with_condition(found, "Running", "PyTorchJobRunning", "m", later) == found
    found = condition.with_condition(found, "Succeeded", "PyTorchJobSucceeded", "done", later)
    assert [(c["type"], c["status"]) for c in found] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ]
    assert found[1]["lastTransitionTime"] == "2026-01-01T12:00:05Z"
    assert condition.finished(found)


_json = st.recursive(
    st.integers() | st.sampled_from("xyz") | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.sampled_from("abcd"), _json, max_size=4)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_objects, _objects)
def test_a_merge_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch.difference(old, new)
    assert merged(old, patch) == new
    assert bool(patch) == (old != new)
