"""The headless service that gives one replica a name."""

from __future__ import annotations

from itertools import count
from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import Role
from volcano_elastic.pytorchjob.label import labels, owner_reference, replica_name, selector


class ServiceTemplate:
    """Makes the services of one role's pods; what they have in common is made once."""

    def __init__(self, job: PyTorchJob, role: Role) -> None:
        self._job, self._role = job, role
        self._owners = [owner_reference(job)]
        ports: dict[tuple[int, str], dict[str, Any]] = {}
        given = job.replicas[role.name].ports
        # In a service every port has a name; one that is made up may be another's already.
        taken = {port.get("name") for port in given}
        for i, port in enumerate(given):
            number, protocol = int(port["containerPort"]), port.get("protocol") or "TCP"
            free = (name for j in count(i) if (name := f"port-{j}") not in taken)
            name = port.get("name") or next(free)
            taken.add(name)
            ports[number, protocol] = {"name": name, "port": number, "protocol": protocol}
        # A container may name one port twice, a service may not; ours, the last, wins.
        self._spec: dict[str, Any] = {"clusterIP": "None", "ports": list(ports.values())}
        if job.elastic is not None:
            # Agents meet while they start; waiting for readiness would have them wait for each
            # other. The pods of a fixed job do wait for a leader that is ready, as with Kubeflow.
            self._spec["publishNotReadyAddresses"] = True

    def service(self, index: int) -> dict[str, Any]:
        job, role = self._job, self._role
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": replica_name(job.name, role, index),
                "namespace": job.namespace,
                "labels": labels(job, role, index),
                "ownerReferences": self._owners,
            },
            "spec": {**self._spec, "selector": selector(job, role, index)},
        }
