"""Metrics for Prometheus under Volcano's names; scalars in thousandths, as there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Gauge, Histogram

from embedded_cluster.scheduler.effect import Evict
from embedded_cluster.scheduler.functions import QueueFigures
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import TaskStatus

_MILLISECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_PER_QUEUE = ("queue_name",)


class Metrics:
    """Told of each session once its effects are decided."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._e2e = self._histogram("e2e_scheduling_latency_milliseconds", "One whole session.")
        self._actions = self._histogram(
            "action_scheduling_latency_milliseconds", "One action of a session.", ("action",)
        )
        self._victims = self._gauge("pod_preemption_victims", "Pods that the last session evicts.")
        # A gauge: as a counter it would be renamed.
        self._preemptions = self._gauge("total_preemption_attempts", "Evictions so far.")
        self._jobs = self._gauge("unschedule_job_count", "Jobs below their minimum.")
        self._tasks = self._gauge("unschedule_task_count", "Pods without a node.", ("job_id",))
        self._share = self._gauge("queue_share", "Of what it deserves.", _PER_QUEUE)
        self._weight = self._gauge("queue_weight", "spec.weight.", _PER_QUEUE)
        self._overused = self._gauge("queue_overused", "1: it gets no more.", _PER_QUEUE)
        self._amounts = {
            (what, unit): self._gauge(f"queue_{what}_{unit}", f"{unit} of {what}.", labels)
            for what in ("allocated", "request", "deserved", "capacity", "real_capacity")
            for unit, labels in (
                ("milli_cpu", _PER_QUEUE),
                ("memory_bytes", _PER_QUEUE),
                ("scalar_resources", (*_PER_QUEUE, "resource")),
            )
        }

    def action(self, name: str) -> AbstractContextManager[None]:
        return self._milliseconds(self._actions.labels(name))

    def whole(self) -> AbstractContextManager[None]:
        return self._milliseconds(self._e2e)

    def session(self, session: Session) -> None:
        evictions = sum(isinstance(effect, Evict) for effect in session.effects)
        self._victims.set(evictions)
        self._preemptions.inc(evictions)
        self._tasks.clear()
        unready = [job for job in session.jobs.values() if job.tasks and not session.is_ready(job)]
        self._jobs.set(len(unready))
        for job in unready:
            waiting = session.count(job, TaskStatus.PENDING, TaskStatus.PIPELINED)
            self._tasks.labels(job.name).set(waiting)
        for queue in session.queues.values():
            if figures := session.figures(queue):
                self._queue(queue.name, figures)

    def _queue(self, name: str, figures: QueueFigures) -> None:
        self._share.labels(name).set(figures.share)
        self._weight.labels(name).set(figures.weight)
        self._overused.labels(name).set(figures.overused)
        for what, amounts in figures.amounts.items():
            self._amounts[what, "milli_cpu"].labels(name).set(amounts.get("cpu", 0))
            self._amounts[what, "memory_bytes"].labels(name).set(amounts.get("memory", 0) / 1000)
            for resource in sorted(amounts.keys() - {"cpu", "memory"}):
                scalars = self._amounts[what, "scalar_resources"]
                scalars.labels(name, resource).set(amounts[resource])

    @contextmanager
    def _milliseconds(self, histogram: Histogram) -> Iterator[None]:
        started = time.monotonic()
        yield
        histogram.observe((time.monotonic() - started) * 1000)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, subsystem="volcano", registry=self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(
            name, text, labels, subsystem="volcano", registry=self.registry, buckets=_MILLISECONDS
        )
