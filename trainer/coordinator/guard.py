"""The token, asked of every stream of the coordinator's services."""

from __future__ import annotations

import logging
from typing import Any

import grpc.aio

from trainer.coordinator.admission import HEADER, stranger

log = logging.getLogger("trainer.coordinator")


async def refuse_strangers(token: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Ends the call of whoever doesn't have the job's token: does not return then."""
    given = {str(key): value for key, value in context.invocation_metadata() or ()}.get(HEADER)
    refusal = stranger(token, given if isinstance(given, str) else None)
    if refusal is not None:
        log.warning("refused %s: %s", context.peer(), refusal)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
