"""A box of nodes on this machine whose ranks train a tiny model, under this project or a peer, as
benchmarks/faults.py breaks it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

from elastic_trainer.launch.zygote import ZygoteProcess

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer import fault_network
from tests.elastic_trainer.fault_job import FaultyNursery
from tests.elastic_trainer.fault_network import Network
from tests.elastic_trainer.torchrun_job import Job

SAMPLES, BATCH = 1 << 18, 4
_PR_SET_PDEATHSIG = 1

MODEL = f"""
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

folder, step_seconds = Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn({SAMPLES}, 16)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters())
log = open(folder / f"steps-{{os.getpid()}}", "a", buffering=1)

def note(step, rank, world):
    if rank == 0:
        log.write(f"{{time.time()}} {{step}} {{world}}\\n")
    time.sleep(step_seconds)  # so that a box of many ranks and few cores is kept busy by none
"""

OURS = (
    MODEL
    + f"""
from datetime import timedelta
from elastic_trainer import ElasticDataset, ElasticLoop

data = ElasticDataset(data, batch_size={BATCH}, epochs=10**6)
loop = ElasticLoop(
    folder / "commits", model=net, optimizer=optimizer, data=data, every=timedelta(seconds=10)
)
for x, y in loop:
    with loop.step():
        (loop.weight * mse_loss(loop.model(x), y)).backward()
    note(loop.steps, loop.rank, loop.world)
"""
)

TORCHRUN = (
    MODEL
    + f"""
from datetime import timedelta
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
saved, step, last = folder / "state.pt", 0, time.monotonic()
if saved.exists():
    state = torch.load(saved)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
model = DistributedDataParallel(net)
sampler = DistributedSampler(data)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size={BATCH}, sampler=sampler):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and time.monotonic() > last + 10:
            last = time.monotonic()
            state = {{"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}
            torch.save(state, folder / "state.new")
            os.replace(folder / "state.new", saved)
        note(step, dist.get_rank(), dist.get_world_size())
"""
)


class Box(Job):
    """Nodes of some ranks each; node 0 is the first to host what all meet at."""

    backend: ClassVar[str]
    script_text: ClassVar[str]
    partitions: ClassVar[bool] = False
    """True if nodes can be cut off from one another."""

    def __init__(self, folder: Path, nodes: int, ranks: int, step_seconds: float) -> None:
        super().__init__(folder, self.script_text, f"1:{nodes}")
        self.port = free_endpoint()
        self.count, self.ranks, self.step_seconds = nodes, ranks, step_seconds
        self.nursery = FaultyNursery()

    def environment(self, node: int) -> dict[str, str]:
        # torch's stores ask for the names of their clients, and wait 5 s where an answer is lost:
        # what the machine's name service makes of many at once is not what is measured.
        return {**os.environ, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "attempts:0"}

    def start_node(self, node: int) -> None:
        """Start its agent, and so its ranks."""
        arguments = [
            *("-m", "torch.distributed.run", "--nnodes", self.nodes),
            *("--nproc-per-node", str(self.ranks), "--max-restarts", "10000"),
            *("--rdzv-backend", self.backend, "--rdzv-id", "faults"),
            *("--rdzv-endpoint", f"127.0.0.1:{self.port}"),
            *(str(self.script), str(self.folder), str(self.step_seconds)),
        ]
        with open(self.folder / f"agent-{node}.log", "ab") as log:
            self.agents[node] = self.launch(arguments, self.environment(node), log)

    def launch(
        self, arguments: list[str], environment: dict[str, str], log: IO[Any]
    ) -> subprocess.Popen[bytes] | ZygoteProcess:
        return self.nursery.start(arguments, environment, log)

    def processes(self, node: int) -> dict[int, str]:
        """Return the node's processes, agent first, and their names."""
        agent = self.agents[node].pid
        return {agent: "agent", **dict(_descendants(agent))}

    def workers(self, node: int) -> list[int]:
        return [pid for pid, name in self.processes(node).items() if self.is_worker(pid, name)]

    def is_worker(self, pid: int, name: str) -> bool:
        raise NotImplementedError

    def host(self) -> int:
        """Return the node that hosts what all meet at."""
        return 0

    def coordinator(self, node: int) -> list[int]:
        """Return the processes that end with the coordinator, or what is in its place."""
        return list(self.processes(node))

    def ledger(self) -> object:
        """Return what the job says of its time, if it does."""
        return None

    def mend(self) -> None:
        """Start anew what has ended beside the nodes."""

    def kill_node(self, node: int) -> None:
        agent = self.agents.pop(node)
        for pid in [agent.pid, *(pid for pid, _ in _descendants(agent.pid))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait(10)

    def close(self) -> None:
        for node in list(self.agents):
            with contextlib.suppress(OSError):
                self.kill_node(node)
        self.nursery.close()


class OurBox(Box):
    backend, script_text, partitions = "volcano-elastic", OURS, True

    def __init__(self, folder: Path, nodes: int, ranks: int, step_seconds: float) -> None:
        super().__init__(folder, nodes, ranks, step_seconds)
        self.network = Network(folder, nodes, self.port)
        self.pauses: dict[int, tuple[str, float]] = {}
        """By round, what it was for, and the seconds without a step before it."""

    def environment(self, node: int) -> dict[str, str]:
        peers = ",".join(map(fault_network.address, range(min(self.count, 8))))
        return {
            **super().environment(node),
            "VOLCANO_ELASTIC_POD_INDEX": str(node),
            "VOLCANO_ELASTIC_POD_IP": fault_network.address(node),
            "VOLCANO_ELASTIC_JOB": self.name,
            "VOLCANO_ELASTIC_PEERS": peers,
            fault_network.VARIABLE: self.network.told_to(node),
        }

    def is_worker(self, pid: int, name: str) -> bool:
        return name.startswith("ve-worker")

    def host(self) -> int:
        told = self.status().get("host")
        return told if isinstance(told, int) and told in self.agents else 0

    def coordinator(self, node: int) -> list[int]:
        """One that was elected is in its agent's own process."""
        own = [
            pid for pid in self.processes(node) if b"elastic_trainer.coordinator" in _arguments(pid)
        ]
        return own or super().coordinator(node)

    def ledger(self) -> object:
        told = self.status()
        for one in told.get("rounds", ()):
            if one.get("pause_seconds") is not None:
                self.pauses[one["round"]] = (one["reason"], one["pause_seconds"])
        return told.get("goodput")

    def close(self) -> None:
        super().close()
        self.network.close()


class TorchrunBox(Box):
    """Stock torchrun, with its own rendezvous and time-outs, but for a store that isn't shared with
    the workers, without which it may never come back."""

    backend, script_text = "c10d", TORCHRUN

    def environment(self, node: int) -> dict[str, str]:
        return {**super().environment(node), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def launch(
        self, arguments: list[str], environment: dict[str, str], log: IO[Any]
    ) -> subprocess.Popen[bytes] | ZygoteProcess:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )

    def is_worker(self, pid: int, name: str) -> bool:
        return str(self.script).encode() in _arguments(pid) and b"--rdzv-id" not in _arguments(pid)


def die_with_parent() -> None:
    """Make a child, just forked, end with us, in a session of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()


def _arguments(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    yield int(child), Path(f"/proc/{child}/comm").read_text().strip()
                    yield from _descendants(int(child))
