"""Every field of a PyTorchJob's spec, as the CRD declares it; and our annotations.

Kubeflow's schema has neither enumerations nor ranges. Those of our CRD, and the few that only stand
here, refuse what could never run.
"""

from __future__ import annotations

from collections.abc import Mapping

from volcano_elastic import assets
from volcano_elastic.api.shape import Amount, Shape, Text, from_schema, part, replaced

CONTROLLER = "kubeflow.org/training-operator"
CLEAN_POD_POLICIES = ("All", "Running", "None")
RDZV_BACKENDS = ("volcano-elastic", "c10d", "etcd", "etcd-v2")

# Our own, on jobs.
ANNOTATION_PREFIX = "volcano-elastic.io/"
SHARED_MEMORY_ANNOTATION = ANNOTATION_PREFIX + "shared-memory"
MOST_MEMORY_ANNOTATION = ANNOTATION_PREFIX + "most-memory"
CPU_LIMIT_ANNOTATION = ANNOTATION_PREFIX + "cpu-limit"
USER_ANNOTATION = ANNOTATION_PREFIX + "user"
DATA_SET_ANNOTATION = ANNOTATION_PREFIX + "data-set"
BRAIN_ANNOTATION = ANNOTATION_PREFIX + "brain"
"""A quantity; on pod templates too."""
ADOPT_ANNOTATION = ANNOTATION_PREFIX + "adopt"
"""`true`: whoever wrote the job before us is gone."""

INJECT_ANNOTATION = ANNOTATION_PREFIX + "inject-trainer"
"""`true`, or the image to take the trainer from: pods whose image lacks it get it."""

# By path. Kubeflow takes any word for a restartPolicy, which then is refused in every pod. All pods
# together may have more than one can: the PodGroup's stay within what Volcano can count.
_OTHERWISE: Mapping[tuple[str, ...], Shape] = {
    ("pytorchReplicaSpecs", "*", "restartPolicy"): Text(
        ("Always", "OnFailure", "Never", "ExitCode")
    ),
    ("runPolicy", "schedulingPolicy", "minResources", "*"): Amount(2**63 - 1, fractions=False),
}


_schema = assets.schema(assets.PYTORCHJOBS, "spec")
_declared = from_schema(_schema)
for _path, _other in _OTHERWISE.items():
    _declared = replaced(_declared, _path, _other)
SPEC = part(_declared)
REPLICA = part(SPEC, "pytorchReplicaSpecs", "*")
ELASTIC_POLICY = part(SPEC, "elasticPolicy")
RUN_POLICY = part(SPEC, "runPolicy")
SCALERS: tuple[str, ...] = tuple(
    _schema["properties"]["elasticPolicy"]["properties"]["scaler"]["enum"]
)
