"""Observations of a job that a reconcile goes by, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import CONTAINER, PyTorchJob
from volcano_elastic.api.role import Role, labelled
from volcano_elastic.podgroup.pod_annotation import is_protected
from volcano_elastic.pytorchjob import failure_class, out_of_memory
from volcano_elastic.pytorchjob.at_start import AtStart
from volcano_elastic.pytorchjob.environment import TrainerSettings
from volcano_elastic.pytorchjob.failure_class import Failure, FailureClass
from volcano_elastic.pytorchjob.failure_rule import FailureRule
from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE
from volcano_elastic.pytorchjob.out_of_memory import Shortage
from volcano_elastic.pytorchjob.pod import AVOIDS, FAILURES, RESTARTS, Resources
from volcano_elastic.pytorchjob.servers import Servers


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """Hardware of a node that failed a job, as the job's coordinator tells it."""

    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Resize:
    """A planner's decision: the new size, and which pods leave for it."""

    old: int
    new: int
    reason: str
    message: str
    remove: frozenset[str] = frozenset()
    """Names of pods."""
    move: frozenset[str] = frozenset()
    """Names of pods that leave their node and are made anew elsewhere."""


@dataclass(frozen=True, slots=True)
class Observed:
    pods: tuple[Mapping[str, Any], ...] = ()
    services: tuple[Mapping[str, Any], ...] = ()
    """Both owned by this very job, in any state."""
    podgroup: Mapping[str, Any] | None = None
    autoscaler: Mapping[str, Any] | None = None
    """The job's own HorizontalPodAutoscaler."""
    resources: Mapping[str, Resources] = field(default_factory=dict)
    """By pod's name, what that pod asks for instead of what its role's template says, when it is
    created from now on."""
    resize: Resize | None = None
    admission_wait: timedelta = timedelta(0)
    """For how long the job's first pods must not be created yet."""
    protect: timedelta | None = None
    """The queue policy's shrink.protect: how long after binding a surplus pod is spared."""
    grace: timedelta | None = None
    """The queue policy's shrink.grace: the most a surplus pod gets to finish its step."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """By uid, why a pod that nobody has ended is lost with its node."""
    lost_at: datetime | None = None
    """When a pod may be lost by what is known now, and the job is to be looked at anew."""
    shortages: Mapping[str, Shortage] = field(default_factory=dict)
    """By uid, which pods ran out of memory, and what each is given."""
    failed_nodes: Mapping[str, NodeFailure] = field(default_factory=dict)
    """By name."""
    exclude_for: timedelta = timedelta(minutes=30)
    """The queue policy's nodes.excludeSeconds."""
    rebalances: bool = False
    """The queue policy's nodes.stragglers is Rebalance."""
    failure_rules: tuple[FailureRule, ...] = ()
    """Rows beside those of `failure_class`, which go before them."""
    at_start: AtStart = field(default_factory=AtStart)
    """Resources that pods made from now on ask for instead of those of their templates."""
    servers: Servers = field(default_factory=Servers)
    """How many parameter servers there should be."""
    needs_first: bool = True
    """The elastic role's other pods can't go on without its pod 0."""
    to_leave: Mapping[str, str] = field(default_factory=dict)
    """Nodes that elastic jobs leave, with the reason."""

    @property
    def trainer(self) -> TrainerSettings:
        """Return what the job's pods are told."""
        return TrainerSettings(self.rebalances, self.exclude_for, self.failure_rules)


class State(StrEnum):
    LIVE = "live"
    """Pending or running, and there to stay."""
    LEAVING = "leaving"
    """Has a deletion time: counts neither as success nor as failure."""
    SUCCEEDED = "succeeded"
    """Ended well, and keeps its index."""
    RETRY = "retry"
    """Failed, and is made again at the same index."""
    EVICTED = "evicted"
    """Failed because something took its place; elastic jobs only."""
    LOST = "lost"
    """Failed for good."""
    NODE_LOST = "node lost"
    """Lost with its node: made again at the same index, which counts as no failure."""
    OUT_OF_MEMORY = "no memory"
    """Ran out of memory: made again with more at the same index, which counts as no failure."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod."""

    role: Role
    index: int
    name: str
    uid: str
    state: State
    bound: bool
    running: bool
    ready: bool
    protected: bool
    restarts: int
    """Restarts of the replica so far, by the kubelet and by the operator, one that is due
    included, and without those that brought it more memory."""
    taken_over: int
    """How many of `restarts` were of pods before this one."""
    failures: int
    """Pods of the replica that failed in a row before this one."""
    created: datetime
    grace: timedelta
    """Its terminationGracePeriodSeconds."""
    leaves_by: datetime | None
    """When a leaving pod's grace ends."""
    evicted: datetime | None
    """When a scheduler, the kubelet or a drain told it to go, even if it has not gone yet."""
    ended: datetime | None
    """When its last container ended."""
    exit_code: int | None
    """None while the pod runs, also where its container ended before; `failure` has that."""
    shortage: Shortage | None
    """None: it has not run out of memory."""
    comes_back: bool
    """Leaving, and made again at the same index with more memory."""
    node: str = ""
    """Empty while it has none."""
    avoids: frozenset[str] = frozenset()
    """Names of the nodes that it must not go to."""
    unplaced: datetime | None = None
    """Since when a scheduler has found no node for it."""
    failure: Failure | None = None
    """How it failed, or why its container was started again last."""

    @property
    def interrupted(self) -> bool:
        """Return whether it failed because something else wanted its place, or its node went."""
        return self.failure is not None and self.failure.kind is FailureClass.INTERRUPTION

    @property
    def live(self) -> bool:
        return self.state is State.LIVE

    @property
    def runs_out_of_memory(self) -> bool:
        """True where it ran out of memory and its pod goes on, restarted by the kubelet."""
        return self.state is State.OUT_OF_MEMORY and self.running

    @property
    def first(self) -> bool:
        """Pod 0 of the elastic role, at which the others meet."""
        return self.role.elastic and self.index == 0


