"""The HTTP service by which other agents, and the job's owner, ask an agent and tell it things."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from elastic_trainer.identity import Identity
from elastic_trainer.metrics.http import Answer, Request, json_answer, misdirected, serve_http
from elastic_trainer.protocol.auth import HEADER, check_token, is_loopback
from elastic_trainer.succession.agent_status import AgentStatus, EndedPods
from elastic_trainer.succession.ballot import Ballot, Vote
from elastic_trainer.succession.peers import PORT_OFFSET
from elastic_trainer.succession.service import (
    GONE_PATH,
    HOST_PATH,
    VOTE_PATH,
    read_ballot,
    read_gone,
    read_status,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Requests:
    """The side that answers the service's requests."""

    status: Callable[[], AgentStatus]
    vote: Callable[[Ballot], Vote]
    hear_of: Callable[[AgentStatus], None]
    hear_of_gone: Callable[[EndedPods], None]


class SuccessionService:
    """Serves only where the job's token keeps others out, or on loopback."""

    def __init__(self, identity: Identity, requests: Requests) -> None:
        self.port = 0
        """That it serves; 0: none."""
        self._identity, self._requests = identity, requests
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        """Takes the second port after the rendezvous port, or, if that is taken, any."""
        identity = self._identity
        host = identity.address or ("0.0.0.0" if identity.token else "127.0.0.1")
        if not identity.token and not is_loopback(host):
            return
        wished = identity.port + PORT_OFFSET
        for port in (wished if wished < 65536 else 0, 0):
            try:
                self._server = await serve_http(host, port, self._respond)
            except OSError as error:
                log.debug("succession service: cannot serve %s:%d: %s", host, port, error)
                continue
            self.port = int(self._server.sockets[0].getsockname()[1])
            return

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _respond(self, request: Request) -> Answer:
        host_method = request.method if request.method in ("GET", "PUT") else "GET"
        served = {HOST_PATH: host_method, VOTE_PATH: "PUT", GONE_PATH: "PUT"}
        if (refusal := misdirected(request, served)) is not None:
            return refusal
        why = check_token(self._identity.token, request.headers.get(HEADER))
        if why is not None:
            return json_answer("401 Unauthorized", {"error": why})
        try:
            if request.path == VOTE_PATH:
                return self._vote(*read_ballot(request.body))
            if request.path == GONE_PATH:
                self._requests.hear_of_gone(read_gone(request.body))
            elif request.method == "PUT":
                self._requests.hear_of(read_status(request.body))
        except ValueError as error:
            return json_answer("400 Bad Request", {"error": str(error)})
        return json_answer("200 OK", vars(self._requests.status()))

    def _vote(self, voter: str, ballot: Ballot) -> Answer:
        if voter != self._identity.agent:
            text = f"expected a ballot for agent {self._identity.agent}, found one for {voter}"
            return json_answer("410 Gone", {"error": text})
        return json_answer("200 OK", vars(self._requests.vote(ballot)))
