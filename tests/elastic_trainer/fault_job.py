"""The job that the fault harness breaks: its script, and its agents on faulty nodes."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from elastic_trainer.launch.zygote import PRELOADED, ZygoteProcess
from elastic_trainer.protocol.message import COMMITS_VARIABLE

from tests.elastic_trainer import fault_network
from tests.elastic_trainer.fault_network import Network
from tests.elastic_trainer.loop.devices import DEVICE
from tests.elastic_trainer.nursery import Nursery
from tests.elastic_trainer.torchrun_job import Job

SAMPLES, BATCH, SEED = 2048, 8, 3
NODES = 4
EXPORT = "final-export.pt"
"""The script's last file, which rank 0 writes after the loop."""
TAIL_FAULT = "tail.json"
"""Says how the script's end fails, see fault_tail.py."""
TAIL_FIRED = "tail-fired"
"""Names the files, one each time that it failed so, which hold the pod's index."""

_UNEVEN = [(29 * number) % 103 for number in range(40)]
SHARDS = {f"shard-{n}": count for n, count in enumerate((*_UNEVEN, SAMPLES - sum(_UNEVEN)))}
"""Samples of each shard of the stream; the first one is empty."""

MODEL = f"""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # so that an error is told from rounding
inputs = torch.randn({SAMPLES}, 8)
targets = inputs.sum(1, keepdim=True).sin()
net = nn.Sequential(
    nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)
)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""

TABLES = f"""
import torch
from torch import nn
from elastic_trainer import ElasticEmbedding
from elastic_trainer.embeddings.row_optimizer import Adagrad

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
inputs = torch.randint(0, 500, ({SAMPLES}, 3)) * 5_123_456_789_012_345  # ids
targets = torch.randn({SAMPLES}, 1)
items = ElasticEmbedding(
    "items", 8, optimizer=Adagrad(lr=0.05), dtype=torch.float64, seed={SEED}, backup=True
)
net = nn.Sequential(items, nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
"""A model with rows of ids, each with two of its holders."""

DATASET = f"""
data = ElasticDataset(
    TensorDataset(inputs, targets),
    batch_size={BATCH}, epochs=10**6, seed={SEED}, audit=folder / "audit",
)
"""

STREAM = f"""
from elastic_trainer import ElasticStream

shards, first = {{}}, 0
for name, count in {SHARDS}.items():
    shards[name] = range(first, first + count)
    first += count
data = ElasticStream(
    list(shards), read=lambda name: ((inputs[row], targets[row]) for row in shards[name]),
    shuffle=32, batch_size={BATCH}, epochs=10**6, seed={SEED}, audit=folder / "audit",
)
"""
"""The same samples, in shards that can only be read from beginning to end."""

SCRIPT = (
    MODEL
    + f"""
import errno, faulthandler, json, os, signal, sys, time
from pathlib import Path
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

faulthandler.register(signal.SIGUSR1)  # so that a worker which hangs can tell where
folder = Path(sys.argv[1])
for function in (time.time, os.rename, open):
    assert type(function).__name__ == "function", f"{{function}} of this worker can't be faulty"
{DEVICE}
net.to(device)
{DATASET}
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=20)
log = open(folder / f"steps-{{os.getpid()}}", "a", buffering=1)
enough = folder / "enough"
if enough.exists():
    data.epochs = int(enough.read_text())
for x, y in loop:
    if len(x) == 1:  # which batch norm refuses
        x, y = x.repeat(2, 1), y.repeat(2, 1)
    x, y = x.to(device), y.to(device)
    with loop.step():
        (loop.weight * nn.functional.mse_loss(loop.model(x), y)).backward()
    log.write(f"{{loop.steps}} {{data.cursor.epoch}}\\n")
    time.sleep(0.005)
    if enough.exists():
        data.epochs = int(enough.read_text())

def save(name):
    state = net.state_dict()
    if "items" in globals():
        rows = items.table.entries()
        state = {{**state, "rows": (rows.ids, rows.weights)}}
    torch.save(state, folder / f"{{name}}.new-{{os.getpid()}}")
    os.rename(folder / f"{{name}}.new-{{os.getpid()}}", folder / name)

save(f"final-{{loop.rank}}.pt")
fault = folder / "{TAIL_FAULT}"
if fault.exists():
    told = json.loads(fault.read_text())
    fired = [folder / f"{TAIL_FIRED}-{{number}}" for number in range(told["times"])]
    left = [path for path in fired if not path.exists()]
    if left and loop.rank == told["rank"] % loop.world:
        left[0].write_text(os.environ["VOLCANO_ELASTIC_POD_INDEX"])
        if told["kind"] == "raise":
            raise OSError(errno.ENOSPC, "the export can't be written")
        if told["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)  # until its node is lost
if loop.rank == 0:
    save("{EXPORT}")
"""
)


_FAULTY = f"{__package__}.faulty_node.sitecustomize"


class FaultyNursery(Nursery):
    """Starts agents whose storage can be made to fail and whose clocks to jump, see
    faulty_node/sitecustomize.py."""

    def __init__(self) -> None:
        # Agents and workers are forks, for whom no interpreter looks at PYTHONPATH. It comes before
        # what keeps the functions that it replaces, such as shutil.
        super().__init__([_FAULTY, *PRELOADED], here=_FAULTY in sys.modules)

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[Any],
        errors: IO[Any] | None = None,
    ) -> ZygoteProcess:
        """Start it as any nursery does; a coordinator that it starts looks at PYTHONPATH."""
        faulty = {"PYTHONPATH": str(Path(__file__).parent / "faulty_node")}
        return super().start(arguments, {**environment, **faulty}, log, errors)


