"""The time that pods hold their places before their containers run, for a job's goodput; pure.

The trainer's ledger begins with a pod's agent, which cannot know since when its pod is on a node.
The pod's status says it: its scheduling, then its training container's first start. Each pod counts
once; `podsUntil` is the latest start that counts already, for an operator that begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.pytorchjob import CONTAINER
from volcano_elastic.pytorchjob.goodput import with_pods

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Start:
    """The first start of a pod's training container."""

    uid: str
    at: int
    """Milliseconds since 1970."""
    waited: int
    """Milliseconds since the pod had its place."""


def start_of(pod: Mapping[str, Any]) -> Start | None:
    """Return it; None where the pod has no place, never began, or doesn't tell."""
    placed = api_pod.condition(pod, "PodScheduled") or {}
    since = moment.parse_optional(placed.get("lastTransitionTime"))
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    status: Mapping[str, Any] = next((one for one in statuses if one.get("name") == CONTAINER), {})
    restarts = status.get("restartCount") or 0
    # Of earlier starts than these two nothing is known.
    state = status.get("state" if not restarts else "lastState") or {}
    ran = state.get("running") or state.get("terminated") or {}
    began = moment.parse_optional(ran.get("startedAt")) if restarts < 2 else None
    if placed.get("status") != "True" or since is None or began is None:
        return None
    epoch = datetime.fromtimestamp(0, began.tzinfo)
    waited = max(0, (began - since) // _MILLISECOND)
    return Start(pod["metadata"]["uid"], (began - epoch) // _MILLISECOND, waited)


class PodStartups:
    """Remembers which pods' startups are in their jobs' `status.elastic.goodput`."""

    def __init__(self) -> None:
        self._counted: dict[str, set[str]] = {}
        """By job's uid, uids of pods."""

    def forget(self) -> None:
        """Another operator may have counted meanwhile."""
        self._counted.clear()

    def keep(self, jobs: Iterable[str]) -> None:
        """Drop all jobs but those with these uids."""
        self._counted = {uid: self._counted[uid] for uid in jobs if uid in self._counted}

    def count(
        self,
        job: str,
        known: Mapping[str, Any],
        pods: Iterable[Mapping[str, Any]],
        processes: int,
    ) -> dict[str, Any]:
        """Return `status.elastic.goodput` with the startups of pods that are not in it yet.

        Args:
            job: its uid.
            known: what it has.
            pods: all that are there.
            processes: of each; 0 while that isn't known, and nothing is counted.
        """
        if not processes:
            return dict(known)
        until = known.get("podsUntil")
        until = until if isinstance(until, int) else -1
        starts = [start for pod in pods if (start := start_of(pod)) is not None]
        counted = self._counted.get(job)
        if counted is None:
            counted = {start.uid for start in starts if start.at <= until}
        new = [start for start in starts if start.uid not in counted]
        self._counted[job] = counted & {start.uid for start in starts} | {s.uid for s in new}
        if not new:
            return dict(known)
        milliseconds = processes * sum(start.waited for start in new)
        return with_pods(known, milliseconds, max(until, *(start.at for start in new)))
