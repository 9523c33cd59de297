"""Why a size changes, or does not: codes, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Reason(StrEnum):
    """Why a size changes, or does not; the word that events and status carry."""

    GREW_INTO_IDLE = "GrewIntoIdle"
    SHRUNK_FOR_MINIMUM = "ShrunkForMinimum"
    SHRUNK_FOR_POD = "ShrunkForPod"
    """For a pod that is no job's and no gang's minimum, a Deployment's, say."""
    SURPLUS_UNPLACED = "SurplusUnplaced"
    ROUNDED_TO_UNIT = "RoundedToUnit"
    LOWERED_TO_MAX = "LoweredToMax"
    LOWERED_TO_CAPABILITY = "LoweredToCapability"
    """Its queue, or one above it, held more than its capability."""
    RAISED_TO_MIN = "RaisedToMin"
    SLOWED_DOWN = "SlowedDown"
    """Measured slower at this size than at a smaller one."""
    REBALANCED = "Rebalanced"
    """Gives surplus to a job that gains more from it."""
    DRAINED = "Drained"
    LEFT_NODE = "LeftNode"
    """Some of its pods leave nodes that failed, or are about to go."""
    GAVE_UP_MINIMUM = "GaveUpMinimum"
    """All its pods leave, since gangs below their minimums block each other."""
    # why not more
    AT_MAX = "AtMax"
    AT_MAX_PER_JOB = "AtMaxPerJob"
    """The queue policy's surplus.maxPerJob."""
    AT_REPLICAS = "AtReplicas"
    """Its autoscaler (scaler hpa) or a ScalePlan wishes it."""
    MAX_STEP_TOO_SMALL = "MaxStepTooSmall"
    """The queue policy's grow.maxStep is less than the job's nodeUnit."""
    NO_ROOM = "NoRoom"
    COOLING_DOWN = "CoolingDown"
    WAITING_FOR_PODS = "WaitingForPods"
    ROOM_OWED_TO_MINIMUM = "RoomOwedToMinimum"
    QUEUE_CLOSED = "QueueClosed"
    FINISHING = "Finishing"
    INEFFICIENT = "Inefficient"
    """A larger size is slower, or less efficient than the policy's minEfficiency."""
    NOT_WORTH_A_PAUSE = "NotWorthAPause"
    """The little that it would gain does not pay for the pause of a resize."""
    HELD = "Held"
    """The queue policy's mode."""
    UNMODELLED = "Unmodelled"
    QUEUE_FULL = "QueueFull"
    QUOTA_FULL = "QuotaFull"
    """The ResourceQuota of its namespace."""
    HEADROOM_KEPT = "HeadroomKept"
    GUARANTEED_TO_OTHERS = "GuaranteedToOthers"
    # why not less
    AT_MIN = "AtMin"
    NOBODY_WAITS = "NobodyWaits"
    NOT_NEEDED = "NotNeeded"
    """All that wait have room without this job's surplus, or could not start even with it."""


WORDS: Mapping[Reason, str] = {
    Reason.GREW_INTO_IDLE: "it grew into idle room that nobody waits for",
    Reason.SHRUNK_FOR_MINIMUM: "it gave surplus back so that a minimum can start",
    Reason.SHRUNK_FOR_POD: "it gave surplus back to a pod that found no node",
    Reason.SURPLUS_UNPLACED: "some of its surplus found no place to run",
    Reason.ROUNDED_TO_UNIT: "its size was not a multiple of nodeUnit",
    Reason.LOWERED_TO_MAX: "its size was above its maximum",
    Reason.LOWERED_TO_CAPABILITY: "its queue held more than its capability",
    Reason.RAISED_TO_MIN: "its size was below its minimum",
    Reason.SLOWED_DOWN: "it was slower than at a smaller size",
    Reason.REBALANCED: "it gave workers to a job that gains more from them",
    Reason.DRAINED: "its queue is being drained",
    Reason.LEFT_NODE: "some of its pods left nodes that failed, or are about to go",
    Reason.GAVE_UP_MINIMUM: "gangs below their minimums blocked each other",
    Reason.AT_MAX: "it is at its maximum",
    Reason.AT_MAX_PER_JOB: "it has all the surplus that its queue's policy allows (maxPerJob)",
    Reason.AT_REPLICAS: "it has the replicas that its autoscaler, or a ScalePlan, asks for",
    Reason.MAX_STEP_TOO_SMALL: "its nodeUnit is more than its queue's policy adds at once, maxStep",
    Reason.NO_ROOM: "there is no idle room that its workers could use",
    Reason.COOLING_DOWN: "it changed its size a short while ago and is cooling down",
    Reason.WAITING_FOR_PODS: "the pods of its present size have not all found a node yet",
    Reason.ROOM_OWED_TO_MINIMUM: "the room is kept for who waits to start",
    Reason.QUEUE_CLOSED: "its queue is closed or does not exist",
    Reason.FINISHING: "some of its workers have finished already",
    Reason.INEFFICIENT: "a larger size would be slower, or too inefficient",
    Reason.NOT_WORTH_A_PAUSE: "what it would gain does not pay for the pause of a resize",
    Reason.HELD: "the mode of its queue's policy keeps sizes as they are",
    Reason.UNMODELLED: "its pods need what can't be foreseen (resourceClaims, networkTopology)",
    Reason.QUEUE_FULL: "its queue may not hold more",
    Reason.QUOTA_FULL: "the ResourceQuota of its namespace lets it make no more pods",
    Reason.HEADROOM_KEPT: "its queue's policy keeps the rest as headroom",
    Reason.GUARANTEED_TO_OTHERS: "the rest is guaranteed to other queues",
    Reason.AT_MIN: "it is at its minimum, which is never taken",
    Reason.NOBODY_WAITS: "nobody waits for its surplus",
    Reason.NOT_NEEDED: "who waits has room without it, or could not start even with it",
}


@dataclass(frozen=True, slots=True)
class NoChange:
    """Why a job keeps its size."""

    why_not_more: Reason
    why_not_less: Reason


@cache
def no_change(why_not_more: Reason, why_not_less: Reason) -> NoChange:
    """Made once: a large cluster has ten thousand of them in each plan."""
    return NoChange(why_not_more, why_not_less)
