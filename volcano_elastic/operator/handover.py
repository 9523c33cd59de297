"""Hands resizes and admissions from the planner to the reconciles, and answers back. Neither side
owns it.

A resize, from the planner's `carry_out` to its answer:

offered ─► done       the job's durable size is the new one
        ─► stale      the job had changed since the plan; the next plan sees it as it is now
        ─► gone       the job is deleted, or another one bears its name
        ─► withdrawn  neither of these within the time that the planner waits

A newcomer's first pods (delete first: who makes room for them goes before they come):

waiting ─► admitted   a plan that saw the job has been carried out
        ─► overdue    no plan came within ADMISSION_LIMIT
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.pytorchjob.observed import Resize

# A planner that does not answer keeps nobody waiting for longer.
ADMISSION_LIMIT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class _Offer:
    resize: Resize
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Handover:
    """Holds the resizes that are under way and the newcomers that were admitted, by job's key.

    In memory only: after a restart the next plan decides anew, and newcomers that have pods, or are
    older than ADMISSION_LIMIT, are not asked for an admission.
    """

    def __init__(self) -> None:
        self._offers: dict[str, _Offer] = {}
        self._stale: set[str] = set()
        self._admitted: dict[str, str] = {}
        self._tell: Callable[[str], None] = lambda key: None

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job that there is something for."""
        self._tell = tell

    # The planner's side

    async def carry_out(self, resizes: Mapping[str, Resize], limit: float) -> frozenset[str]:
        """Offers each job its resize and waits until all have ended, `limit` seconds at most.

        Returns:
            Keys of the jobs whose resize was stale, or is withdrawn now.
        """
        self._offers = {key: _Offer(resize) for key, resize in resizes.items()}
        self._stale.clear()
        waits = [offer.ended.wait() for offer in self._offers.values()]
        for key in resizes:
            self._tell(key)
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*waits)
        except TimeoutError:
            pass
        undone = self._stale | self._offers.keys()
        self._offers = {}
        return frozenset(undone)

    def admit(self, newcomers: Mapping[str, str]) -> None:
        """Let the first pods of these jobs, uid by key, be created."""
        for key, uid in newcomers.items():
            if self._admitted.get(key) != uid:
                self._admitted[key] = uid
                self._tell(key)

    # The reconciles' side

    def resize_of(self, key: str) -> Resize | None:
        """Return the resize that the job is to carry out now, if there is one."""
        offer = self._offers.get(key)
        return None if offer is None else offer.resize

    def done(self, key: str, resize: Resize) -> None:
        """Note that the job has this size now."""
        self._end(key, resize)

    def stale(self, key: str, resize: Resize) -> None:
        """Note that the job is no longer the one that the plan saw."""
        if self._end(key, resize):
            self._stale.add(key)

    def gone(self, key: str) -> None:
        """Forget a job that is deleted, or whose name another one bears now."""
        self._admitted.pop(key, None)
        offer = self._offers.get(key)
        if offer is not None:
            self._end(key, offer.resize)

    def abandon(self) -> None:
        """End all resizes as stale: nobody reconciles any more."""
        for key, offer in list(self._offers.items()):
            self.stale(key, offer.resize)

    def wait(self, job: PyTorchJob, policy: QueuePolicy, now: datetime) -> timedelta:
        """Return for how long the job's first pods must not be created yet; zero if they may be.

        Nobody waits for a plan that will not be made: none is for jobs of other schedulers, or in
        a queue whose policy is off.
        """
        planned = job.uses_volcano and policy.mode is not Mode.OFF
        if not planned or self._admitted.get(job.key) == job.uid:
            return timedelta(0)
        return max(timedelta(0), job.created + ADMISSION_LIMIT - now)

    def _end(self, key: str, resize: Resize) -> bool:
        """Return whether this very resize was under way."""
        offer = self._offers.get(key)
        if offer is None or offer.resize is not resize:
            return False
        offer.ended.set()
        del self._offers[key]
        return True
