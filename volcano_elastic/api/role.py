"""The roles that pods of a PyTorchJob may have, as data.

The only module that names them: a further role is a further row of `ROLES`, and everything else
asks the table what a role does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

JOB_ROLE_OF_THE_FIRST = "master"
"""Value of Kubeflow's label `job-role` on the pod that has rank 0, whatever its role here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The part that pods of one key of `spec.pytorchReplicaSpecs` have in their job."""

    name: str
    """The key, in Kubeflow's spelling."""
    priority: int
    """Volcano's task priority of the pod with index 0; each further pod has one less. Roles are
    placed in falling priority and evicted in rising, so their ranges must not overlap."""
    leads: bool = False
    """Holds rank 0 where it exists: its pod 0 is MASTER_ADDR, and its success is the job's. At most
    one role does."""
    elastic: bool = False
    """elasticPolicy sizes it, and its pods alone count in the job's size. Exactly one role is."""
    vital: bool = False
    """An elastic job runs only while all pods of this role do and fails with the first one that
    fails for good, and Volcano may evict none of them. (A job of fixed size fails with any pod.)"""
    trains: bool = True
    """Its pods are nodes of torchrun's world: they have ranks, count in PET_NNODES and WORLD_SIZE,
    and wait for the leading pod."""
    serves: bool = False
    """Its pods are parameter servers: all of the job's pods are told their addresses."""
    grace: int | None = None
    """Seconds from SIGTERM to SIGKILL where the template doesn't say; None: Kubernetes' default."""
    default_replicas: int | None = 1
    """None: the job has to say how many."""
    most_replicas: int | None = None
    """None: no limit of its own."""
    default_restart_policy: str = "OnFailure"

    @property
    def label(self) -> str:
        """The role in names and labels of pods, and in Volcano's task-spec."""
        return self.name.lower()

    def task_priority(self, index: int) -> int:
        return max(0, self.priority - index)


ROLES: tuple[Role, ...] = (
    # A server that is told to end gives its rows away before, and ends as soon as it has.
    Role(name="PS", priority=2_000_000, vital=True, trains=False, serves=True, grace=600),
    Role(
        name="Master",
        priority=1_000_000,
        leads=True,
        vital=True,
        # Kubeflow refuses one that doesn't say 1.
        default_replicas=None,
        most_replicas=1,
    ),
    # More than any index, so that priorities stay positive as they fall.
    Role(name="Worker", priority=999_999, elastic=True),
)


def in_order(roles: Iterable[Role]) -> list[Role]:
    """The roles in falling priority."""
    return sorted(roles, key=lambda role: -role.priority)


def known() -> list[Role]:
    """All roles of the table in falling priority."""
    return in_order(ROLES)


def named(name: str) -> Role | None:
    """The role with this key in `pytorchReplicaSpecs`; None for one that nobody knows."""
    return next((role for role in ROLES if role.name == name), None)


def labelled(label: str) -> Role | None:
    """The role that pods with this `replica-type` label have; None for other pods."""
    return next((role for role in ROLES if role.label == label), None)


def elastic() -> Role:
    """The role that `elasticPolicy` sizes."""
    return next(role for role in ROLES if role.elastic)


def leading() -> Role:
    """The role that holds rank 0 where a job has it."""
    return next(role for role in ROLES if role.leads)
