"""Reviews as the API server sends them, and the paths they go to."""

from __future__ import annotations

from typing import Any

VALIDATE = "/validate-kubeflow-org-v1-pytorchjob"
MUTATE = "/mutate-kubeflow-org-v1-pytorchjob"
POLICY = "/validate-policy-volcano-elastic-io-v1alpha1-queuepolicy"
SCALE_PLAN = "/validate-policy-volcano-elastic-io-v1alpha1-scaleplan"
Object = dict[str, Any]


def job(elastic: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    worker = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": worker | ({} if elastic is None else {"elasticPolicy": elastic}) | spec,
    }


def review(obj: Any, old: Any = None, **request: Any) -> Object:
    operation = "CREATE" if old is None else "UPDATE"
    asked = {"uid": "u1", "operation": operation, "object": obj, "oldObject": old} | request
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
