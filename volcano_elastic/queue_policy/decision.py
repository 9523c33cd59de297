"""What the planner says: sizes to change, with reasons, and why others stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from volcano_elastic.api import quantity
from volcano_elastic.snapshot.snapshot import Memory


class Reason(StrEnum):
    """Why a size changes, or does not; the word that events and status carry."""

    GREW_INTO_IDLE = "GrewIntoIdle"
    SHRUNK_FOR_MINIMUM = "ShrunkForMinimum"
    SHRUNK_FOR_POD = "ShrunkForPod"
    """For a pod that is no job's and no gang's minimum, a Deployment's, say."""
    SURPLUS_UNPLACED = "SurplusUnplaced"
    ROUNDED_TO_UNIT = "RoundedToUnit"
    LOWERED_TO_MAX = "LoweredToMax"
    RAISED_TO_MIN = "RaisedToMin"
    SLOWED_DOWN = "SlowedDown"
    """Measured slower at this size than at a smaller one."""
    REBALANCED = "Rebalanced"
    """Gives surplus to a job that gains more from it."""
    DRAINED = "Drained"
    GAVE_UP_MINIMUM = "GaveUpMinimum"
    """All its pods leave, since gangs below their minimums block each other."""
    # why not more
    AT_MAX = "AtMax"
    AT_MAX_PER_JOB = "AtMaxPerJob"
    """The queue policy's surplus.maxPerJob."""
    AT_REPLICAS = "AtReplicas"
    """What its autoscaler wishes (scaler hpa)."""
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
    """Who waits has room without this job's surplus, or could not start even with it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Change `job` from one size to another; when shrinking, exactly these pods leave."""

    job: str
    old: int
    new: int
    reason: Reason
    message: str
    """One sentence for people: what for, with numbers."""
    remove: tuple[str, ...] = ()
    """Keys (namespace/name) of the pods that leave; empty when growing. Fewer than old - new when
    some of the old size's pods did not exist."""
    protect: tuple[str, ...] = ()
    """Pods that must hold the minimum in place of protected ones that leave: they become
    `preemptable: "false"` before the others go."""
    dry_run: bool = False
    """The queue is in mode DryRun: shown, not carried out."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """Why a job keeps its size."""

    why_not_more: Reason
    why_not_less: Reason


@cache
def no_change(why_not_more: Reason, why_not_less: Reason) -> NoChange:
    """Made once: a large cluster has ten thousand of them in each plan."""
    return NoChange(why_not_more, why_not_less)


class QueueFigures(NamedTuple):
    """Amounts in milli-units of the policy's `resource`."""

    resource: str
    free: int
    """Idle on nodes that take pods, as far as the queue may still use it."""
    guaranteed: int
    """What pods of minimums hold: it is never taken."""
    surplus: int
    """What elastic pods beyond the minimums hold."""
    borrowed: int
    """What the queue holds beyond the larger of its deserved and its guarantee; 0 where it states
    neither."""
    owed_to_minimums: int
    """What jobs and gangs of the queue still need to start or to go on."""
    jobs: int
    problem: str = ""
    """What is wrong with the Queue itself: its parents."""

    def shown(self) -> dict[str, str | int]:
        """As a policy's status and the tools show them: quantities, under the status' names."""
        return {
            "free": quantity.text(self.free),
            "guaranteed": quantity.text(self.guaranteed),
            "surplus": quantity.text(self.surplus),
            "borrowed": quantity.text(self.borrowed),
            "owedToMinimums": quantity.text(self.owed_to_minimums),
            "jobs": self.jobs,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    decisions: tuple[Decision, ...] = ()
    unchanged: Mapping[str, NoChange] = field(default_factory=dict)
    """For every elastic job without a decision."""
    admitted: frozenset[str] = frozenset()
    """Jobs whose claims this plan has seen and served as far as it can: once its decisions are
    carried out their missing minimum pods may be created."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Claims that cannot start even if all surplus left: job or gang key to a sentence."""
    blocked_pods: Mapping[str, str] = field(default_factory=dict)
    """The same of pods that ask for themselves: key to a sentence."""
    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    """As the snapshot shows them, before the decisions."""
    memory: Memory = field(default_factory=Memory)
    """For the next snapshot."""
