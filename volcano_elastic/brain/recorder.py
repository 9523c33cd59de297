"""Records jobs in the history, and asks it for advice; goes on without when the database fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from volcano_elastic.brain import observation
from volcano_elastic.brain.advice import Advice, Unknown, advise
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.gpu_load import GpuUse
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.past import Past
from volcano_elastic.database.database import DatabaseError

_log = logging.getLogger(__name__)
_MOST_RUNS = 5000
"""Read at once as Brain begins; those that end later are known beside them."""
Object = Mapping[str, Any]
Answer = TypeVar("Answer")


class Recorder:
    """Runs of the jobs that are there, in memory; written to the history when they change.

    Args:
        keep: for how long after a run was last seen it is kept.
    """

    def __init__(
        self,
        history: History,
        clock: Callable[[], datetime],
        keep: timedelta,
        metrics: Metrics | None = None,
    ) -> None:
        self._history, self._clock, self._keep = history, clock, keep
        self._metrics = metrics or Metrics()
        self._runs: dict[str, Run] = {}
        """By uid, as they are known; those that could not be written stay here."""
        self._written: dict[str, Run] = {}
        self._past: Past | None = None
        """None: not read yet."""
        self._ready = False
        self._told = ""
        self._turn = asyncio.Lock()

    async def job_changed(self, job: Object, *, deleted: bool = False) -> Run:
        """Takes a job as it is now, or was when it was deleted; return its run."""
        uid = job["metadata"]["uid"]
        before = self._runs.get(uid) or await self._ask(lambda: self._history.run(uid), None)
        run = observation.seen(job, before, self._clock(), deleted=deleted)
        self._runs[uid] = run
        await self._write(run)
        return run

    def known(self, uid: str) -> Run | None:
        """Return the run of a job that goes on."""
        return self._runs.get(uid)

    async def pods_measured(
        self,
        pods: Iterable[Object],
        used: Mapping[tuple[str, str], Amounts],
        gpus: Mapping[tuple[str, str], GpuUse],
    ) -> None:
        """Takes a sample of pods.

        Args:
            pods: of any jobs.
            used: as `observation.usage` returns it.
            gpus: as `observation.told_gpus` does.
        """
        now = self._clock()
        by_job: dict[str, list[Object]] = {}
        for pod in pods:
            for owner in pod["metadata"].get("ownerReferences") or ():
                by_job.setdefault(owner.get("uid", ""), []).append(pod)
        for uid, run in list(self._runs.items()):
            mine = {name: load for (space, name), load in used.items() if space == run.namespace}
            theirs = {name: use for (space, name), use in gpus.items() if space == run.namespace}
            found = observation.measured(run, by_job.get(uid, ()), mine, now, theirs)
            if found.loads != run.loads:
                self._runs[uid] = found
            await self._write(self._runs[uid])

    async def advice(
        self, job: Object, run: Run, node: Amounts | None, unknown: Unknown | None
    ) -> list[Advice]:
        """Return what the job should ask for; by what is known already while the database fails."""
        if self._past is None:
            self._past = await self._ask(self._read_past, None)
        begun = time.thread_time()
        found = advise(job, run, self._past or Past(), node, unknown)
        self._metrics.advice_seconds.observe(time.thread_time() - begun)
        return found

    def _read_past(self) -> Past:
        return Past(reversed(self._history.runs(most=_MOST_RUNS)))

    async def forget_old(self) -> None:
        """Removes runs that are older than they are kept."""
        before = self._clock() - self._keep
        if await self._ask(lambda: self._history.forget(before), 0):
            self._past = None

    async def _write(self, run: Run) -> None:
        known = self._written.get(run.uid)
        if known is not None and replace(known, seen=run.seen) == run:
            return
        if await self._ask(lambda: self._done(run), False):
            self._written[run.uid] = run
            if run.outcome:
                if self._past is not None:
                    self._past.add(run)
                self._runs.pop(run.uid, None)
                self._written.pop(run.uid, None)

    def _done(self, run: Run) -> bool:
        self._history.write(run)
        return True

    async def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the history's answer, in its own thread and one at a time; `otherwise` if the
        database fails, which is logged once a reason."""
        async with self._turn:
            try:
                if not self._ready:
                    await asyncio.to_thread(self._history.migrate)
                    self._ready = True
                answer = await asyncio.to_thread(question)
            except DatabaseError as error:
                self._metrics.history_up.set(0)
                self._metrics.history_failures.inc()
                # It may come back without its tables, and what was in them.
                self._ready = False
                self._written.clear()
                if str(error) != self._told:
                    self._told = str(error)
                    _log.warning("no history, so no advice: %s", error)
                return otherwise
            self._metrics.history_up.set(1)
            if self._told:
                self._told = ""
                _log.warning("the history is back: %s", self._history.name)
            return answer
