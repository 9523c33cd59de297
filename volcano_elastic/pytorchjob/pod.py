"""The pod of one replica."""

from __future__ import annotations

import copy
from typing import Any

from volcano_elastic.api.pytorchjob import CONTAINER, SCHEDULER, PyTorchJob
from volcano_elastic.podgroup.pod_annotation import pod_annotations
from volcano_elastic.pytorchjob.environment import environment
from volcano_elastic.pytorchjob.label import labels, owner_reference, replica_name

# How often the operator made this replica again after a failure.
RESTARTS = "volcano-elastic.io/restarts"


def build(
    job: PyTorchJob, kind: str, index: int, *, protected: bool, restarts: int = 0
) -> dict[str, Any]:
    """The template with our names, labels, environment and scheduling; the rest untouched."""
    replica = job.replicas[kind]
    template = replica.template
    meta = template.get("metadata") or {}
    annotations = dict(meta.get("annotations") or {})
    spec: dict[str, Any] = copy.deepcopy(dict(replica.pod_spec))
    # ExitCode is ours to judge, so the kubelet must not restart anything.
    policy = replica.restart_policy
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    if job.uses_volcano:
        spec["schedulerName"] = SCHEDULER
        annotations |= pod_annotations(job, kind, index, protected=protected)
    if restarts:
        annotations[RESTARTS] = str(restarts)
    variables = environment(job, kind, index)
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or ()), *copy.deepcopy(variables)]
        if container["name"] == CONTAINER:
            container["ports"] = replica.ports
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": replica_name(job.name, kind, index),
            "namespace": job.namespace,
            "labels": {**(meta.get("labels") or {}), **labels(job, kind, index)},
            "annotations": annotations,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }
