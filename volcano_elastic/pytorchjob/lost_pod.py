"""Decides which pods are lost with their node, though nobody has ended them.

Two witnesses: the node is in trouble, and the job's coordinator, which its pods talk to all the
time, hears nothing from the pod.

Stock torchrun has no coordinator of ours. Its workers end with the store at which they meet,
though, and begin anew: one that did so is the second witness against the pod that served it.

both             ─► lost at once; silence counts if two answers say so, or are missing, of which the
                    later was asked for since the trouble was seen
one of them      ─► lost once it has said so for `lost_after`
neither          ─► not lost

An agent that is connected is heard, whether its workers train or not; so is a coordinator that
gives no answer, while agents answer that they hear it. On a node that is well, no answer at all
speaks of the operator's own network rather than of the pod: it is no witness alone. No answer from
a coordinator that was asked for a minute before the trouble counts only where one was heard before,
or where any agent in the namespace answered: else it is the operator that reaches nobody.

A lost pod may be alive behind a partition. It may then train on by itself for a while, but neither
its words nor its commits count: the coordinator and the storage know a newer pod of its index.
Stock torchrun has no such fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_UNREACHED = timedelta(seconds=60)
"""Time without an answer on a sound node, after which the operator counts as cut off."""
_NOTICED_LATER = timedelta(seconds=60)
"""A node is in trouble for Kubernetes so long after its workers' peers have noticed, at most."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A node that can't be counted on."""

    reason: str
    since: datetime
    """When it began, by whose clock the node's state was written: it may be wrong."""
    seen: datetime
    """When the operator saw it first."""
    watched: bool = False
    """True if the operator saw it begin, and needs no other clock than its own."""

    @property
    def counts_from(self) -> datetime:
        return self.seen if self.watched else self.since


@dataclass(frozen=True, slots=True)
class Contact:
    """The contact that a job's coordinator has with a pod."""

    heard: bool = False
    """The coordinator has heard it at least once."""
    silent_since: datetime | None = None
    """When the coordinator was first seen without it; None while it is heard."""
    asked: datetime | None = None
    """When this was learned last."""
    witnessed: bool = False
    """Others answered then, who hear it no more either."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job that has been given to a node and has not ended."""

    uid: str
    node: str
    index: int | None
    """Index in the elastic role, by which the coordinator knows it; None for others."""
    host: bool
    """True if the coordinator runs in it."""
    serves_store: bool = False
    """True if the others end when they lose it: it serves stock torchrun's store."""
    container_ended: datetime | None = None
    """When its training container last ended and was started again."""


@dataclass(frozen=True, slots=True)
class Losses:
    lost: Mapping[str, str]
    """By uid, why."""
    look_at: datetime | None
    """When a witness that is alone will have said so for long enough."""


