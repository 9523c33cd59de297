"""The planner's input: the cluster at one moment, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

from msgspec import Meta

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.api.role import elastic
from volcano_elastic.snapshot.record import record

Instant = Annotated[datetime, Meta(tz=True)]
"""Files must say the time zone: plans compare these with now."""

SPEEDS = (1e-6, 1e12)
"""Bounds of a speed in samples a second; what is measured beyond them is no speed."""

# Resource name to amount, in the resource's own base unit times 1000 (1 GPU = 1000, 1 CPU = 1000,
# 1 byte = 1000), as `volcano_elastic.api.quantity.milli` parses them.
Resources = Mapping[str, int]


class Requirement(NamedTuple):
    """One expression of a node selector term, e.g. `zone In (a, b)`."""

    key: str
    operator: str
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: tuple[str, ...] = ()
    of_field: bool = False
    """From matchFields: the key is `metadata.name`, not a label."""


NodeAffinity = tuple[tuple[Requirement, ...], ...]
"""`requiredDuringSchedulingIgnoredDuringExecution`: a node must satisfy all of one of the terms.
Empty: any node will do."""


@record
class Node:
    name: str
    allocatable: Resources
    ready: bool = True
    unschedulable: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect)"""
    leave: str = ""
    """Why elastic jobs leave it while it still works, `is tainted KEY`, say; empty: they stay."""

    @property
    def takes_pods(self) -> bool:
        """Return whether it should be given new pods at all."""
        return self.ready and not self.unschedulable and not self.leave


@record
class Pod:
    """A pod of any scheduler that has not finished."""

    key: str
    """namespace/name"""
    uid: str
    requests: Resources
    job: str | None = None
    """Key of its elastic or rigid PyTorchJob, if it has one."""
    gang: str | None = None
    """Key of its PodGroup, if it has one."""
    index: int = 0
    node: str | None = None
    running: bool = False
    terminating: bool = False
    protected: bool = False
    """`volcano.sh/preemptable: "false"`"""
    created: Instant | None = None
    role: str = elastic().name
    """Name of its role in the job; only pods of the elastic role count in the job's size."""
    leaves_by: Instant | None = None
    """`metadata.deletionTimestamp`: when a terminating pod's grace ends. Past it by more than
    `cluster_state.node_state.LOST_AFTER` its room no longer counts as coming."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str | int], ...] = ()
    node_affinity: NodeAffinity = ()
    priority: int = 0
    """`spec.priority`."""
    scheduler: str = "volcano"
    """`spec.schedulerName`."""
    owner: str | None = None
    """Kind and key of the controller of a pod without job, `ReplicaSet shop/web-5d9`, say; None
    without one."""
    halted: str = field(default="", compare=False)
    """Why a container of a pod in phase Running doesn't run, as Kubernetes says it:
    CrashLoopBackOff, say; empty: all do. Plans don't look at it."""
    unschedulable_since: Instant | None = None
    """Since when a pod without job and gang waits, because a scheduler found no node for it."""


@record
class Job:
    """A PyTorchJob that is neither finished nor suspended nor being deleted."""

    key: str
    queue: str
    created: Instant
    min: int
    max: int
    desired: int
    """The size now asked for; equals min = max for a rigid job."""
    pod_requests: Resources
    """Amounts that one worker asks for."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str | int], ...] = ()
    node_affinity: NodeAffinity = ()
    node_unit: int = 1
    priority: int = 0
    cooldown: timedelta | None = None
    """The job's own; see `cluster_state.job_state.cooldown`."""
    last_scale: Instant | None = None
    """When `desired` was last changed; None before the first change."""
    scaler: str = "volcano"
    last_reason: str | None = None
    """`status.elastic.lastScaleReason`."""
    succeeded: int = 0
    """Workers that have finished well: they hold nothing, but still count in the size."""
    master_requests: Resources | None = None
    """Amounts that the Master asks for; None without a Master."""
    speeds: Mapping[int, float] = field(default_factory=dict)
    """Measured samples a second by size in Workers; empty before anything was measured."""
    gpu_hours: float = 0.0
    """Units of the policy's resource times hours it has used so far."""
    unmodelled: str = ""
    """Needs of its pods that can't be foreseen (resourceClaims, networkTopology): such a job is
    neither grown nor shrunk for."""
    replicas: int | None = None
    """The wish under the hpa scaler: `Worker.replicas`, or what a ScalePlan says."""
    pause: timedelta | None = None
    """How long its training was measured to stand still at a change of size; None before that."""
    excluded: tuple[str, ...] = ()
    """Names of nodes that failed it: its pods leave them, and new ones don't go there."""
    needs_first: bool = True
    """True if its workers can't go on without worker 0; False where they elect another host."""

    @property
    def elastic(self) -> bool:
        return self.max > self.min


