"""Asks every call to a coordinator, of any service, for the job's token."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from elastic_trainer.protocol.auth import HEADER, check_token

log = logging.getLogger("elastic_trainer.coordinator")


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token
        self._said = ""
        """The last refusal that was logged: who is refused tries again ten times a second."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        given = dict(handler_call_details.invocation_metadata or ()).get(HEADER)
        refusal = check_token(self._token, given if isinstance(given, str) else None)
        if refusal is None:
            return await continuation(handler_call_details)

        async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            if refusal != self._said:
                self._said = refusal
                log.warning("refused %s: %s", context.peer(), refusal)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)

        # As all calls are streams here.
        return grpc.stream_stream_rpc_method_handler(refuse)
