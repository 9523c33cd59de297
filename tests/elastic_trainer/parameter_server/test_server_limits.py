"""A server whose disk is full, or that has too much to do, refuses that alone and says so."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from elastic_trainer.parameter_server.__main__ import EXIT_ADDRESS
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.service import REQUESTS
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub

from tests.elastic_trainer.parameter_server.servers import Servers, Worker

pytestmark = pytest.mark.process


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(of_first=["--storage", tmp_path / "storage"])
    yield servers
    servers.close()


def leave_room(servers: Servers, size: int) -> None:
    """Let the first server write files of so many bytes, -1: of any, as a full disk would."""
    _, most = resource.prlimit(servers.processes[servers.first].pid, resource.RLIMIT_FSIZE)
    size = most if size < 0 else size
    resource.prlimit(servers.processes[servers.first].pid, resource.RLIMIT_FSIZE, (size, most))


def test_a_save_that_the_disk_has_no_room_for_costs_that_save_alone(
    servers: Servers, tmp_path: Path
) -> None:
    worker = Worker(servers)
    worker.train(3)
    saved, then = worker.tables.save(str(tmp_path / "first")), worker.rows()
    leave_room(servers, 100)
    with pytest.raises(ServerError, match=r"cannot write .*second: "):
        worker.tables.save(str(tmp_path / "second"))
    worker.train(3)  # it serves on
    worker.check()
    leave_room(servers, -1)
    worker.tables.load(worker.tables.save(str(tmp_path / "third")))
    worker.check()
    worker.tables.load(saved)
    assert torch.equal(worker.rows(), then)


def test_tables_that_could_not_be_noted_are_not_gone_on_from(
    servers: Servers, tmp_path: Path
) -> None:
    """A first server that can't write its storage loads nothing, as one that is started again would
    go on from what was there before."""
    worker = Worker(servers)
    worker.train(3)
    saved = worker.tables.save(str(tmp_path / "commit"))
    worker.train(3)
    leave_room(servers, 0)
    with pytest.raises(ServerError, match="has to write its --storage first"):
        worker.tables.load(saved)
    worker.check()
    leave_room(servers, -1)
    worker.tables.load(saved)
    worker.train(1)


def test_a_server_whose_port_has_anothers_metrics_says_which_to_choose(servers: Servers) -> None:
    Worker(servers).train(1)  # so that the first one has its metrics' port
    port = int(servers.first.rpartition(":")[2])
    second = servers.start(f"127.0.0.1:{port + 1}")
    process = servers.processes.pop(second)
    _, said = process.communicate(timeout=60)
    assert process.returncode == EXIT_ADDRESS
    assert f"{second}, which may be in use: expected a --port of its own" in said


def test_a_server_that_puts_many_off_tells_them_so_and_serves_others(servers: Servers) -> None:
    worker = Worker(servers)
    worker.train(1)
    channel = grpc.insecure_channel(servers.first)
    stub: Any = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
    fast = Worker(servers)
    fast.rows()  # known from now on, and then too far ahead
    request = messages.PullRequest(
        worker=fast.tables.worker, clock=10**6, staleness=1, table="items", ids=pack([1])
    )
    asked = [stub.Pull.future(request) for _ in range(3 * REQUESTS)]
    worker.train(2)  # as no more than half of what it takes at a time may be put off
    codes = [one.code() for one in asked]
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes.count(grpc.StatusCode.OK) > REQUESTS
    told = {one.result().verdict for one in asked if one.code() is grpc.StatusCode.OK}
    assert told == {messages.LATER}
    worker.check()
    channel.close()
