"""Counters and histograms of the operator, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from volcano_elastic.kube.request_info import RequestInfo
from volcano_elastic.pytorchjob.action import Action
from volcano_elastic.queue_policy.decision import Decision, Plan

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """Told by the parts as they work; what the informers hold is counted when it is asked for
    (operator/state_metrics.py)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.leader = self._gauge(
            "leader", "1 while this replica holds the lease and writes, 0 while it stands by."
        )
        self.schema_complete = self._gauge(
            "schema_complete",
            "1 while the served PyTorchJob schema has our fields; 0 means that nothing is written.",
        )
        self._reconcile_seconds = self._histogram(
            "reconcile_seconds",
            "One pass over one job, its writes included, by outcome.",
            "outcome",
        )
        self._wait_seconds = self._histogram(
            "work_queue_wait_seconds", "How long a job was due before a worker took it up."
        )
        self._api_seconds = self._histogram(
            "api_request_seconds",
            "Until the API server's answer was read; for a watch, until it began.",
            "verb",
        )
        self._api_requests = self._counter(
            "api_requests",
            "Requests to the API server. Code 0: no answer came.",
            *("verb", "group", "resource", "subresource", "code"),
        )
        self._actions = self._counter("actions", "Actions performed for jobs.", "action")
        self._decisions = self._counter(
            "decisions", "Sizes that the planner decided to change, by reason.", "reason"
        )
        self._plan_seconds = self._histogram("plan_seconds", "From the informers to a plan.")
        self._plan_blocked = self._gauge(
            "plan_blocked_claims", "Minimums that could not start even if all surplus left."
        )
        self._queue_amount = self._gauge(
            "queue_amount",
            "What the latest plan found of each queue, in units of the policy's resource: free, "
            "guaranteed (held by minimums), surplus, borrowed, owed_to_minimums.",
            *("queue", "resource", "figure"),
        )

    def answered(self, info: RequestInfo, code: int, seconds: float) -> None:
        """The Client's observer."""
        self._api_requests.labels(
            info.verb, info.group, info.resource, info.subresource, str(code)
        ).inc()
        self._api_seconds.labels(info.verb).observe(seconds)

    def taken(self, seconds: float) -> None:
        """The WorkQueue's observer."""
        self._wait_seconds.observe(seconds)

    def reconciled(self, outcome: str, seconds: float) -> None:
        self._reconcile_seconds.labels(outcome).observe(seconds)

    def performed(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._actions.labels(type(action).__name__).inc()

    def decided(self, decision: Decision) -> None:
        self._decisions.labels(str(decision.reason)).inc()

    def planning(self) -> AbstractContextManager[object]:
        return self._plan_seconds.time()

    def planned(self, plan: Plan) -> None:
        self._plan_blocked.set(len(plan.blocked))
        # A queue that went, or changed its resource, must not go on with its last figures.
        self._queue_amount.clear()
        for queue, found in plan.queues.items():
            for figure in ("free", "guaranteed", "surplus", "borrowed", "owed_to_minimums"):
                amount = self._queue_amount.labels(queue, found.resource, figure)
                amount.set(getattr(found, figure) / 1000)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"volcano_elastic_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"volcano_elastic_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"volcano_elastic_{name}", text, labels, buckets=_FAST, registry=self.registry
        )
