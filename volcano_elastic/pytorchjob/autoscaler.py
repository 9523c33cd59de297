"""The HorizontalPodAutoscaler of a job with elasticPolicy.metrics under the hpa scaler.

It writes the replicas of the elastic role through the scale subresource; that is a wish, which the
queue policy caps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.action import (
    Action,
    CreateAutoscaler,
    DeleteAutoscaler,
    PatchAutoscaler,
)
from volcano_elastic.pytorchjob.label import owner_reference


def difference(
    job: PyTorchJob, spec: Mapping[str, Any] | None, found: Mapping[str, Any] | None
) -> list[Action]:
    """Return what gives `found`, the job's own autoscaler, this spec; None: what removes it."""
    if spec is None:
        return _remove(found)
    if found is None:
        body = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "ownerReferences": [owner_reference(job)],
            },
            "spec": dict(spec),
        }
        return [CreateAutoscaler(body)]
    if _holds(found.get("spec") or {}, spec):
        return []
    return [PatchAutoscaler(job.name, {"spec": dict(spec)})]


def _remove(found: Mapping[str, Any] | None) -> list[Action]:
    if found is None or found["metadata"].get("deletionTimestamp"):
        return []
    return [DeleteAutoscaler(found["metadata"]["name"], found["metadata"]["uid"])]


def spec(job: PyTorchJob) -> dict[str, Any] | None:
    """Return the spec of the autoscaler that the job asks for; None if it asks for none."""
    policy = job.elastic
    # Kueue suspends a job whose replicas anybody changes.
    if policy is None or policy.scaler != "hpa" or not policy.metrics or job.kueue:
        return None
    return {
        "scaleTargetRef": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": job.name,
        },
        "minReplicas": policy.min,
        "maxReplicas": policy.max,
        "metrics": [dict(metric) for metric in policy.metrics],
    }


def _holds(found: Any, wanted: Any) -> bool:
    """Return whether `found` has all that `wanted` says. The API server adds defaults and spells
    quantities its own way; patching those back would never end."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and _holds(found[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(map(_holds, found, wanted))
        )
    return bool(found == wanted) or _same_quantity(found, wanted)


def _same_quantity(one: Any, other: Any) -> bool:
    try:
        return quantity.milli(one) == quantity.milli(other)
    except quantity.QuantityError:
        return False
