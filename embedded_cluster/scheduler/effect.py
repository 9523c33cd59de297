"""Effects that a session decided, to be carried out by the executor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from embedded_cluster.scheduler.snapshot import Task
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import PODS, Object, Resource


@dataclass(frozen=True, slots=True)
class Bind:
    pod: Task
    node: str


@dataclass(frozen=True, slots=True)
class Evict:
    pod: Task
    action: str
    """`preempt` or `reclaim`"""


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object that has to be there, whoever makes it."""

    resource: Resource
    body: Object


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Merges `status` into that of a PodGroup, queue or pod."""

    resource: Resource
    key: str
    status: Object
    uid: str | None = None
    """Keeps a namesake made meanwhile from being told."""


Effect = Bind | Evict | Create | SetStatus


def set_pod_conditions(pod: Task, *conditions: Object, **more: str) -> SetStatus:
    """Other conditions of the pod stay as they are."""
    return SetStatus(PODS, pod.key, {"conditions": list(conditions), **more}, pod.uid)


def condition(kind: str, status: str, reason: str, message: str, now: datetime) -> Object:
    said = {"type": kind, "status": status, "reason": reason, "message": message}
    return said | {"lastTransitionTime": timestamp(now)}