def replicas(job: PyTorchJob, observed: Observed) -> list[Replica]:
    """Return the job's pods in falling task priority."""
    given = out_of_memory.remembered(job)
    found = [replica for pod in observed.pods if (replica := _replica(job, pod, observed, given))]
    return sorted(found, key=lambda r: (-r.role.priority, r.index))


def _replica(
    job: PyTorchJob, pod: Mapping[str, Any], observed: Observed, given: Mapping[str, Bytes]
) -> Replica | None:
    meta, status = pod["metadata"], pod.get("status") or {}
    spec, labels = pod.get("spec") or {}, meta.get("labels") or {}
    role = labelled(labels.get(REPLICA_TYPE, ""))
    index = labels.get(REPLICA_INDEX, "")
    if role is None or not index.isdigit():
        return None
    phase, leaves_by = status.get("phase", "Pending"), meta.get("deletionTimestamp")
    over = phase in ("Succeeded", "Failed")
    code = api_pod.exit_code(pod, CONTAINER) if over else None
    evicted = api_pod.evicted_at(pod)
    annotations = meta.get("annotations") or {}
    replica = job.replicas.get(role.name)
    policy = replica.restart_policy if replica else "Never"
    running = phase == "Running"
    state = _state(
        phase,
        leaving=bool(leaves_by),
        evicted=evicted is not None,
        elastic=job.elastic is not None,
        policy=policy,
        code=code,
    )
    shortage = observed.shortages.get(meta.get("uid", ""))
    if meta.get("uid") in observed.lost and not over:
        state = State.NODE_LOST
    elif shortage is not None and shortage.more and state in (State.LIVE, State.RETRY):
        state = State.OUT_OF_MEMORY
    more = given.get(meta["name"])
    comes_back = (
        state is State.LEAVING
        and evicted is None
        and more is not None
        and out_of_memory.request(pod) < more
    )
    rules = observed.failure_rules
    restart = failure_class.of_restart(pod, CONTAINER, rules)
    failure = failure_class.of_pod(pod, CONTAINER, rules) or restart
    interrupted = failure is not None and failure.kind is FailureClass.INTERRUPTION
    restarts = api_pod.restarts(pod) + (state is State.RETRY and not interrupted)
    if (comes_back or state is State.OUT_OF_MEMORY) and out_of_memory.restarted_in_place(pod):
        restarts -= 1
    if restart is not None and restart.kind is FailureClass.INTERRUPTION:
        restarts = max(0, restarts - 1)  # of several, what is known is how the last came about
    taken_over = _count(annotations, RESTARTS)
    return Replica(
        role=role,
        index=int(index),
        name=meta["name"],
        uid=meta.get("uid", ""),
        state=state,
        bound=bool(spec.get("nodeName")),
        running=running,
        ready=api_pod.ready(pod),
        protected=is_protected(pod),
        restarts=taken_over + restarts,
        taken_over=taken_over,
        failures=_count(annotations, FAILURES),
        created=moment.parse(meta["creationTimestamp"]),
        grace=timedelta(seconds=float(spec.get("terminationGracePeriodSeconds", 30))),
        leaves_by=moment.parse_optional(leaves_by),
        evicted=evicted,
        ended=api_pod.finished_at(pod) if over else None,
        exit_code=code,
        shortage=shortage,
        comes_back=comes_back,
        node=spec.get("nodeName") or "",
        avoids=frozenset(filter(None, annotations.get(AVOIDS, "").split(","))),
        unplaced=_unplaced(pod),
        failure=failure,
    )


def _unplaced(pod: Mapping[str, Any]) -> datetime | None:
    found = api_pod.condition(pod, "PodScheduled")
    if found is None or found.get("status") != "False":
        return None
    return moment.parse_optional(found.get("lastTransitionTime"))


def _count(annotations: Mapping[str, str], name: str) -> int:
    text = annotations.get(name, "0")
    return int(text) if text.isdigit() else 0


def _state(
    phase: str, *, leaving: bool, evicted: bool, elastic: bool, policy: str, code: int | None
) -> State:
    if leaving:
        return State.LEAVING
    if phase == "Succeeded":
        return State.SUCCEEDED
    if phase != "Failed":
        return State.LIVE
    if evicted and elastic:
        return State.EVICTED
    # Without an exit code the node failed, not the program.
    if policy in ("Always", "OnFailure") or (
        policy == "ExitCode" and (code is None or code >= 128)
    ):
        return State.RETRY
    return State.LOST