def trouble(node: Mapping[str, Any], now: datetime) -> Trouble | None:
    """Return what is wrong with a node; None while it is ready and reachable."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") in (UNREACHABLE, OUT_OF_SERVICE):
            since = moment.parse_optional(taint.get("timeAdded"))
            word = taint["key"].rpartition("/")[2]
            # A taint follows when the trouble is there already.
            return Trouble(f"is tainted {word}", _unready_since(node) or since or now, now)
    since = _unready_since(node)
    return None if since is None else Trouble("is not Ready", since, now)


def follow(
    before: Trouble | None, node: Mapping[str, Any], now: datetime, *, watched: bool
) -> Trouble | None:
    """Return what is wrong with a node that was in this trouble before; None while nothing is.

    Args:
        watched: whether the operator saw the node before; what is new has begun since.
    """
    found = trouble(node, now)
    if found is not None and before is not None and found.since == before.since:
        return before
    return found and replace(found, watched=watched)


def _unready_since(node: Mapping[str, Any]) -> datetime | None:
    ready = api_pod.condition(node, "Ready")
    # Nodes without kubelet (tests, virtual ones) may say nothing at all.
    if ready is None or ready.get("status") == "True":
        return None
    return moment.parse_optional(ready.get("lastTransitionTime"))


def listen(
    pods: Sequence[Pod],
    heard: frozenset[int] | None,
    before: Mapping[str, Contact],
    now: datetime,
    *,
    reached: bool = False,
    vouched: bool = False,
) -> dict[str, Contact]:
    """Return each pod's contact by uid after the coordinator was asked.

    Args:
        heard: indexes of the pods that it hears; None: it gave no answer, which says nothing of any
            pod but its own.
        reached: where it gave none, others there have answered the operator.
        vouched: some of them hear the coordinator.
    """
    found = {}
    for pod in pods:
        known = before.get(pod.uid, Contact())
        present = pod.host if pod.index is None else pod.index in (heard or ())
        if (present and heard is not None) or (pod.host and heard is None and vouched):
            found[pod.uid] = Contact(True, None, now)
        elif pod.host if heard is None else pod.index is not None:
            witnessed = heard is not None or reached
            found[pod.uid] = Contact(known.heard, known.silent_since or now, now, witnessed)
        else:
            found[pod.uid] = known
    return found


def judge(
    pods: Sequence[Pod],
    troubles: Mapping[str, Trouble],
    contacts: Mapping[str, Contact],
    lost_after: timedelta,
    now: datetime,
    *,
    reached: bool = True,
) -> Losses:
    """Return which pods are lost.

    Args:
        troubles: by node's name.
        contacts: by pod's uid.
        reached: whether anybody has answered the operator in the pods' namespace.
    """
    lost, later = dict[str, str](), list[datetime]()
    anybody = any(c.heard and c.silent_since is None for c in contacts.values())
    for pod in pods:
        bad, contact = troubles.get(pod.node), contacts.get(pod.uid, Contact())
        silent = contact.silent_since
        if bad is not None and _silent_since_seen(pod, contact, bad, reached):
            lost[pod.uid] = f"node {pod.node} {bad.reason} and nothing is heard from the pod"
            continue
        if bad is not None and pod.serves_store and _left_by_others(pods, troubles, bad):
            lost[pod.uid] = (
                f"node {pod.node} {bad.reason} and the others have lost torchrun's store"
            )
            continue
        alone: tuple[datetime, str] | None = None
        if bad is not None:
            alone = bad.counts_from, f"node {pod.node} {bad.reason}"
        # Of a pod that was never heard its start may take long; if nobody is heard, it is not the
        # pod.
        elif silent is not None and contact.heard and contact.witnessed and anybody:
            alone = silent, "nothing is heard from the pod, though its node is Ready"
        if alone is None:
            continue
        if now >= alone[0] + lost_after:
            lost[pod.uid] = f"{alone[1]} for {lost_after.total_seconds():.0f} s"
        else:
            later.append(alone[0] + lost_after)
    return Losses(lost, min(later, default=None))


def _silent_since_seen(pod: Pod, contact: Contact, bad: Trouble, reached: bool) -> bool:
    if contact.silent_since is None or contact.asked is None or contact.asked < bad.seen:
        return False
    # A pod that only just began has not been asked yet.
    unreached = not (contact.heard or reached) and bad.seen - contact.silent_since > _UNREACHED
    if pod.host and unreached:
        return False
    # One answer may be late, or come while agents are on their way to another coordinator.
    return contact.asked > contact.silent_since


def _left_by_others(pods: Sequence[Pod], troubles: Mapping[str, Trouble], bad: Trouble) -> bool:
    """Tell whether half of the others, or more, have begun anew since: one alone may have failed by
    itself, and another may only just have been made."""
    ends = [p.container_ended for p in pods if p.node not in troubles]
    late = [end for end in ends if end is not None and end >= bad.since - _NOTICED_LATER]
    return bool(late) and 2 * len(late) >= len(ends)
