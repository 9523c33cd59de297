"""One commit of servers' rows, the model's other parameters and the ledger of leased samples."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.ledger import Ledger
from elastic_trainer.data.shard_client import ShardClient
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server.client import ServedTables
from elastic_trainer.parameter_server.server_error import ServerError

from tests.elastic_trainer.data.test_shard_client import Coordinator
from tests.elastic_trainer.parameter_server.servers import ALL, Servers, embedding

pytestmark = pytest.mark.process

SAMPLES = 240
DATA = torch.from_numpy(np.random.default_rng(2).integers(0, len(ALL), (SAMPLES, 3)) * 10**12)


@pytest.fixture
def endpoint() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    yield coordinator
    coordinator.end()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(of_first=("--storage", tmp_path / "storage"))
    yield servers
    servers.close()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = embedding(admit_after=2)
        self.out = torch.nn.Linear(4, 1).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.items(ids))
        return found

    def ends(self) -> list[torch.Tensor]:
        """Return all rows, then the other parameters."""
        with torch.no_grad():
            self(ALL[:1])  # begins with the newest
            return [self.items(ALL), *(one.clone() for one in self.out.parameters())]


@pytest.mark.parametrize("servers_then", [2, 3])
def test_job_goes_back_to_its_commit_with_the_data_as_it_was_then(
    servers: Servers, endpoint: Coordinator, tmp_path: Path, servers_then: int
) -> None:
    """With as many servers as then, or another number: each sample is in the model once, and all
    ends as where nothing was lost."""
    second, _third = servers.start(), servers.start()
    servers.wait_for_shares(3)
    net = Net()
    dense = {"dense": net, "dense_optimizer": Adagrad(lr=0.1)}
    ledger = Ledger(samples=SAMPLES, epochs=2, size=8, seed=3, audit=tmp_path / "audit")
    taken: list[list[int]] = []
    commit: Any = None
    with (
        ShardClient(endpoint(), ledger=ledger) as shards,
        ServedTables([net.items], servers.first, patience=120, **dense) as tables,
    ):
        while leases := shards.fetch():
            indices = shards.indices(leases[0])
            if not ledger.add(leases[0]):
                continue
            taken.append(indices)
            try:
                net(DATA[indices]).square().sum().backward()
                tables.step()
            except ServerError:
                assert not second, "before any was killed"
                saved, data, taken = commit
                tables.load(saved)
                ledger.load_state_dict(data)
                continue
            if len(taken) == 20 and commit is None:
                saved = tables.save(tmp_path / "tables")
                commit = saved, ledger.state_dict(), list(taken)
                shards.commit(20)
            if len(taken) == 27 and second:
                servers.end(second, signal.SIGKILL)
                if servers_then == 3:
                    servers.start(second)
                second = ""
        shards.commit(len(taken))
        servers.wait_for_shares(servers_then)
        found = net.ends()
    audit = verify(tmp_path / "audit", SAMPLES, 2)
    assert audit.ok and audit.undone > 0, audit
    undisturbed = Net()
    reference = SplitTables([undisturbed.items])
    optimizer = torch.optim.Adagrad(undisturbed.out.parameters(), lr=0.1)
    for indices in taken:
        undisturbed(DATA[indices]).square().sum().backward()
        reference.step()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(found, undisturbed.ends(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
