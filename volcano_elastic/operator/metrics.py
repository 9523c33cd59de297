"""What the operator counts for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from volcano_elastic.pytorchjob.action import Action
from volcano_elastic.queue_policy.decision import Decision


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._actions = Counter(
            "volcano_elastic_actions",
            "Actions performed for jobs.",
            ["action"],
            registry=self.registry,
        )
        self._decisions = Counter(
            "volcano_elastic_decisions",
            "Sizes the planner decided to change.",
            ["reason"],
            registry=self.registry,
        )
        self._plan_seconds = Histogram(
            "volcano_elastic_plan_seconds",
            "From the informers to a plan.",
            registry=self.registry,
        )

    def performed(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._actions.labels(type(action).__name__).inc()

    def decided(self, decision: Decision) -> None:
        self._decisions.labels(str(decision.reason)).inc()

    def planning(self) -> AbstractContextManager[object]:
        return self._plan_seconds.time()

    def serve(self, port: int) -> int:
        """On loopback, in a thread of its own that ends with the process; returns the port.

        Raises:
            OSError: the port is taken.
        """
        server, _ = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        return int(server.server_port)