@record
class Gang:
    """A PodGroup that is not one of our jobs', e.g. a vcjob's."""

    key: str
    queue: str
    min_member: int
    created: Instant
    priority: int = 0
    succeeded: int = 0
    """Pods that have finished well; they count towards min_member."""
    pod_requests: Resources | None = None
    """Amounts that one pod asks for, where the pods don't exist yet (a pending vcjob)."""
    loose: bool = False
    """Volcano made it for pods that bring none, of a Deployment, say: each of them is wanted, not
    only its minimum."""


@record
class Queue:
    name: str
    open: bool = True
    capability: Resources | None = None
    deserved: Resources | None = None
    guarantee: Resources | None = None
    parent: str | None = None
    """The queue it is a child of; None for a child of the root."""
    weight: int = 1
    """Weight of its share under the proportion plugin."""
    priority: int = 0
    reclaimable: bool = True


@record
class Quota:
    """A ResourceQuota: what all pods of a namespace may ask for together."""

    key: str
    """namespace/name"""
    hard: Resources
    """By the resource's own name, `requests.` left out; `pods` counts pods. Limits are no part of
    it: no scheduler goes by them."""
    used: Resources = field(default_factory=dict)
    scoped: bool = False
    """It counts only some pods, by priority class, say."""


@record
class SetAside:
    """A claim that had room and did not start: something is in its way that we don't model."""

    until: Instant
    times: int
    """How often in a row; each time is twice as long as the one before."""


@record
class Freed:
    """Surplus that was told to leave for a gang or a pod of others."""

    until: Instant
    """None leaves again before, if it has been carried out."""
    times: int
    """How often in a row; the first time may be repeated at once, the second after a minute, and
    each further one after twice as long as the one before."""
    uids: tuple[str, ...]
    """Uids of the pods told to leave."""


@record
class Unplaced:
    """Surplus of a job that found no place."""

    last: Instant
    times: int
    """How often in a row; growth stays away for the cooldown, doubled each further time."""
    node_came: bool = False
    """Since then: growth stays away for one cooldown less than `times`, not for the first."""


@record
class Memory:
    """Facts that a plan hands to the next, by key of the job or gang, or by `pod KEY` of a pod
    without one. Losing it costs only calm, so it may live in the operator's memory."""

    idle_since: Mapping[str, Instant] = field(default_factory=dict)
    """Since when idle room alone has been enough for it."""
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)
    blocked_since: Mapping[str, Instant] = field(default_factory=dict)
    """Gangs below their minimum that hold room and cannot go on."""
    unplaced: Mapping[str, Unplaced] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    """Names of the nodes that took pods; none before the first plan."""
    rebalanced: Mapping[str, Instant] = field(default_factory=dict)
    """By queue, when rebalancing last took workers from a job of it."""
    freed: Mapping[str, Freed] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    """Claims that surplus leaves for though one that goes before them is blocked, as it might not
    ask for that surplus, say: until they start they go first, or it would take what leaves."""


@record
class Snapshot:
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    jobs: tuple[Job, ...] = ()
    gangs: tuple[Gang, ...] = ()
    policies: tuple[QueuePolicy, ...] = ()
    """All policies; `api.queue_policy.effective` chooses among several for one queue."""
    proportion: bool = False
    """True if Volcano divides by the proportion plugin's weights instead of capacity's deserved."""
    queues: tuple[Queue, ...] = ()
    """A job of a queue that is not here cannot start; with no queue at all (no Volcano), every
    queue is open and without limits."""
    memory: Memory = field(default_factory=Memory)
    """The last plan's `memory`."""
    quotas: tuple[Quota, ...] = ()
