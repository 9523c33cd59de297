"""Brain's counters and histograms, for Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

_PREFIX = "volcano_elastic_brain"
_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)


class Metrics:
    """Told by the parts as they work, from whichever thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

        def gauge(name: str, words: str) -> Gauge:
            return Gauge(name, words, namespace=_PREFIX, registry=self.registry)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(name, words, labels, namespace=_PREFIX, registry=self.registry)

        self.leader = gauge("leader", "1 while this replica holds the lease and works.")
        self.jobs = gauge("jobs", "Jobs that go on, and are recorded.")
        self.measured_pods = gauge("measured_pods", "Pods whose load was known at the last sample.")
        self.history_up = gauge("history_up", "1 while the database answers.")
        self.history_failures = counter(
            "history_failures", "Questions that the database did not answer."
        )
        self.advice = counter(
            "advice",
            "Roles that got advice, by how: told (an Event), recommended (the job's status).",
            "how",
        )
        self.plans = counter(
            "plans", "ScalePlans that were created, patched or deleted, by which.", "action"
        )
        self.advice_seconds = Histogram(
            "advice_seconds",
            "From a job's identity to what its pods should ask for, in processor time.",
            namespace=_PREFIX,
            registry=self.registry,
            buckets=_FAST,
        )
