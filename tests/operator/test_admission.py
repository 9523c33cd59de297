"""Admission: what the webhooks answer, over which certificates, and how these are renewed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedded_cluster.apiserver.patch import json_patch
from tests.operator.admission_review import MUTATE, POLICY, SCALE_PLAN, VALIDATE, job, review
from volcano_elastic.operator.admission import WEBHOOKS, BadReview, answer

Object = dict[str, Any]


def respond(path: str, obj: Any, old: Any = None, **request: Any) -> Object:
    found = answer(WEBHOOKS[path], review(obj, old, **request))
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Object = found["response"]
    assert response["uid"] == "u1"
    return response


def test_a_sound_job_is_let_in() -> None:
    assert respond(VALIDATE, job()) == {"uid": "u1", "allowed": True}


def test_a_refusal_reads_as_kubeflows_do() -> None:
    response = respond(VALIDATE, job({"min": 3, "max": 2}, runPolicy={"managedBy": "me"}))
    assert not response["allowed"]
    assert response["status"] == {
        "status": "Failure",
        "code": 403,
        "reason": "Forbidden",
        "message": '[spec.runPolicy.managedBy: Unsupported value: "me": supported values: '
        '"kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue", '
        "spec.elasticPolicy.min: Invalid value: 3: must be at most max (2)]",
    }


def test_a_warning_lets_in() -> None:
    response = respond(VALIDATE, job({"nProcPerNode": 2}))
    assert response["allowed"]
    assert response["warnings"] == [
        "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
    ]


def test_no_warning_is_longer_than_the_api_server_takes() -> None:
    response = respond(VALIDATE, job({"rdzvBackend": "x" * 9999}))
    assert [len(text) for text in response["warnings"]] == [256]


def test_queue_and_manager_may_not_change() -> None:
    old = job(runPolicy={"schedulingPolicy": {"queue": "a"}})
    new = job(runPolicy={"schedulingPolicy": {"queue": "b"}})
    assert "queue is immutable" in respond(VALIDATE, new, old)["status"]["message"]
    new = job(runPolicy=old["spec"]["runPolicy"] | {"managedBy": "kueue.x-k8s.io/multikueue"})
    assert "field is immutable" in respond(VALIDATE, new, old)["status"]["message"]


def test_a_job_that_was_wrong_all_along_can_be_labelled_deleted_and_repaired() -> None:
    wrong = job({"min": 3, "max": 2})
    labelled = wrong | {"metadata": wrong["metadata"] | {"labels": {"a": "b"}}}
    assert respond(VALIDATE, labelled, wrong)["allowed"]
    going = job({"min": 4, "max": 2})
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert respond(VALIDATE, going, wrong)["allowed"]
    assert respond(VALIDATE, job({"min": 2, "max": 2}), wrong)["allowed"]
    assert not respond(VALIDATE, job({"min": 5, "max": 2}), wrong)["allowed"]


def test_defaults_come_as_a_patch_that_leaves_nothing_to_fill_in() -> None:
    obj = job({"max": 4})
    response = respond(MUTATE, obj)
    assert response["patchType"] == "JSONPatch"
    filled = json_patch(obj, json.loads(base64.b64decode(response["patch"])))
    assert filled["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
    assert filled["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert respond(MUTATE, filled) == {"uid": "u1", "allowed": True}


def test_defaults_never_refuse_what_they_cannot_fill_in() -> None:
    assert respond(MUTATE, job() | {"spec": 5})["allowed"]


def test_a_queue_policy_is_checked_at_its_own_path() -> None:
    policy = {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "QueuePolicy",
        "metadata": {"name": "p"},
        "spec": {"queue": "research", "mode": "Active"},
    }
    assert respond(POLICY, policy)["allowed"]
    wrong = policy | {"spec": {"queue": "research", "mode": "Fast"}}
    assert "spec.mode" in respond(POLICY, wrong)["status"]["message"]
    message = respond(VALIDATE, policy)["status"]["message"]
    assert message == "expected a PyTorchJob of kubeflow.org/v1"


def test_a_scale_plan_is_checked_and_what_is_not_carried_out_is_warned_of() -> None:
    plan = {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "p"},
        "spec": {"ownerJob": "a", "replicaResourceSpecs": {"Worker": {"replicas": 2}}},
    }
    assert respond(SCALE_PLAN, plan) == {"uid": "u1", "allowed": True}
    labelled = plan | {"metadata": {"name": "p", "labels": {"scale-type": "sometimes"}}}
    assert "must be auto or manual" in respond(SCALE_PLAN, labelled)["status"]["message"]
    more = plan | {"spec": {"ownerJob": "a", "createPods": [{"name": "b-worker-1"}]}}
    (warning,) = respond(SCALE_PLAN, more)["warnings"]
    assert warning.startswith("spec.createPods is not carried out: ")


@pytest.mark.parametrize("request_", [{"operation": "DELETE"}, {"subResource": "status"}])
def test_what_is_not_asked_about_is_let_pass(request_: Object) -> None:
    assert respond(VALIDATE, job({"min": -1}), job(), **request_)["allowed"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "expected an AdmissionReview object"),
        ([1], "expected an AdmissionReview object"),
        (job(), "expected an AdmissionReview object"),
        (review(job()) | {"apiVersion": "v2"}, "expected admission.k8s.io/v1, found 'v2'"),
        (review(job()) | {"request": None}, "request: expected an object with a uid"),
        (review(job(), uid=None), "request: expected an object with a uid"),
    ],
)
def test_what_is_no_review_is_refused_with_what_was_expected(body: Any, words: str) -> None:
    with pytest.raises(BadReview, match=words):
        answer(WEBHOOKS[VALIDATE], body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["spec", "a"]), inner)
    ),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WEBHOOKS)), _json, _json)
def test_no_object_breaks_a_review(path: str, spec: Any, old: Any) -> None:
    wanted = WEBHOOKS[path].resource
    whole = {"apiVersion": wanted.api_version, "kind": wanted.kind, "metadata": {"name": "a"}}
    for obj, before in ((spec, old), (whole | {"spec": spec}, whole | {"spec": old})):
        response = answer(WEBHOOKS[path], review(obj, before, operation="UPDATE"))["response"]
        assert response["allowed"] or response["status"]["message"]
