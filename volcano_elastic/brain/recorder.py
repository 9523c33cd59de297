"""Records jobs in the history, and asks it for advice; goes on without when the database fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.brain import observation
from volcano_elastic.brain.advice import Advice, Unknown, advise
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.asking import Asking
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.gpu_load import GpuUse
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.past import Past
from volcano_elastic.database.database import RefusedError

_log = logging.getLogger(__name__)
_MOST_RUNS = 5000
"""Read at once as Brain begins; those that end later are known beside them."""
Object = Mapping[str, Any]


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
        self._unread: set[str] = set()
        """Uids of runs of which nobody could tell what was known of them before."""
        self._refused: set[str] = set()
        """Uids of runs that the database doesn't take."""
        self._past: Past | None = None
        """None: not read yet."""
        self._asking = Asking(history, self._metrics, self._written.clear)

    async def job_changed(self, job: Object, *, deleted: bool = False) -> Run:
        """Takes a job as it is now, or was when it was deleted; return its run."""
        uid = job["metadata"]["uid"]
        before = self._runs.get(uid)
        if before is None:
            found = await self._asking.ask(lambda: (self._history.run(uid),))
            if found is None:
                self._unread.add(uid)
            else:
                (before,) = found
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
            gpus: as `observation.reported_gpus` does.
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
            self._past = await self._asking.ask(self._read_past)
        begun = time.thread_time()
        found = advise(job, run, self._past or Past(), node, unknown)
        self._metrics.advice_seconds.observe(time.thread_time() - begun)
        return found

    def _read_past(self) -> Past:
        return Past(reversed(self._history.runs(most=_MOST_RUNS)))

    async def forget_old(self) -> None:
        """Removes runs that are older than they are kept."""
        before = self._clock() - self._keep
        if await self._asking.ask(lambda: self._history.forget(before)):
            self._past = None

    async def _write(self, run: Run) -> None:
        known = self._written.get(run.uid)
        if known is not None and replace(known, seen=run.seen) == run:
            return
        is_unread = run.uid in self._unread
        try:
            written = await self._asking.ask(lambda: self._done(run, is_unread))
        except RefusedError as error:
            # That run's own fault: others are written all the same.
            if run.uid not in self._refused:
                _log.warning("%s/%s is not in the history: %s", run.namespace, run.name, error)
            self._refused.add(run.uid)
            written = run
        if written is None:
            return
        self._unread.discard(run.uid)
        self._written[run.uid] = written
        if self._runs.get(run.uid) == run:
            self._runs[run.uid] = written
        if run.outcome:
            if self._past is not None:
                self._past.add(written)
            self._runs.pop(run.uid, None)
            self._written.pop(run.uid, None)
            self._refused.discard(run.uid)

    def _done(self, run: Run, is_unread: bool) -> Run:
        """Writes the run, with what was known of it before where nobody has read that yet."""
        before = self._history.run(run.uid) if is_unread else None
        found = run if before is None else run.after(before)
        self._history.write(found)
        return found
