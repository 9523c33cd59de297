"""Nodes that a job keeps away from for a while, since their hardware has failed it.

a failure of class hardware ─► its node is excluded until `at` + the policy's excludeSeconds
until has come              ─► not any more
pods of the minimum found no node for `_WAIT`     ─► none is: a node that may be broken beats none

The list is in `status.elastic.excludedNodes`. New pods have required anti-affinity to its nodes;
pods that still wait with an older list are made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.failure_class import FailureClass
from volcano_elastic.pytorchjob.observed import NodeFailure, Replica, State

FIELD, LIFTED = "excludedNodes", "exclusionsLiftedAt"
_WAIT = timedelta(seconds=60)
_MOST_AVOIDED = 64
"""Names in a pod; each costs the scheduler a comparison a node."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    node: str
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Exclusions:
    nodes: tuple[Exclusion, ...] = ()
    """In force now."""
    lifted: datetime | None = None
    """Failures up to then count no more: there was no room without those nodes."""
    new: tuple[Exclusion, ...] = ()
    lifted_now: tuple[Exclusion, ...] = ()

    @property
    def ends(self) -> datetime | None:
        """The time at which the first of them ends."""
        return min((one.until for one in self.nodes), default=None)

    def fields(self) -> dict[str, Any]:
        """Return what status.elastic says of them."""
        found: dict[str, Any] = {}
        if self.nodes:
            found[FIELD] = [
                {"node": e.node, "reason": e.reason, "until": moment.micro_timestamp(e.until)}
                for e in self.nodes
            ]
        if self.lifted is not None:
            found[LIFTED] = moment.micro_timestamp(self.lifted)
        return found


def read(job: PyTorchJob) -> tuple[Exclusion, ...]:
    """Return the list in the job's status; what makes no sense is left out."""
    listed = (job.status.get("elastic") or {}).get(FIELD)
    return tuple(_read(listed if isinstance(listed, list) else ()))


def _read(listed: Iterable[Any]) -> Iterator[Exclusion]:
    for raw in listed:
        try:
            until = moment.parse(raw["until"])
            yield Exclusion(str(raw["node"]), str(raw.get("reason") or ""), until)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue


def names(job: PyTorchJob) -> list[str]:
    """Return the nodes that the job's status lists; the reconcile drops those that are over."""
    return sorted({one.node for one in read(job)})


def decide(
    job: PyTorchJob,
    replicas: Sequence[Replica],
    told: Mapping[str, NodeFailure],
    exclude_for: timedelta,
    now: datetime,
) -> Exclusions:
    """Return the nodes that the job keeps away from now.

    Args:
        told: failures of nodes that the job's coordinator tells, by name.
        exclude_for: from a failure.
    """
    lifted = moment.parse_optional((job.status.get("elastic") or {}).get(LIFTED))
    if lifted is not None and now >= lifted + exclude_for:
        lifted = None
    known = {one.node: one for one in read(job) if one.until > now}
    if known and _lacks_room(job, replicas, now):
        return Exclusions(lifted=now, lifted_now=tuple(known.values()))
    new = dict[str, Exclusion]()
    for node, failure in (*told.items(), *_of_replicas(replicas, now)):
        if node in known or node in new or (lifted is not None and failure.at <= lifted):
            continue
        until = failure.at + exclude_for
        if until > now:
            new[node] = Exclusion(node, failure.reason, until)
    found = sorted((*known.values(), *new.values()), key=lambda one: one.node)
    return Exclusions(tuple(found), lifted, tuple(new.values()))


def _of_replicas(replicas: Sequence[Replica], now: datetime) -> Iterator[tuple[str, NodeFailure]]:
    for replica in replicas:
        failure = replica.failure
        if failure is not None and failure.kind is FailureClass.HARDWARE and replica.node:
            reason = f"{failure.what} failed {replica.name}"
            yield replica.node, NodeFailure(reason, failure.at or now)


def _lacks_room(job: PyTorchJob, replicas: Sequence[Replica], now: datetime) -> bool:
    """Return whether too few pods for the job to run have found a node for too long."""
    least = job.min_members
    there = sum(r.state is State.SUCCEEDED or (r.live and r.bound) for r in replicas)
    late = any(
        r.live and r.avoids and r.unplaced is not None and now >= r.unplaced + _WAIT
        for r in replicas
    )
    return late and there < least


def avoided(excluded: Iterable[str], to_leave: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes that new pods must not go to: those that failed the job first, where they
    are too many."""
    own = sorted(set(excluded))
    return tuple([*own, *sorted(set(to_leave) - set(own))][:_MOST_AVOIDED])


def outdated(replicas: Sequence[Replica], avoid: Iterable[str]) -> frozenset[str]:
    """Return the names of pods that still wait and keep away from nodes that they could go to by
    now."""
    now = set(avoid)
    return frozenset(r.name for r in replicas if r.live and not r.bound and r.avoids - now)
