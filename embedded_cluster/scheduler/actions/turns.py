"""Takes turns: the first job of the first queue, both asked anew after each turn."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Job

_Key = tuple[object, ...]


class Turns:
    """Jobs without a queue get no turn."""

    def __init__(self, session: Session, jobs: Iterable[Job], *, skip_overused: bool) -> None:
        self._session, self._skip_overused = session, skip_overused
        self._jobs: dict[str, list[tuple[_Key, Job]]] = defaultdict(list)
        for job in jobs:
            if job.queue in session.queues:
                self.put_back(job)
        self._queues: list[tuple[_Key, str]] = []
        for name in self._jobs:
            self._put_back_queue(name)
        self._taken: str | None = None

    def take(self) -> Job | None:
        if self._taken:
            self._put_back_queue(self._taken)
            self._taken = None
        while self._queues:
            _, name = heapq.heappop(self._queues)
            overused = self._skip_overused and self._session.overused(self._session.queues[name])
            if self._jobs[name] and not overused:
                self._taken = name
                return heapq.heappop(self._jobs[name])[1]
        return None

    def put_back(self, job: Job) -> None:
        heapq.heappush(self._jobs[job.queue or ""], (self._session.job_key(job), job))

    def _put_back_queue(self, name: str) -> None:
        key = self._session.queue_key(self._session.queues[name])
        heapq.heappush(self._queues, (key, name))
