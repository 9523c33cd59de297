"""A gRPC server of a job, all of whose calls show the job's token."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from elastic_trainer.protocol.auth import HEADER, TOKEN_VARIABLE, check_token, is_loopback


def guarded_server(
    address: tuple[str, int],
    token: str,
    log: logging.Logger,
    *,
    options: Sequence[tuple[str, int]],
    most_calls: int,
) -> grpc.aio.Server:
    """Return a server bound to `address`, which serves nothing and has not started.

    Args:
        log: told of refusals.
        most_calls: at a time.

    Raises:
        OSError: the address can't be bound.
        PermissionError: others could reach it, and there is no token.
    """
    host, port = address
    if not token and not is_loopback(host):
        raise PermissionError(
            f"without {TOKEN_VARIABLE} it serves only this machine (a loopback address): set it "
            "to the same secret in all pods"
        )
    server = grpc.aio.server(
        # Not shared: a second server on this address must fail, not answer every other call.
        options=[("grpc.so_reuseport", 0), *options],
        interceptors=[_Guard(token, log)],
        maximum_concurrent_rpcs=most_calls,
    )
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot bind {host}:{port}: {error}") from error
    if bound != port:
        raise OSError(f"cannot bind {host}:{port}: address in use")
    return server


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, token: str, log: logging.Logger) -> None:
        self._token, self._log = token, log
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
                self._log.warning("refused %s: %s", context.peer(), refusal)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)

        # Serves single requests as well: nobody reads them.
        return grpc.stream_stream_rpc_method_handler(refuse)
