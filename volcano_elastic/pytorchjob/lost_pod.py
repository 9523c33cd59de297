"""Decides which pods are lost with their node, though nobody has ended them.

Two witnesses: the node is in trouble, and the job's coordinator, which its pods talk to all the
time, hears nothing from the pod.

Stock torchrun has no coordinator of ours. Its workers end with the store at which they meet,
though, and begin anew: one that did so is the second witness against the pod that served it.

both             ─► lost at once; silence counts if found by a question asked since the trouble was
                    seen, and a coordinator's own if it has left two unanswered
one of them      ─► lost once it has said so for `lost_after`
neither          ─► not lost

A lost pod may be alive behind a partition. It may then train on by itself for a while, but neither
its words nor its commits count: the coordinator and the storage know a newer pod of its index.
Stock torchrun has no such fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_NOTICED_LATER = timedelta(seconds=60)
"""A node is in trouble for Kubernetes so long after its workers' peers have noticed, at most."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A node that can't be counted on."""

    reason: str
    since: datetime
    seen: datetime
    """When the operator saw it first."""


@dataclass(frozen=True, slots=True)
class Contact:
    """The contact that a job's coordinator has with a pod."""

    heard: bool = False
    """The coordinator has heard it at least once."""
    silent_since: datetime | None = None
    """When the coordinator was first seen without it; None while it is heard."""
    asked: datetime | None = None
    """When this was learned last."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job that has been given to a node and has not ended."""

    uid: str
    node: str
    index: int | None
    """Index in the elastic role, by which the coordinator knows it; None for others."""
    host: bool
    """Whether the coordinator runs in it."""
    serves_store: bool = False
    """Whether the others end when they lose it: it serves stock torchrun's store."""
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
            return Trouble(f"is tainted {word}", since or _unready_since(node) or now, now)
    since = _unready_since(node)
    return None if since is None else Trouble("is not Ready", since, now)


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
) -> dict[str, Contact]:
    """Return each pod's contact by uid after the coordinator was asked.

    Args:
        heard: indexes of the pods that it hears; None: it gave no answer, which says nothing of any
            pod but its own.
    """
    found = {}
    for pod in pods:
        known = before.get(pod.uid, Contact())
        present = pod.host if pod.index is None else pod.index in (heard or ())
        if heard is not None and present:
            found[pod.uid] = Contact(True, None, now)
        elif pod.host if heard is None else pod.index is not None:
            found[pod.uid] = Contact(known.heard, known.silent_since or now, now)
        else:
            found[pod.uid] = known
    return found


def judge(
    pods: Sequence[Pod],
    troubles: Mapping[str, Trouble],
    contacts: Mapping[str, Contact],
    lost_after: timedelta,
    now: datetime,
) -> Losses:
    """Return which pods are lost.

    Args:
        troubles: by node's name.
        contacts: by pod's uid.
    """
    lost, later = dict[str, str](), list[datetime]()
    anybody = any(c.heard and c.silent_since is None for c in contacts.values())
    for pod in pods:
        bad, contact = troubles.get(pod.node), contacts.get(pod.uid, Contact())
        silent = contact.silent_since
        if bad is not None and _silent_since_seen(pod, contact, bad):
            lost[pod.uid] = f"node {pod.node} {bad.reason} and nothing is heard from the pod"
            continue
        if bad is not None and pod.serves_store and _left_by_others(pods, troubles, bad):
            lost[pod.uid] = (
                f"node {pod.node} {bad.reason} and the others have lost torchrun's store"
            )
            continue
        alone: tuple[datetime, str] | None = None
        if bad is not None:
            alone = bad.since, f"node {pod.node} {bad.reason}"
        # Of a pod that was never heard its start may take long; if nobody is heard, it is not the
        # pod.
        elif silent is not None and contact.heard and anybody:
            alone = silent, "nothing is heard from the pod, though its node is Ready"
        if alone is None:
            continue
        if now >= alone[0] + lost_after:
            lost[pod.uid] = f"{alone[1]} for {lost_after.total_seconds():.0f} s"
        else:
            later.append(alone[0] + lost_after)
    return Losses(lost, min(later, default=None))


def _silent_since_seen(pod: Pod, contact: Contact, bad: Trouble) -> bool:
    if contact.silent_since is None or contact.asked is None or contact.asked < bad.seen:
        return False
    # One answer may be late; an answer without the pod is one.
    return not pod.host or contact.asked > contact.silent_since


def _left_by_others(pods: Sequence[Pod], troubles: Mapping[str, Trouble], bad: Trouble) -> bool:
    ends = (pod.container_ended for pod in pods if pod.node not in troubles)
    return any(end is not None and end >= bad.since - _NOTICED_LATER for end in ends)
