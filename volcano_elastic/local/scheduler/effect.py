"""What a session decided, to be carried out by the executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from volcano_elastic.local.scheduler.resources import Resources
from volcano_elastic.local.scheduler.snapshot import PodGroupStatus, Task


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
class SetPodScheduled:
    """The pod's condition PodScheduled=False."""

    pod: Task
    reason: str
    """`Unschedulable`, or `Schedulable`: it has a place, but its gang has not."""
    message: str
    nominated_node: str | None
    """Set where others were evicted for it."""


@dataclass(frozen=True, slots=True)
class SetPodGroupStatus:
    key: str
    status: PodGroupStatus


@dataclass(frozen=True, slots=True)
class CreateQueue:
    name: str
    spec: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SetQueueStatus:
    name: str
    state: str
    allocated: Resources


Effect = Bind | Evict | SetPodScheduled | SetPodGroupStatus | CreateQueue | SetQueueStatus
