"""Parameter servers as processes, and in one process with a connection that breaks as told."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.parameter_server.service import Service

from tests.elastic_trainer.torch_process import TorchProcess

SCRIPT = """
import sys
from elastic_trainer.parameter_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Servers:
    """Processes by address; the first one is `first`."""

    def __init__(self) -> None:
        self.processes: dict[str, TorchProcess] = {}
        self.first = ""
        self.first = self.start()

    def start(self, address: str = "") -> str:
        address = address or f"127.0.0.1:{free_port()}"
        join = ["--join", self.first] if address != self.first and self.first else []
        self.processes[address] = TorchProcess(SCRIPT, "--port", address.split(":")[1], *join)
        return address

    def end(self, address: str, number: int) -> int:
        process = self.processes.pop(address)
        process.send_signal(number)
        return process.wait(120)

    def close(self) -> None:
        for address in list(self.processes):
            self.end(address, signal.SIGKILL)


class Direct:
    """A stub of a server in this process.

    Args:
        fails: called with the method's name before and after each call; raises what the caller
            of the method is to see.
    """

    def __init__(self, service: Service, fails: Callable[[str], None]) -> None:
        self._service, self._fails = service, fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None) -> Any:
            self._fails(f"before {name}")
            reply = await getattr(self._service, name)(
                type(request).FromString(request.SerializeToString()), None
            )
            self._fails(f"after {name}")
            return reply

        return call


class BrokenError(grpc.RpcError):  # type: ignore[misc]
    """A connection that broke."""


def embedding(name: str = "items", **given: Any) -> ElasticEmbedding:
    return ElasticEmbedding(name, 4, optimizer=Adagrad(lr=0.1), dtype=torch.float64, **given)


def batch(draw: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(draw.integers(0, 2000, (16, 3)) * 10**12)
