"""Dense parameters on servers: those of one process where one trains, the same for all workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.export import BASE, INCREMENT, exports
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.row_optimizer import SGD, Adagrad, RowOptimizer
from elastic_trainer.embeddings.serving import ServingTables
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server.client import ServedTables

from tests.elastic_trainer.parameter_server.servers import Servers, batch, embedding

pytestmark = pytest.mark.process


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


class Net(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.items = embedding()
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(4, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1)
        ).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.deep(self.items(ids))
        return found


def served(
    servers: Servers,
    net: Net,
    optimizer: RowOptimizer = Adagrad(lr=0.1),  # noqa: B008
) -> ServedTables:
    return ServedTables(
        [net.items], servers.first, patience=120, dense=net, dense_optimizer=optimizer
    )


def test_one_worker_ends_as_with_torchs_optimizer_while_servers_come_and_go(
    servers: Servers,
) -> None:
    served_net, own = Net(), Net()
    tables, reference = served(servers, served_net, Adagrad(lr=0.01)), SplitTables([own.items])
    optimizer = torch.optim.Adagrad(own.parameters(), lr=0.01)
    draw = np.random.default_rng(0)

    def train(steps: int) -> None:
        for _ in range(steps):
            ids = batch(draw)
            for net in (served_net, own):
                net(ids).square().mean().backward()
            tables.step()
            optimizer.step()
            optimizer.zero_grad()
            reference.step()

    train(20)
    second = servers.start()
    while second not in tables._servers.owners.addresses:
        train(1)
        tables._servers.find_owners()
    train(20)
    assert servers.end(second, signal.SIGTERM) == 0
    served_net(batch(draw)).sum().backward()
    tables.forget()  # as if another worker had pushed that lease
    train(20)
    ids = batch(draw)
    torch.testing.assert_close(served_net(ids), own(ids), rtol=0, atol=1e-12)
    saved = [one.clone() for one in served_net.parameters()]
    for one, other in zip(saved, own.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_workers_begin_with_the_first_ones_values_and_go_back_to_a_commit(
    servers: Servers, tmp_path: object
) -> None:
    one, other, late = Net(1), Net(2), Net(3)
    first, second = served(servers, one), served(servers, other)
    ids = batch(np.random.default_rng(0))
    begun = one(ids)
    assert torch.equal(begun, other(ids))
    assert torch.equal(one.deep[0].weight, Net(1).deep[0].weight)
    for net, tables in ((one, first), (other, second)):
        net(ids).square().mean().backward()
        tables.step()
    trained = one(ids)
    assert torch.equal(trained, other(ids)) and not torch.equal(trained, begun)
    saved = first.save(f"{tmp_path}/saved")
    one(ids).sum().backward()
    first.step()
    first.load(saved)
    third = served(servers, late)
    assert torch.equal(late(ids), trained) and torch.equal(one(ids), trained)
    third.close()


def held(tables: ServedTables, address: str) -> int:
    """Return how many buckets a server holds, as the tables know."""
    number = list(tables._servers.owners.addresses).index(address)
    return int((tables._servers.owner_of == number).sum())


def test_rows_on_servers_are_exported_for_serving_while_servers_come(
    servers: Servers, tmp_path: Path
) -> None:
    net = Net()
    tables = served(servers, net)
    draw = np.random.default_rng(0)
    ids = batch(draw)

    def train() -> None:
        net(batch(draw)).square().mean().backward()
        tables.step()

    train()
    tables.export(tmp_path / "serving", 1)
    reader = ServingTables(tmp_path / "serving")
    train()
    second = servers.start()
    # Until its buckets are there: those that come later would be whole in the third export.
    while second not in tables._servers.owners.addresses or held(tables, second) < BUCKETS // 2:
        train()
        tables._servers.find_owners()
    for step in (2, 3):
        train()
        tables.export(tmp_path / "serving", step)
        assert reader.refresh() and reader.step == step
        with torch.no_grad():
            assert torch.equal(reader.module("items")(ids), net.items(ids))
    sizes = [sum(size for size, _ in one.files.values()) for one in exports(tmp_path / "serving")]
    assert [one.kind for one in exports(tmp_path / "serving")] == [BASE, INCREMENT, INCREMENT]
    assert sizes[2] < sizes[1]  # in the second, half of the buckets were whole
    tables.close()


def test_what_cannot_be_dense_is_refused_in_words(servers: Servers) -> None:
    net = Net()
    with pytest.raises(ValueError, match="dense and dense_optimizer: expected both or none"):
        ServedTables([net.items], "127.0.0.1:1", dense=net)
    with pytest.raises(ValueError, match="a ElasticEmbedding without parameters to train"):
        ServedTables([net.items], "127.0.0.1:1", dense=net.items, dense_optimizer=SGD())
    with pytest.raises(TypeError, match="expected ElasticEmbeddings, found Linear"):
        ServedTables([net.deep[0]], "127.0.0.1:1")
    net.deep[0].float()
    with pytest.raises(TypeError, match=r"parameters of torch\.float32, torch\.float64: expected"):
        served(servers, net)
    alone = ElasticEmbedding("alone", 2, optimizer=SGD())
    tables = ServedTables(
        [alone], "127.0.0.1:1", dense=torch.nn.Linear(1, 1), dense_optimizer=SGD()
    )
    with pytest.raises(ValueError, match="which ElasticLoop keeps in step itself"):
        tables._split_state([alone])
