"""Workers and parameter servers as processes of their own."""

from __future__ import annotations

import copy
import json
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server.client import ServedTables
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import ParameterServerStub

from tests.elastic_trainer.parameter_server.servers import ALL, Servers, Worker, embedding

pytestmark = pytest.mark.process


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


def test_servers_come_and_go_while_a_worker_trains(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(servers)
    worker.train(5)
    second, _third = servers.start(), servers.start()
    worker.train_until(3)
    worker.check()
    board: dict[str, float] = {}
    writer = SimpleNamespace(add_scalar=lambda tag, value, step: board.update({tag: value}))
    while not (told := worker.tables.observe({"auc": 0.5}, board=writer)):
        pass  # a busy machine may take longer than it waits for
    assert board["observed/auc"] == 0.5 and board["observed/push_seconds"] > 0
    assert sum(one["buckets"] for one in told["servers"].values()) == BUCKETS
    with pytest.raises(ServerError, match="expected a name and a finite number"):
        worker.tables.observe({"auc": math.nan})
    servers.processes[second].send_signal(signal.SIGTERM)
    worker.train_until(2)
    assert servers.processes.pop(second).wait(60) == 0
    worker.train(5)
    worker.check()

    # A worker with an old map is told so, and finds the new holders.
    old = ServedTables([other := embedding(admit_after=2)], servers.first, patience=120)
    with torch.no_grad():
        assert torch.equal(other(ALL), worker.own(ALL))
    fourth = servers.start()
    worker.train_until(3)
    assert fourth not in old._servers.owners.addresses
    caplog.clear()
    with torch.no_grad():
        assert torch.equal(other(ALL), worker.own(ALL))
    assert fourth in old._servers.owners.addresses
    assert "NOT_OWNER" not in caplog.text, "that is no problem"

    # The first server is started again: the others hold what they held.
    def placed() -> dict[int, str]:
        addresses = worker.tables._servers.owners.addresses
        return {
            bucket: addresses[owner]
            for bucket, owner in enumerate(worker.tables._servers.owner_of)
            if owner >= 0 and addresses[owner] != servers.first
        }

    before = placed()
    servers.end(servers.first, signal.SIGKILL)
    servers.start(servers.first)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        worker.tables._servers.until_done(worker.tables._servers.find_owners)
        if placed() == before and (worker.tables._servers.owner_of < 0).any():
            break
        time.sleep(0.1)
    assert placed() == before

    # One that is started again without its rows: workers are told.
    servers.end(fourth, signal.SIGKILL)
    servers.start(fourth)
    with pytest.raises(ServerError, match=r"the rows of \d+ buckets were lost"):
        worker.train(1000)


def test_rows_go_back_to_what_was_saved_with_other_servers(
    servers: Servers, tmp_path: Path
) -> None:
    worker = Worker(servers)
    second, _third = servers.start(), servers.start()
    worker.train_until(3)
    saved = worker.tables.save(tmp_path / "tables-1")
    assert len(saved["files"]) == 3
    worker.train(3)
    base = sum(size for size, _ in saved["files"].values())
    saved = worker.tables.save(tmp_path / "tables-2", after=saved)
    assert sum(size for size, _ in saved["files"].values()) < base, "changes alone"
    own, draw = copy.deepcopy(worker.own), copy.deepcopy(worker.draw)
    worker.train(10)
    other = ServedTables([embedding(admit_after=2)], servers.first)
    other.pull(worker.own.table.settings, np.array([1]))

    servers.end(second, signal.SIGKILL)
    servers.start(second)
    with pytest.raises(ServerError, match="were lost"):
        worker.train(1000)
    worker.tables.load(json.loads(json.dumps(saved)))
    worker.own, worker.draw, worker.reference = own, draw, SplitTables([own])
    worker.check()
    worker.train_until(3)
    worker.check()
    with pytest.raises(ServerError, match="began anew"):
        other._servers.find_owners()

    with pytest.raises(ServerError, match="cannot write /proc/none"):
        worker.tables._servers.ask(
            "Save", [(servers.first, messages.SaveRequest(place="/proc/none"))]
        )
    with open(tmp_path / "tables-2" / next(iter(saved["files"])), "r+b") as file:
        file.write(b"damaged")
    with pytest.raises(ServerError, match="is damaged: expected"):
        ServedTables([embedding(admit_after=2)], servers.first).load(saved)
    worker.check()


@pytest.mark.parametrize("change", ["load", "restart"])
def test_worker_that_knows_other_tables_than_there_are_now_changes_nothing(
    servers: Servers, tmp_path: Path, change: str
) -> None:
    """It does nothing meanwhile, so that it sees no server that is away."""
    module, late = embedding(), embedding()
    tables, of_late = (ServedTables([one], servers.first, patience=60) for one in (module, late))
    for one, served in ((module, tables), (late, of_late)):
        one(ALL[:8]).square().sum().backward()
        served.step()
    late(ALL[:8]).square().sum().backward()
    if change == "load":
        tables.load(tables.save(tmp_path / "tables"))
    else:
        servers.restart(servers.first)
        servers.wait_for_shares(1)
        tables.begin_anew()
    with torch.no_grad():
        before = module(ALL[:8])
    with pytest.raises(ServerError, match="began anew"):
        of_late.step()
    with pytest.raises(ServerError, match="began anew"):
        late(ALL[:8])
    # A push of before that comes only now, under a name that goes on, as all ranks' does.
    push = messages.PushRequest(
        worker=tables.worker,
        sequence=tables.clock + 1,
        gradients=[gradients(ALL[:8, 0].tolist(), 8)],
        history=messages.History(epoch="before"),
    )
    with (
        grpc.insecure_channel(servers.first) as channel,
        pytest.raises(grpc.RpcError, match="began anew"),
    ):
        ParameterServerStub(channel).Push(push)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        assert torch.equal(module(ALL[:8]), before)


def gradients(ids: list[int], rows: int) -> messages.Gradients:
    return messages.Gradients(
        table="items",
        ids=pack(ids),
        seen=pack([1] * len(ids)),
        sums=np.ones((rows, 4)).tobytes(),
        lr=1.0,
    )


def test_push_that_is_sent_twice_counts_once_and_nonsense_is_refused(servers: Servers) -> None:
    worker = Worker(servers)
    worker.train(3)
    channel = grpc.insecure_channel(servers.first)
    stub = ParameterServerStub(channel)  # type: ignore[no-untyped-call]

    def push(ids: list[int], rows: int, sequence: int) -> int:
        request = messages.PushRequest(
            worker=worker.tables.worker, sequence=sequence, gradients=[gradients(ids, rows)]
        )
        return int(stub.Push(request).verdict)

    some = ALL[:5, 0].tolist()
    sequence = worker.tables.clock + 2
    assert push(some, 5, sequence) == push(some, 5, sequence + 1) == messages.DONE
    before = worker.rows()
    assert push(some, 5, sequence + 1) == messages.DONE
    assert torch.equal(worker.rows(), before)
    assert push(some, 5, sequence + 2) == messages.DONE
    assert not torch.equal(worker.rows(), before)

    for ids, rows in (([3, 3], 2), ([4, 3], 2), ([3], 2)):
        with pytest.raises(grpc.RpcError, match="ids for table 'items'"):
            push(ids, rows, 99)
    channel.close()
    other = ElasticEmbedding("items", 4, optimizer=SGD())
    with pytest.raises(ServerError, match="with other settings"):
        ServedTables([other], servers.first).pull(other.table.settings, np.array([1]))


def test_server_that_does_not_know_a_worker_is_told_of_it_and_answers(servers: Servers) -> None:
    worker = Worker(servers)
    worker.train(1)
    other = ServedTables([embedding(admit_after=2)], servers.first)
    other._servers.find_owners()
    request = messages.PullRequest(
        worker=other.worker, table="items", ids=pack([1]), clock=0, staleness=-1
    )
    (reply,) = other._servers.ask("Pull", [(servers.first, request)])
    assert reply is not None, other._servers.why


def test_fast_worker_waits_for_the_slowest_until_that_ends(servers: Servers) -> None:
    fast, slow = (embedding() for _ in range(2))
    ahead = ServedTables([fast], servers.first, staleness=2, patience=20)
    behind = ServedTables([slow], servers.first, staleness=2)

    def train(module: torch.nn.Module, tables: ServedTables) -> None:
        module(ALL[:8]).sum().backward()
        tables.step()

    train(slow, behind)
    train(fast, ahead)
    while ahead.clock < behind.clock + 3:
        train(fast, ahead)
    ahead._servers.policy = replace(ahead._servers.policy, seconds=1.0)
    with pytest.raises(ServerError, match="LATER"):
        train(fast, ahead)
    ahead._servers.policy = replace(ahead._servers.policy, seconds=60.0)
    train(slow, behind)
    train(fast, ahead)
    behind.close()
    for _ in range(5):
        train(fast, ahead)
