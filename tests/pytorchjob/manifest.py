"""A sound manifest, and ways to spoil it."""

from __future__ import annotations

import copy
from typing import Any

from volcano_elastic.api.pytorchjob_validation import validate

Object = dict[str, Any]
WORKER = ("spec", "pytorchReplicaSpecs", "Worker")
TEMPLATE = (*WORKER, "template")
CONTAINERS = (*TEMPLATE, "spec", "containers")


def manifest(elastic: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}}
        | ({"elasticPolicy": elastic} if elastic is not None else {})
        | spec,
    }


def edited(*path: str | int, value: Any = None, of: Object | None = None) -> Object:
    """A sound job with one field changed; None takes it out."""
    obj = copy.deepcopy(manifest() if of is None else of)
    at: Any = obj
    for step in path[:-1]:
        at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return obj


def with_master(**replica: Any) -> Object:
    obj = manifest()
    template = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    obj["spec"]["pytorchReplicaSpecs"]["Master"] = {"template": template} | replica
    return obj


def said(obj: Object) -> list[str]:
    return [str(problem) for problem in validate(obj)]
