"""Follows resizes from the planner's decision to the first step, and hands on each one's trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from volcano_elastic.api import condition
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator import resize_trace
from volcano_elastic.operator.cluster import Cluster, job_key
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.resize_trace import LIMIT, Outcome, Resizing, Span
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob import rendezvous
from volcano_elastic.queue_policy.decision import Decision


class Tracing:
    """Holds the resizes of PyTorchJobs that are under way.

    In memory only: those that are under way when the operator ends have no trace.

    Args:
        export: takes each trace; must return at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        builder: SnapshotBuilder,
        clock: Callable[[], datetime],
        export: Callable[[Span], None],
    ) -> None:
        self._builder, self._clock, self._export = builder, clock, export
        self._under_way: dict[str, list[Resizing]] = {}
        """By job's key, in the order of their decisions: all but the last were overtaken."""
        self._newest_round: dict[str, tuple[str, int]] = {}
        """By job's key, its uid and the number of the newest round that was told of."""
        cluster.pods.on_change(self._note_pod)
        cluster.jobs.on_change(self._note_job)

    def forget(self) -> None:
        """Another operator may have led meanwhile."""
        self._under_way.clear()
        self._newest_round.clear()

    def decided(self, decision: Decision, plan_began: datetime) -> None:
        """Note a decision that is about to be carried out."""
        job, view = self._builder.parsed_job(decision.job), self._builder.job(decision.job)
        if job is None or view is None:
            return
        now = self._clock()
        before = self._under_way.pop(decision.job, [])
        if before:
            before[-1] = resize_trace.overtake(before[-1], now)
        uid, newest = self._newest_round.get(decision.job, ("", 0))
        leavers = (key.rpartition("/")[2] for key in (*decision.remove, *decision.move))
        resizing = Resizing(
            job=decision.job,
            queue=view.queue,
            old=decision.old,
            new=decision.new,
            reason=str(decision.reason),
            message=decision.message,
            plan_began=plan_began,
            decided=now,
            has_rounds=rendezvous.hosted(job),
            round_before=newest if uid == job.uid else None,
            leavers=frozenset(leavers),
            fixed=job.fixed_nodes,
        )
        self._keep(decision.job, [*before, resizing])

    def carried_out(self, key: str, *, done: bool) -> None:
        """Note whether the job has the size that was decided."""
        if (resizings := self._under_way.get(key)) is None:
            return
        *before, resizing = resizings
        if not done:
            if before:
                before[-1] = resize_trace.overtake(before[-1], None)
            self._keep(key, before)
        elif resizing.written is None:
            self._keep(key, [*before, resize_trace.wrote(resizing, self._clock())])

    def heard(self, job: PyTorchJob, report: Report) -> None:
        """Note what a job's coordinator tells of its rounds."""
        if not report.rounds:
            return
        self._newest_round[job.key] = (job.uid, report.rounds[-1].number)
        resizings = self._under_way.get(job.key, ())
        self._keep(job.key, [resize_trace.with_rounds(one, report.rounds) for one in resizings])

    def end_overdue(self) -> None:
        """Hand on what is known of resizes that take longer than LIMIT."""
        now = self._clock()
        late = [key for key, found in self._under_way.items() if now - found[-1].decided > LIMIT]
        for key in late:
            self._end(key, Outcome.UNFINISHED)

    def _note_pod(self, old: Object | None, new: Object | None) -> None:
        key = job_key(new or old or {}) if self._under_way else ""
        if (resizings := self._under_way.get(key)) is not None:
            now = self._clock()
            self._keep(key, [resize_trace.saw(one, old, new, now) for one in resizings])

    def _note_job(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        status = (new or {}).get("status") or {}
        if new is None or condition.finished(status.get("conditions") or ()):
            self._newest_round.pop(key, None)
            self._end(key, Outcome.JOB_OVER)
            return
        if (resizings := self._under_way.get(key)) is None:
            return
        *before, resizing = resizings
        if resizing.written is not None or resizing.old == resizing.new:
            return
        if (status.get("elastic") or {}).get("desired") == resizing.new:
            self._keep(key, [*before, resize_trace.wrote(resizing, self._clock())])

    def _keep(self, key: str, resizings: Sequence[Resizing]) -> None:
        over, under_way = resize_trace.ended(resizings)
        if under_way:
            self._under_way[key] = under_way
        else:
            self._under_way.pop(key, None)
        for resizing, outcome in over:
            self._export(resize_trace.trace(resizing, outcome, self._clock()))

    def _end(self, key: str, outcome: Outcome) -> None:
        for resizing in self._under_way.pop(key, ()):
            how = outcome if resizing.overtaken is None else Outcome.OVERTAKEN
            self._export(resize_trace.trace(resizing, how, self._clock()))
