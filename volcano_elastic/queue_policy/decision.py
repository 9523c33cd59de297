"""What the planner says: sizes to change, with reasons, and why others stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why a size changes, or does not; the word that events and status carry."""

    GREW_INTO_IDLE = "GrewIntoIdle"
    SHRUNK_FOR_MINIMUM = "ShrunkForMinimum"
    SURPLUS_UNPLACED = "SurplusUnplaced"
    ROUNDED_TO_UNIT = "RoundedToUnit"
    LOWERED_TO_MAX = "LoweredToMax"
    RAISED_TO_MIN = "RaisedToMin"
    # why not more
    AT_MAX = "AtMax"
    NO_ROOM = "NoRoom"
    COOLING_DOWN = "CoolingDown"
    WAITING_FOR_PODS = "WaitingForPods"
    ROOM_OWED_TO_MINIMUM = "RoomOwedToMinimum"
    QUEUE_CLOSED = "QueueClosed"
    FINISHING = "Finishing"
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


@dataclass(frozen=True, slots=True)
class Stay:
    why_not_more: Reason
    why_not_less: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    decisions: tuple[Decision, ...] = ()
    stays: Mapping[str, Stay] = field(default_factory=dict)
    """For every elastic job without a decision."""
    admitted: frozenset[str] = frozenset()
    """Jobs whose claims this plan has seen and served as far as it can: once its decisions are
    carried out their missing minimum pods may be created."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Claims that cannot start even if all surplus left: job or gang key to a sentence."""
