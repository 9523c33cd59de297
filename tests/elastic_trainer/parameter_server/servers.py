"""Parameter servers as processes, and in one process with a connection that breaks as told."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server.client import ServedTables
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.parameter_server.server import ParameterServer
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.wire import unpack
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub

from embedded_cluster.readiness import free_port
from tests.elastic_trainer.torch_process import TorchProcess

SCRIPT = """
import os, signal, sys
from elastic_trainer.parameter_server import placement
placement.LEASE_SECONDS, placement.LOST_SECONDS = map(float, sys.argv[2:4])
from elastic_trainer.parameter_server import writer
from elastic_trainer.parameter_server.__main__ import main
from elastic_trainer.parameter_server.director import Director

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "while it writes its rows":
    writer.write_file = die
elif sys.argv[1] == "once it noted that others count":
    supersede = Director.supersede
    Director.supersede = lambda self: supersede(self) and die()
sys.exit(main(sys.argv[4:]))
"""


class Servers:
    """Processes by address; the first one is `first`.

    Args:
        lease: seconds for which a server serves after its last word; half of what its life is over
            after.
        options: of all of them.
        of_first: options of the first one.
    """

    def __init__(
        self, *options: object, of_first: Sequence[object] = (), lease: float = 10.0
    ) -> None:
        self.processes: dict[str, TorchProcess] = {}
        self._options, self._of_first, self._lease = options, of_first, lease
        self.first = ""
        self.first = self.start()

    def start(self, address: str = "", dies: str = "", own: Sequence[object] = ()) -> str:
        """Args:
        dies: when it sends itself SIGKILL, see SCRIPT.
        own: options of this one, which count before those of all.
        """
        joins = bool(self.first) and address != self.first
        address = address or f"127.0.0.1:{free_port()}"
        more = ["--join", self.first] if joins else self._of_first
        self.processes[address] = TorchProcess(
            SCRIPT,
            dies,
            self._lease,
            2 * self._lease,
            *("--port", address.split(":")[1], *self._options, *more, *own),
        )
        return address

    def restart(self, address: str, dies: str = "") -> None:
        """Kill it, and start it again."""
        self.end(address, signal.SIGKILL)
        self.start(address, dies)

    def restart_once_dead(self, address: str) -> threading.Thread:
        def wait() -> None:
            assert self.processes[address].wait(120) == -signal.SIGKILL
            self.start(address)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def end(self, address: str, number: int) -> int:
        process = self.processes.pop(address)
        process.send_signal(number)
        return process.wait(120)

    def wait_for_shares(self, count: int, *, adopted: int = 0) -> None:
        """Wait until so many servers hold buckets, and nobody else, after so many adoptions."""
        deadline = time.monotonic() + 120
        with grpc.insecure_channel(self.first) as channel:
            stub = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
            while time.monotonic() < deadline:
                with contextlib.suppress(grpc.RpcError):
                    owners = stub.FindOwners(messages.FindOwnersRequest())
                    found = unpack(owners.owners)
                    all_held = len(found) and found.min() >= 0
                    if all_held and len(np.unique(found)) == count and owners.adopted >= adopted:
                        return
                time.sleep(0.1)
        raise AssertionError(f"not {count} servers hold buckets in 120 s")

    def close(self) -> None:
        for address in list(self.processes):
            self.end(address, signal.SIGKILL)


ALL = torch.arange(2000)[:, None] * 10**12
"""Ids of all rows that workers are compared by."""


class Worker:
    """Trains on servers, and on a table of its own process what is to come out."""

    def __init__(self, servers: Servers) -> None:
        self.served, self.own = embedding(admit_after=2), embedding(admit_after=2)
        self.tables = ServedTables([self.served], servers.first, patience=120)
        self.reference = SplitTables([self.own])
        self.draw = np.random.default_rng(0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            ids = batch(self.draw)
            for module, tables in ((self.served, self.tables), (self.own, self.reference)):
                module(ids).square().sum().backward()
                tables.step()

    def train_until(self, holders: int) -> None:
        """Train until so many servers have even shares."""
        deadline = time.monotonic() + 120
        while True:
            self.train(2)
            owners = self.tables._servers.owner_of  # of what is just being handed over, nobody's
            shares = [int(one) for one in np.bincount(owners[owners >= 0]) if one]
            if len(shares) == holders and max(shares) - min(shares) <= 1:
                return
            assert time.monotonic() < deadline, shares
            time.sleep(0.1)  # servers move rows as time goes by, not as steps do
            self.tables._servers.find_owners()

    def rows(self) -> torch.Tensor:
        """Return the servers' rows."""
        with torch.no_grad():
            found: torch.Tensor = self.served(ALL)
            return found

    def check(self) -> None:
        with torch.no_grad():
            assert torch.equal(self.rows(), self.own(ALL))


class LocalServer(ParameterServer):
    """A server in this process, which hears of others what a test tells it."""

    def __init__(self, address: str, copy_folder: str = "") -> None:
        super().__init__(address, "first", "", copy_folder=copy_folder)

    @property
    def life(self) -> str:
        return self.member.life

    @property
    def share(self) -> Share:
        return self.member.share

    @property
    def holder(self) -> Holder:
        return self.member.share.holder


class Direct:
    """A stub of a server in this process.

    Args:
        fails: called with the method's name before and after each call; raises what the caller
            of the method is to see.
    """

    def __init__(self, server: ParameterServer, fails: Callable[[str], None]) -> None:
        self._answers, self._fails = server.answers, fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None) -> Any:
            self._fails(f"before {name}")
            reply = await getattr(self._answers, name)(
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
