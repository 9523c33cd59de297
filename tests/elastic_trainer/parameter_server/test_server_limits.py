"""A server whose disk is full, or that has too much to do, refuses that alone and says so."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server.client import ServedTables
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.service import REQUESTS
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub

from tests.elastic_trainer.parameter_server.servers import Servers, batch, embedding

pytestmark = pytest.mark.process

ALL = torch.arange(2000)[:, None] * 10**12


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(of_first=["--storage", tmp_path / "storage"])
    yield servers
    servers.close()


class Training:
    """Trains on servers, and on a table of its own process what is to come out."""

    def __init__(self, servers: Servers) -> None:
        self.served, self.own = embedding(), embedding()
        self.tables = ServedTables([self.served], servers.first, patience=120)
        self._reference, self._draw = SplitTables([self.own]), np.random.default_rng(0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            ids = batch(self._draw)
            self.served(ids).square().sum().backward()
            self.tables.step()
            self.own(ids).square().sum().backward()
            self._reference.step()

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the servers' rows, and those that are to be."""
        with torch.no_grad():
            return self.served(ALL), self.own(ALL)


def leave_room(servers: Servers, size: int) -> None:
    """Let the first server write files of so many bytes, -1: of any, as a full disk would."""
    _, most = resource.prlimit(servers.processes[servers.first].pid, resource.RLIMIT_FSIZE)
    size = most if size < 0 else size
    resource.prlimit(servers.processes[servers.first].pid, resource.RLIMIT_FSIZE, (size, most))


def test_a_save_that_the_disk_has_no_room_for_costs_that_save_alone(
    servers: Servers, tmp_path: Path
) -> None:
    training = Training(servers)
    training.train(3)
    saved, then = training.tables.save(str(tmp_path / "first")), training.rows()[0]
    leave_room(servers, 100)
    with pytest.raises(ServerError, match=r"cannot write .*second: "):
        training.tables.save(str(tmp_path / "second"))
    training.train(3)  # it serves on
    assert torch.equal(*training.rows())
    leave_room(servers, -1)
    training.tables.load(training.tables.save(str(tmp_path / "third")))
    assert torch.equal(*training.rows())
    training.tables.load(saved)
    assert torch.equal(training.rows()[0], then)


def test_tables_that_could_not_be_noted_are_not_gone_on_from(
    servers: Servers, tmp_path: Path
) -> None:
    """A first server that can't write its storage loads nothing, as one that is started again would
    go on from what was there before."""
    training = Training(servers)
    training.train(3)
    saved = training.tables.save(str(tmp_path / "commit"))
    training.train(3)
    leave_room(servers, 0)
    with pytest.raises(ServerError, match="has to write its --storage first"):
        training.tables.load(saved)
    assert torch.equal(*training.rows())
    leave_room(servers, -1)
    training.tables.load(saved)
    training.train(1)


def test_a_server_that_puts_many_off_tells_them_so_and_serves_others(servers: Servers) -> None:
    training = Training(servers)
    training.train(1)
    channel = grpc.insecure_channel(servers.first)
    stub: Any = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
    fast = Training(servers)
    fast.rows()  # known from now on, and then too far ahead
    request = messages.PullRequest(
        worker=fast.tables.worker, clock=10**6, staleness=1, table="items", ids=pack([1])
    )
    asked = [stub.Pull.future(request) for _ in range(3 * REQUESTS)]
    training.train(2)  # as no more than half of what it takes at a time may be put off
    codes = [one.code() for one in asked]
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes.count(grpc.StatusCode.OK) > REQUESTS
    told = {one.result().verdict for one in asked if one.code() is grpc.StatusCode.OK}
    assert told == {messages.LATER}
    assert torch.equal(*training.rows())
    channel.close()
