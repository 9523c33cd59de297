"""Serves the figures of a node's workers to Prometheus, over HTTP."""

from __future__ import annotations

import logging

from elastic_trainer.agent.metrics import WorkerMetrics
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.identity import Identity
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.exposition import exposition
from elastic_trainer.metrics.http import Answer, Request, misdirected, serve_http, text_answer

log = logging.getLogger(__name__)


class MetricsPage:
    """`/metrics` of an agent, on its event loop.

    Args:
        metrics: brought up to date at each request.
    """

    def __init__(self, identity: Identity, metrics: WorkerMetrics, workers: WorkerServer) -> None:
        self._identity, self._metrics, self._workers = identity, metrics, workers

    async def serve(self) -> None:
        """Serves it where the job asks for that; a taken address costs the page alone."""
        if self._identity.metrics is None:
            return
        host, port = self._identity.metrics
        try:
            await serve_http(host, port, self._respond)
        except OSError as error:
            log.warning("no metrics: cannot serve %s:%d: %s", host, port, error)

    def _respond(self, request: Request) -> Answer:
        if (refusal := misdirected(request, {"/metrics": "GET"})) is not None:
            return refusal
        labels = {"job": self._identity.job, "worker": str(self._identity.pod_index)}
        self._metrics.read(self._workers.reading())
        tables = [
            ((("local_rank", str(rank)), ("table", name)), load)
            for rank, held in self._workers.tables().items()
            for name, load in held.items()
        ]
        found = [*self._metrics.metrics(), *table_load.metrics("table_", tables)]
        return text_answer(exposition(found, labels))
