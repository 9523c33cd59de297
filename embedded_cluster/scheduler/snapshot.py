"""One consistent picture of the cluster, as values: what a session decides on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from embedded_cluster.scheduler.resources import Resources


class TaskStatus(Enum):
    """The state of a pod. A session moves pending tasks to Allocated or Pipelined, and victims to
    Releasing; everything else is what the API server says."""

    GATED = "Gated"
    PENDING = "Pending"
    PIPELINED = "Pipelined"
    """Has a place once what is leaving has left."""
    ALLOCATED = "Allocated"
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    # Members are singletons, and hashing them by name takes a tenth of a large session.
    __hash__ = object.__hash__


HOLDING = frozenset({TaskStatus.ALLOCATED, TaskStatus.BOUND, TaskStatus.RUNNING})
"""Counts as allocated to the job and its queue."""
READY = HOLDING | {TaskStatus.SUCCEEDED}
"""Counts towards minMember."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A pod."""

    uid: str
    namespace: str
    name: str
    job: str | None
    """Key of its Job; None for a pod that is not ours to place and only takes room."""
    queue: str | None
    """Where it goes if it has no PodGroup; None: a pod of the default scheduler."""
    requests: Resources
    status: TaskStatus
    node: str | None
    priority: int
    index: int
    """From the name, `<job>-<role>-<index>`; -1 for other names."""
    role: str
    created: str
    preemptable: bool
    preempts: bool
    """Its preemptionPolicy is not Never."""
    critical: bool
    """Belongs to the cluster itself."""
    cooling_until: datetime | None
    best_effort: bool
    """Asks for nothing."""
    shape: str
    """Equal for pods that every node suits alike: same requests, selectors and tolerations."""
    spec: Mapping[str, Any]
    conditions: tuple[Mapping[str, Any], ...] = ()
    nominated_node: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    phase: str = "Pending"
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A gang: a PodGroup with its pods, or a single pod that has none."""

    key: str
    tasks: tuple[Task, ...]
    queue: str | None
    """None: a pod of the default scheduler, outside of all queues."""
    min_member: int = 1
    min_task_member: Mapping[str, int] = field(default_factory=dict)
    min_resources: Resources | None = None
    priority: int = 0
    created: str = ""
    podgroup: PodGroupStatus | None = None
    refused: str | None = None
    """Why none of its pods can be placed, whatever room there is."""

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    name: str
    created: str = ""
    weight: int = 1
    priority: int = 0
    parent: str | None = None
    capability: Resources = field(default_factory=dict)
    deserved: Resources = field(default_factory=dict)
    guarantee: Resources = field(default_factory=dict)
    reclaimable: bool = True
    state: str = ""
    allocated: Mapping[str, Any] = field(default_factory=dict)
    """Resources that its status calls allocated."""
    refused: str | None = None
    """Why nothing can be placed in it."""

    @property
    def open(self) -> bool:
        return self.state == "Open"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    others: tuple[Task, ...] = ()
    """Pods that another scheduler placed."""
