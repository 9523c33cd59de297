"""The headless service that gives one replica a name."""

from __future__ import annotations

from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.label import labels, owner_reference, replica_name, selector


def build(job: PyTorchJob, kind: str, index: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "selector": selector(job, kind, index),
        "ports": [
            {"name": port.get("name", f"port-{i}"), "port": int(port["containerPort"])}
            for i, port in enumerate(job.replicas[kind].ports)
        ],
    }
    if job.elastic is not None:
        # Agents meet while they start; waiting for readiness would have them wait for each other.
        spec["publishNotReadyAddresses"] = True
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": replica_name(job.name, kind, index),
            "namespace": job.namespace,
            "labels": labels(job, kind, index),
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }
