"""Actions of a reconcile, as data. The executor performs one stage after another, all
actions of a stage at once; if one fails, later stages wait for the next reconcile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, ClassVar

Object = dict[str, Any]


class Stage(IntEnum):
    RECORD = 0
    """The new size is durable before any pod goes for it."""
    PROTECT = 1
    """The gang and its protection are right before pods go or come."""
    REMOVE = 2
    CREATE = 3
    TELL = 4


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Merge patch of the job's status."""

    stage: ClassVar[Stage] = Stage.RECORD
    status: Object


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    stage: ClassVar[Stage] = Stage.PROTECT
    body: Object


@dataclass(frozen=True, slots=True)
class PatchPodGroup:
    """Merge patch of the spec."""

    stage: ClassVar[Stage] = Stage.PROTECT
    name: str
    body: Object


@dataclass(frozen=True, slots=True)
class PatchPod:
    """Merge patch."""

    stage: ClassVar[Stage] = Stage.PROTECT
    name: str
    body: Object


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Merge patch of a running pod's subresource `resize`. One that is refused is not asked for
    again, and holds nothing else up."""

    stage: ClassVar[Stage] = Stage.CREATE
    name: str
    uid: str
    body: Object


@dataclass(frozen=True, slots=True)
class DeletePod:
    stage: ClassVar[Stage] = Stage.REMOVE
    name: str
    uid: str
    grace: timedelta | None = None
    """None leaves it to the pod's own terminationGracePeriodSeconds."""


@dataclass(frozen=True, slots=True)
class DeleteService:
    stage: ClassVar[Stage] = Stage.REMOVE
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    stage: ClassVar[Stage] = Stage.REMOVE
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateAutoscaler:
    """A HorizontalPodAutoscaler."""

    stage: ClassVar[Stage] = Stage.CREATE
    body: Object


@dataclass(frozen=True, slots=True)
class PatchAutoscaler:
    """Merge patch of the spec."""

    stage: ClassVar[Stage] = Stage.CREATE
    name: str
    body: Object


@dataclass(frozen=True, slots=True)
class DeleteAutoscaler:
    stage: ClassVar[Stage] = Stage.REMOVE
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Its time to live is over; its pods go with it."""

    stage: ClassVar[Stage] = Stage.REMOVE


@dataclass(frozen=True, slots=True)
class CreatePod:
    stage: ClassVar[Stage] = Stage.CREATE
    body: Object


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """The job's token, which its pods need to start; the executor fills it in."""

    stage: ClassVar[Stage] = Stage.PROTECT
    body: Object


@dataclass(frozen=True, slots=True)
class CreateService:
    stage: ClassVar[Stage] = Stage.CREATE
    body: Object


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """About the job; best effort."""

    stage: ClassVar[Stage] = Stage.TELL
    reason: str
    message: str
    warning: bool = False
    deduplicated: bool = False
    """Each reconcile emits it for as long as it holds; the executor sends it once a message."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look again then, even if nothing changes."""

    stage: ClassVar[Stage] = Stage.TELL
    after: timedelta


Action = (
    PatchStatus
    | CreatePodGroup
    | PatchPodGroup
    | PatchPod
    | ResizePod
    | DeletePod
    | DeleteService
    | DeletePodGroup
    | CreateAutoscaler
    | PatchAutoscaler
    | DeleteAutoscaler
    | DeleteJob
    | CreatePod
    | CreateSecret
    | CreateService
    | EmitEvent
    | Requeue
)
