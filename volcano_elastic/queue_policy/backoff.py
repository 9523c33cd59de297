"""Delays what failed: claims that did not start, surplus without a place, mutual blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.job_state import cooldown
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.snapshot.snapshot import Freed, Memory, SetAside, Unplaced

UNBOUND_AFTER = timedelta(seconds=15)
"""A claim that idle room alone has been enough for this long, and that has not started."""
SET_ASIDE = timedelta(seconds=60)
"""It holds nothing for so long the first time, and twice as long each time after."""
BLOCKED_AFTER = timedelta(seconds=60)
MOST_DOUBLINGS = 10
UNPLACED_COOLDOWN = timedelta(seconds=60)
"""The least time from surplus that found no place to growth, unless a node comes."""


class Backoff:
    """Remembers failures of earlier plans, and says how long they are not tried again."""

    def __init__(self, cluster: ClusterState, now: datetime) -> None:
        memory = cluster.snapshot.memory
        self._memory, self._nodes, self._now = memory, cluster.open_nodes, now
        self._jobs = cluster.jobs
        self._unplaced = memory.unplaced
        self.rebalanced = memory.rebalanced
        """By queue, when rebalancing last took workers from a job of it."""
        if not memory.nodes:
            self._unplaced = {**cluster.told_unplaced, **memory.unplaced}
            self.rebalanced = {**cluster.told_rebalanced, **memory.rebalanced}
        elif self._nodes != memory.nodes and not set(self._nodes) <= set(memory.nodes):
            self._unplaced = {
                key: replace(found, node_came=True) for key, found in memory.unplaced.items()
            }
        self.rebalanced = {q: at for q, at in self.rebalanced.items() if q in cluster.queues}
        self.stuck = {
            key for key, since in memory.blocked_since.items() if now - since >= BLOCKED_AFTER
        }
        self.ahead = memory.ahead
        """Keys of the claims that go first."""
        freed = memory.freed
        told = {uid for found in freed.values() for uid in found.uids}
        pods = cluster.snapshot.pods if told else ()
        live = {pod.uid for pod in pods if pod.uid in told and not pod.terminating}
        self.freed = {
            key: found.until
            for key, found in freed.items()
            if key not in self._jobs and now < found.until and live.isdisjoint(found.uids)
        }
        """Until when no more surplus leaves for a claim of others, by its key."""
        self._aside: dict[str, SetAside] = {}
        self.noted = memory.set_aside.keys() | memory.idle_since.keys()
        """Keys for which `set_aside` may have something to say."""

    def set_aside(self, key: str) -> str | None:
        """Why this claim, or pod that is nobody's claim, holds nothing for now; or None."""
        found = self._memory.set_aside.get(key)
        since = self._memory.idle_since.get(key)
        if since is not None and self._now - since >= UNBOUND_AFTER:
            times = 1 if found is None else found.times + 1
            found = SetAside(self._again(times), times)
        if found is None:
            return None
        self._aside[key] = found
        if found.until <= self._now:
            return None
        until = found.until.isoformat(timespec="seconds")
        return (
            f"it had room for {UNBOUND_AFTER.seconds} s and did not start, so that others may "
            f"have the room until {until}: see its pods' events for what is in its way"
        )

    def _again(self, times: int) -> datetime:
        """Return when something is tried again that was in vain so many times."""
        wait: timedelta = SET_ASIDE * 2 ** min(times - 1, MOST_DOUBLINGS)
        return self._now + wait

    def resting(self) -> dict[str, datetime]:
        """Return until when growth stays away, by key of jobs whose surplus found no place."""
        return {
            key: until
            for key, found in self._unplaced.items()
            if key in self._jobs and self._now < (until := found.last + self._rest(key, found))
        }

    def _rest(self, key: str, found: Unplaced) -> timedelta:
        before = min(found.times - 1, MOST_DOUBLINGS)
        state = self._jobs[key]
        wait = max(cooldown(state.job, state.policy), UNPLACED_COOLDOWN)
        # A node that comes and goes is not followed each time.
        return wait * (before if found.node_came else 2**before)

    def memory(
        self,
        *,
        from_idle: set[str],
        ahead: Iterable[str],
        waiting: Iterable[Claim],
        leaving: Mapping[str, Iterable[str]],
        decisions: Iterable[Decision],
    ) -> Memory:
        """Return what the next plan needs to know of this one.

        from_idle: keys of the claims, and of others' pods, that idle room alone was enough for.
        ahead: keys of the claims served that go first from now on.
        leaving: by key of each claim of others, uids of the surplus that this plan takes for it.
        """
        old, now = self._memory, self._now
        unplaced = {
            key: found
            for key, found in self._unplaced.items()
            # Long enough to grow once more and to fail once more.
            if key in self._jobs and now - found.last < 2 * self._rest(key, found) + SET_ASIDE
        }
        rebalanced = dict(self.rebalanced)
        for decision in decisions:
            if decision.reason is Reason.REBALANCED:
                rebalanced[self._jobs[decision.job].job.queue] = now
            if decision.reason is Reason.SURPLUS_UNPLACED:
                before = self._unplaced.get(decision.job)
                unplaced[decision.job] = Unplaced(now, 1 if before is None else before.times + 1)
        freed = {key: found for key, found in old.freed.items() if key in leaving}
        for key, uids in leaving.items():
            if uids:
                last = old.freed.get(key)
                # As long as nobody has carried it out it is the same time.
                again = last is not None and set(last.uids).isdisjoint(uids)
                times = 1 if last is None else last.times + again
                # A scheduler may place a newer pod first, which nobody has seen wait: once, what
                # others took is made up for at once.
                until = now if times == 1 else self._again(times - 1)
                freed[key] = Freed(until, times, tuple(sorted(uids)))
        return Memory(
            idle_since={key: old.idle_since.get(key, now) for key in sorted(from_idle)},
            set_aside=self._aside,
            blocked_since={
                claim.key: old.blocked_since.get(claim.key, now)
                for claim in waiting
                if claim.runs and claim.key not in self._aside
            },
            unplaced=unplaced,
            rebalanced=rebalanced,
            freed=freed,
            nodes=self._nodes,
            ahead=tuple(sorted(ahead)),
        )
