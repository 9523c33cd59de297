"""A server's HTTP side: `/metrics` for Prometheus, and the first server's `/status` of all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from elastic_trainer.metrics.exposition import Metric, exposition
from elastic_trainer.metrics.http import (
    Answer,
    Request,
    json_answer,
    misdirected,
    serve_http,
    text_answer,
)
from elastic_trainer.protocol.auth import HEADER, check_token

log = logging.getLogger("elastic_trainer.parameter_server")

_SERVED = {"/metrics": "GET", "/status": "GET"}


class Page:
    """Answers requests: `/metrics`, which are numbers, for anybody; `/status` for who has the
    token.

    Args:
        metrics: returns those of now.
        status: returns what the first server knows of all; None: this isn't the first.
    """

    def __init__(
        self,
        job: str,
        token: str,
        metrics: Callable[[], list[Metric]],
        status: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self._job, self._token, self._metrics, self._status = job, token, metrics, status

    def respond(self, request: Request) -> Answer:
        if (refusal := misdirected(request, _SERVED)) is not None:
            return refusal
        if request.path == "/metrics":
            return text_answer(exposition(self._metrics(), {"job": self._job}))
        why = check_token(self._token, request.headers.get(HEADER))
        if why is not None:
            return json_answer("401 Unauthorized", {"error": why})
        if self._status is None:
            text = "the first server knows of all, the one that began without --join"
            return json_answer("404 Not Found", {"error": text})
        return json_answer("200 OK", self._status())

    async def serve(self, host: str, port: int) -> asyncio.Server | None:
        """Serve; None where the port is taken, which rows don't depend on."""
        try:
            server = await serve_http(host, port, self.respond)
        except OSError as error:
            log.warning("no metrics at %s:%d: %s", host, port, error)
            return None
        log.info("metrics at http://%s:%d/metrics", host, port)
        return server
