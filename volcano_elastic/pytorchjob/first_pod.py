"""Decides whether a job's workers go on without its worker 0, by what its coordinators answer.

Agents that lose worker 0 elect another host of the coordinator and train on. Not all of them can:
a container that began anew, or was in no round yet, has no vote and waits for a worker 0.

a coordinator tells of a round, and misses nobody  ─► it is not needed
none has for PATIENCE, though asked                ─► it is
none of that round's containers lives on           ─► it is, at once
the operator has just begun, and never heard of one─► it is, once it has asked for PATIENCE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.observed import Replica, State
from volcano_elastic.pytorchjob.rendezvous import can_elect
from volcano_elastic.pytorchjob.size import Size

PATIENCE = timedelta(seconds=60)
"""A node is given up some 40 s after its workers fell silent, and then the others elect."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of a job's coordinators to the operator's questions, summed up."""

    told: datetime | None = None
    """The last time that one told of a round and missed nobody."""
    left: datetime | None = None
    """The last time that a pod 0 with a node ended, or its object went."""
    silent_since: datetime | None = None
    """The first question since `told` to which none told of a round."""
    asked: datetime | None = None
    """The last of those."""
    survivors: int | None = None
    """Containers of the round that was told of which live on, but pod 0's; None: not known."""


def told(known: Answers, survivors: int | None, now: datetime) -> Answers:
    """A coordinator tells of a round, and misses nobody."""
    return replace(known, told=now, silent_since=None, asked=None, survivors=survivors)


def silent(known: Answers, now: datetime) -> Answers:
    """All that could be asked were, and none told of a round in which it misses nobody."""
    return replace(known, silent_since=known.silent_since or now, asked=now)


def needs_first(known: Answers, began: datetime) -> bool:
    """Return whether nobody goes on without worker 0.

    Args:
        began: when this operator began to ask.
    """
    if known.told is None:
        return known.asked is not None and known.asked >= began + PATIENCE
    if known.survivors == 0:
        return True
    if known.asked is None or known.asked == known.silent_since:
        return False  # one answer may be late
    return known.asked >= max(known.told, known.left or known.told) + PATIENCE


def goes_on_without(
    job: PyTorchJob, view: Sequence[Replica], size: Size | None, *, needed: bool
) -> bool:
    """Return whether pod 0 is away and the elastic role's other pods train: it is a pod like them
    then, and none of them makes room for it.

    Args:
        needed: as `needs_first` says.
    """
    if needed or size is None or not can_elect(job):
        return False
    training = sum(r.live and r.running for r in view if r.role.elastic and not r.first)
    full = training >= size.desired
    return training > 0 and not any(_has_place(r, full=full) for r in view if r.first)


def _has_place(first: Replica, *, full: bool) -> bool:
    """Return whether pod 0 has its place, or will be made again in it once its end has come; where
    the others are `full` there is none for one that doesn't run."""
    if first.state is State.SUCCEEDED or (first.live and first.running):
        return True
    if full:
        return False
    if first.state is State.LEAVING:
        return first.evicted is None
    return first.bound and first.state not in (State.NODE_LOST, State.EVICTED, State.LOST)
