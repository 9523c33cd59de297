"""Stubs: connections of a server to the others of its job, whose calls carry the job's token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc.aio

from elastic_trainer.parameter_server.wire import OPTIONS
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub
from elastic_trainer.protocol.auth import HEADER


class Stubs:
    def __init__(self, token: str) -> None:
        self._metadata = ((HEADER, token),) if token else ()
        self._known: dict[str, Any] = {}

    def of(self, address: str) -> Any:
        """Return the stub of the server at an address."""
        if address not in self._known:
            channel = grpc.aio.insecure_channel(address, options=OPTIONS)
            stub = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
            self._known[address] = _WithMetadata(stub, self._metadata)
        return self._known[address]


class _WithMetadata:
    def __init__(self, stub: Any, metadata: Any) -> None:
        self._stub, self._metadata = stub, metadata

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(getattr(self._stub, name), metadata=self._metadata)
