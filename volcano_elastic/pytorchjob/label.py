"""Labels and names that Kubeflow's clients know a job's pods and services by."""

from __future__ import annotations

from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import JOB_ROLE_OF_THE_FIRST, Role

_PREFIX = "training.kubeflow.org/"
OPERATOR_NAME = _PREFIX + "operator-name"
JOB_NAME = _PREFIX + "job-name"
REPLICA_TYPE = _PREFIX + "replica-type"
REPLICA_INDEX = _PREFIX + "replica-index"
JOB_ROLE = _PREFIX + "job-role"
CONTROLLER_NAME = "pytorchjob-controller"
COORDINATOR = "coordinator"
"""Value of `replica-type` on the coordinator's pod, which is none of the job's replicas."""


def replica_name(job: str, role: Role, index: int) -> str:
    return f"{job}-{role.label}-{index}"


def coordinator_name(job: PyTorchJob) -> str:
    """Return the name of a dedicated coordinator's pod and service."""
    return f"{job.name}-{COORDINATOR}"


def coordinator_labels(job: PyTorchJob) -> dict[str, str]:
    return {
        OPERATOR_NAME: CONTROLLER_NAME,
        JOB_NAME: job.name,
        REPLICA_TYPE: COORDINATOR,
    }


def token_secret_name(job: str, uid: str) -> str:
    """Return the Secret's name; it has part of the uid, since an earlier job of the same name had
    another token."""
    return f"{job}-token-{uid[:8]}"


def selector(job: PyTorchJob, role: Role, index: int) -> dict[str, str]:
    """Return the four labels that name one pod."""
    return {
        OPERATOR_NAME: CONTROLLER_NAME,
        JOB_NAME: job.name,
        REPLICA_TYPE: role.label,
        REPLICA_INDEX: str(index),
    }


def selector_of_all(job: PyTorchJob, role: Role) -> str:
    """Return the selector of all pods of a role, as text."""
    found = selector(job, role, 0)
    return ",".join(f"{n}={v}" for n, v in sorted(found.items()) if n != REPLICA_INDEX)


def labels(job: PyTorchJob, role: Role, index: int) -> dict[str, str]:
    mark = {JOB_ROLE: JOB_ROLE_OF_THE_FIRST} if is_first(job, role, index) else {}
    return selector(job, role, index) | mark


def is_first(job: PyTorchJob, role: Role, index: int) -> bool:
    """Return whether this pod has rank 0: the leading role's, without one the elastic role's pod
    0."""
    return role.leads or (role.elastic and job.leader is None and index == 0)


def owner_reference(job: PyTorchJob) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
