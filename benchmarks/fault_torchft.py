"""The same box under torchft (PyPI), where `build/torchft` has it:

    pip install --no-deps --target build/torchft torchft==0.2.0
    pip install --target build/torchft opentelemetry-sdk opentelemetry-exporter-otlp-proto-http

Each rank is a replica group of its own, as with HSDP on one GPU a group; the first stores the state
every ten seconds, as the others' do, for when all are lost at once. Something like torchrun
starts a node's ranks, and each anew that ends; a lighthouse beside them is what all meet at.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.endpoint import free_endpoint
from benchmarks.fault_box import BATCH, MODEL, Box, die_with_parent

FOLDER = Path(__file__).parents[1] / "build" / "torchft"

_SCRIPT = (
    MODEL
    + f"""
import random
from datetime import timedelta
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

rank = os.environ["REPLICA"]
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def load(state):
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    load_state_dict=load,
    state_dict=lambda: {{"model": net.state_dict(), "optimizer": optimizer.state_dict()}},
    min_replica_size=int(os.environ["MAJORITY"]),
    timeout=timedelta(seconds=10),
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    hostname="127.0.0.1",
    replica_id=f"rank-{{rank}}-",
)
saved, last = folder / "state.pt", time.monotonic()
if saved.exists():
    state = torch.load(saved)
    load(state)
    manager.load_state_dict(state["torchft"])
model = DistributedDataParallel(manager, net)
committing = Optimizer(manager, optimizer)
pick = random.Random(int(rank))
step = 0
while True:
    rows = torch.tensor([pick.randrange(len(inputs)) for _ in range({BATCH})])
    x, y = data[rows]
    committing.zero_grad()
    mse_loss(model(x), y).backward()
    committing.step()
    if manager.current_step() > step:
        step = manager.current_step()
        if manager.participating_rank() == 0 and time.monotonic() > last + 10:
            last = time.monotonic()
            state = {{
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "torchft": manager.state_dict(),
            }}
            torch.save(state, folder / "state.new")
            os.replace(folder / "state.new", saved)
        note(step, manager.participating_rank(), manager.num_participants())
"""
)

_NODE = """
import os, subprocess, sys, time
ranks, first = int(sys.argv[1]), int(sys.argv[2])
children = {}
while True:
    for rank in range(first, first + ranks):
        if rank not in children or children[rank].poll() is not None:
            environment = {**os.environ, "REPLICA": str(rank)}
            children[rank] = subprocess.Popen([sys.executable, *sys.argv[3:]], env=environment)
    time.sleep(0.05)
"""


LIGHTHOUSE = "from torchft._torchft import lighthouse_main; lighthouse_main()"


class TorchftBox(Box):
    backend, script_text = "", _SCRIPT

    def __init__(self, folder: Path, nodes: int, ranks: int, step_seconds: float) -> None:
        super().__init__(folder, nodes, ranks, step_seconds)
        if not (FOLDER / "torchft").is_dir():
            raise SystemExit(f"expected torchft in {FOLDER}, found none; see {__name__}")
        self._majority = nodes * ranks // 2 + 1
        """Or those who start while the lighthouse is away begin a training of their own."""
        self._address = f"127.0.0.1:{free_endpoint()}"
        self._lighthouse = self._start_lighthouse()

    def _start_lighthouse(self) -> subprocess.Popen[bytes]:
        # It reads the process' own arguments, and takes those after a file's name alone.
        program = self.folder / "lighthouse.py"
        program.write_text(LIGHTHOUSE)
        command = [sys.executable, str(program), f"--min_replicas={self._majority}"]
        command += [f"--bind={self._address}", "--join_timeout_ms=1000"]
        return self._run(command, self.environment(0), "lighthouse")

    def environment(self, node: int) -> dict[str, str]:
        lighthouse = f"http://{self._address}"
        own = {"PYTHONPATH": str(FOLDER), "TORCHFTLIGHTHOUSE": lighthouse, "RUST_LOG": "warn"}
        own["MAJORITY"] = str(self._majority)
        return {**super().environment(node), **own}

    def start_node(self, node: int) -> None:
        script = [str(self.script), str(self.folder), str(self.step_seconds)]
        words = ["-c", _NODE, str(self.ranks), str(node * self.ranks), *script]
        command = [sys.executable, *words]
        self.agents[node] = self._run(command, self.environment(node), f"agent-{node}")

    def _run(
        self, command: list[str], environment: dict[str, str], name: str
    ) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def is_worker(self, pid: int, name: str) -> bool:
        return pid in self.children_of_agents()

    def children_of_agents(self) -> set[int]:
        found = set()
        for agent in self.agents.values():
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
                found.update(map(int, children.split()))
        return found

    def coordinator(self, node: int) -> list[int]:
        return [self._lighthouse.pid]

    def mend(self) -> None:
        if self._lighthouse.poll() is not None:
            self._lighthouse = self._start_lighthouse()

    def close(self) -> None:
        self._lighthouse.send_signal(signal.SIGKILL)
        self._lighthouse.wait()
        super().close()