@functools.cache
def shared_nursery() -> FaultyNursery:
    """Return that of this test process; it ends with it. A harness that it forks begins its own at
    once."""
    found = FaultyNursery()
    atexit.register(found.close)
    return found


class FaultyJob(Job):
    """A job whose agents reach the coordinator and one another by a faulty network."""

    def __init__(
        self,
        folder: Path,
        nursery: Nursery,
        nodes: str,
        *,
        stream: bool = False,
        tables: bool = False,
        parts_by: fault_network.Kind = "drop",
    ) -> None:
        script = SCRIPT.replace(DATASET, STREAM) if stream else SCRIPT
        script = script.replace(MODEL, TABLES) if tables else script
        self.model = TABLES if tables else MODEL
        super().__init__(folder, script, nodes)
        self.shards = SHARDS if stream else None
        self.nursery = nursery
        self.network = Network(folder, NODES, self.port, parts_by)

    def start(self, *indexes: int, restarts: int = 1000) -> None:
        for index in indexes:
            environment = {
                **os.environ,
                "VOLCANO_ELASTIC_POD_INDEX": str(index),
                "VOLCANO_ELASTIC_POD_IP": fault_network.address(index),
                "VOLCANO_ELASTIC_JOB": self.name,
                "OMP_NUM_THREADS": "1",
                "FAULTY_STORAGE_FOLDER": str(self.folder / "commits"),
                "FAULTY_STORAGE_FILE": str(self.folder / "fault"),
                "FAULTY_CLOCK_FILE": str(self.clock(index)),
                fault_network.VARIABLE: self.network.told_to(index),
                "VOLCANO_ELASTIC_PEERS": ",".join(map(fault_network.address, range(NODES))),
                # As the operator, which has heard of them, tells each pod that it makes.
                COMMITS_VARIABLE: " ".join(f"{k}={v}" for k, v in self.commits.items()),
            }
            arguments = [
                *("-m", "torch.distributed.run"),
                *("--nnodes", self.nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts)),
                *("--rdzv-backend", "volcano-elastic", "--rdzv-id", "test"),
                *("--rdzv-endpoint", f"127.0.0.1:{self.port}"),
                *(str(self.script), str(self.folder)),
            ]
            with open(self.folder / f"agent-{index}.log", "ab") as log:
                self.agents[index] = self.nursery.start(arguments, environment, log)

    def clock(self, index: int) -> Path:
        """The file that says how wrong the node's clock is."""
        return self.folder / f"clock-{index}"

    def close(self) -> None:
        for agent in self.agents.values():
            agent.send_signal(signal.SIGKILL)
            agent.wait(120)
        self.network.close()
