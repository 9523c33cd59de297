"""The headless service that gives one replica a name."""

from __future__ import annotations

from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.label import labels, owner_reference, replica_name, selector


class ServiceTemplate:
    """Of the replicas of one role; what they have in common is made once."""

    def __init__(self, job: PyTorchJob, kind: str) -> None:
        self._job, self._kind = job, kind
        self._owners = [owner_reference(job)]
        ports = {
            (number, protocol): {
                "name": port.get("name") or f"port-{i}",
                "port": number,
                "protocol": protocol,
            }
            for i, port in enumerate(job.replicas[kind].ports)
            for number, protocol in [(int(port["containerPort"]), port.get("protocol") or "TCP")]
        }
        # A container may name one port twice, a service may not; ours, the last, wins.
        self._spec: dict[str, Any] = {"clusterIP": "None", "ports": list(ports.values())}
        if job.elastic is not None:
            # Agents meet while they start; waiting for readiness would have them wait for each
            # other. A fixed job's Workers do wait for a Master that is ready, as with Kubeflow.
            self._spec["publishNotReadyAddresses"] = True

    def service(self, index: int) -> dict[str, Any]:
        job, kind = self._job, self._kind
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": replica_name(job.name, kind, index),
                "namespace": job.namespace,
                "labels": labels(job, kind, index),
                "ownerReferences": self._owners,
            },
            "spec": {**self._spec, "selector": selector(job, kind, index)},
        }
