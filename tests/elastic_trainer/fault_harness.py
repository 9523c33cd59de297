"""A training job under random faults, by a seed: nothing lost, nothing repeated, the same model.

    python -m tests.elastic_trainer.fault_harness --faults 200 --seed 7

torchrun agents on loopback train a small ElasticLoop; agents that end are started anew, as an
operator would. Between faults the job has moments or longer; now and then it must become whole.
Afterwards the record of what each rank took is replayed in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_trainer.launch.zygote import PRELOADED, Zygote
from elastic_trainer.store.memory_folder import OWNER
from elastic_trainer.store.slot import Slot, SlotError
from elastic_trainer.store.storage import MARKER, Storage

from tests.elastic_trainer.fault_proxy import Proxy
from tests.elastic_trainer.torchrun_job import Job, children, gone

SAMPLES, BATCH, SEED = 2048, 8, 3
NODES = 4
WHOLE_SECONDS = 60.0
"""For a job left alone to become whole."""
COMMITS_SEEN_EVERY = 0.03
_PR_SET_CHILD_SUBREAPER = 36

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

SCRIPT = (
    MODEL
    + f"""
import faulthandler, os, signal, sys, time
from pathlib import Path
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

faulthandler.register(signal.SIGUSR1)  # so that a worker which hangs can tell where
folder = Path(sys.argv[1])
data = ElasticDataset(
    TensorDataset(inputs, targets),
    batch_size={BATCH}, epochs=10**6, seed={SEED}, audit=folder / "audit",
)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=20)
log = open(folder / f"steps-{{os.getpid()}}", "a", buffering=1)
enough = folder / "enough"
if enough.exists():
    data.epochs = int(enough.read_text())
for x, y in loop:
    with loop.step():
        (loop.weight * nn.functional.mse_loss(loop.model(x), y)).backward()
    log.write(f"{{loop.steps}} {{data.cursor.epoch}}\\n")
    time.sleep(0.005)
    if enough.exists():
        data.epochs = int(enough.read_text())
torch.save(net.state_dict(), folder / f"final-{{loop.rank}}.pt")
"""
)


class Nursery:
    """Starts agents with torch imported: a node's start is not what is tried here.

    Their storage can be made to fail, see faulty_storage/sitecustomize.py.
    """

    def __init__(self) -> None:
        os.environ["PYTHONPATH"] = str(Path(__file__).parent / "faulty_storage")
        self._zygote = Zygote.start([*PRELOADED, "torch.distributed.run"])
        assert self._zygote.wait_ready(120.0)
        self.pid = self._zygote.pid

    def start(self, arguments: list[str], environment: dict[str, str], log: Any) -> Any:
        return self._zygote.launch(arguments, environment, [log.fileno(), log.fileno()])

    def close(self) -> None:
        self._zygote.close()


class FaultyJob(Job):
    """A job whose agents reach the coordinator through proxies."""

    def __init__(self, folder: Path, nursery: Nursery, nodes: str) -> None:
        super().__init__(folder, SCRIPT, nodes)
        self.nursery = nursery
        self.proxies = {index: Proxy(self.port) for index in range(1, NODES)}

    def start(self, *indexes: int, restarts: int = 1000) -> None:
        for index in indexes:
            # The coordinator runs in pod 0, whose agent has no way to be cut off from it.
            port = self.proxies[index].port if index else self.port
            environment = {
                **os.environ,
                "VOLCANO_ELASTIC_POD_INDEX": str(index),
                "VOLCANO_ELASTIC_POD_IP": f"127.0.0.{index + 1}",
                "VOLCANO_ELASTIC_JOB": "test/faults",
                "OMP_NUM_THREADS": "1",
                "FAULTY_STORAGE_FOLDER": str(self.folder / "commits"),
                "FAULTY_STORAGE_FILE": str(self.folder / "fault"),
            }
            arguments = [
                *("-m", "torch.distributed.run"),
                *("--nnodes", self.nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts)),
                *("--rdzv-backend", "volcano-elastic", "--rdzv-id", "test"),
                *("--rdzv-endpoint", f"127.0.0.1:{port}"),
                *(str(self.script), str(self.folder)),
            ]
            with open(self.folder / f"agent-{index}.log", "ab") as log:
                self.agents[index] = self.nursery.start(arguments, environment, log)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.send_signal(signal.SIGKILL)
            agent.wait(10)
        for proxy in self.proxies.values():
            proxy.close()


class Harness:
    def __init__(self, job: FaultyJob, chance: random.Random, fixed: bool) -> None:
        self.job = job
        self.chance = chance
        self.storage = Storage(job.folder / "commits")
        self.fixed = fixed
        """Nodes are neither added nor removed."""
        self.wanted = {0, 1} if fixed else {0, 1, 2}
        self.commits: set[tuple[int, int]] = set()
        """Run and step of each commit that was there to see."""
        self.damaged: set[tuple[int, int]] = set()
        self.done: Counter[str] = Counter()
        self.slowest = 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._leaving: dict[int, Any] = {}
        self._began = time.monotonic()

    # ---- the world around the job

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.2f} {text}", flush=True)

    def pass_time(self, seconds: float) -> None:
        """Lets the job run; starts what has ended, undoes what is to last only so long."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [undo for at, undo in self._later if at <= now]
            self._later = [(at, undo) for at, undo in self._later if at > now]
            for undo in due:
                undo()
            self._see_commits()
            for index in sorted(self.wanted):
                agent = self.job.agents.get(index)
                if agent is None or (agent.poll() is not None and self._ended(index)):
                    self.job.start(index)
            for index, agent in list(self.job.agents.items()):
                if index not in self.wanted and agent.poll() is not None:
                    del self.job.agents[index]
            if now >= end:
                return
            time.sleep(COMMITS_SEEN_EVERY)

    def _ended(self, index: int) -> bool:
        self.tell(f"node {index} ended with {self.job.agents[index].returncode}")
        return True

    def _see_commits(self) -> None:
        self.commits.update(commit.identity for commit in self.storage.commits())

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    def become_whole(self) -> None:
        """Left alone, all the nodes that should be there train together."""
        began = time.monotonic()
        first: int | None = None
        while time.monotonic() < began + WHOLE_SECONDS:
            self.pass_time(0.05)
            told = self.job.status()
            if told["phase"] == "running" and told["world"] == len(self.wanted):
                first = told["step"] if first is None else first
                if told["step"] > first + 5:
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    return
            else:
                first = None
        for node in self.job.agents:
            self._send(signal.SIGUSR1, self._process(node, "ve-worker"))
        self.pass_time(0.5)
        raise AssertionError(
            f"not whole after {WHOLE_SECONDS} s: {len(self.wanted)} nodes wanted; "
            f"{json.dumps({**told, 'rounds': told.get('rounds', [])[-3:]})}"
        )

    # ---- whom to hit

    def _node(self) -> int | None:
        there = [i for i, agent in self.job.agents.items() if agent.poll() is None]
        return self.chance.choice(sorted(there)) if there else None

    def _process(self, index: int, name: str) -> int | None:
        with contextlib.suppress(OSError):
            for found, pid in children(self.job.agents[index].pid).items():
                if found.startswith(name):
                    return pid
        return None

    def _send(self, number: signal.Signals, *pids: int | None) -> bool:
        sent = False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, number)
                    sent = True
        return sent

    def _freeze(self, seconds: float, *pids: int | None) -> bool:
        self.later(seconds, lambda: bool(self._send(signal.SIGCONT, *pids)))
        return self._send(signal.SIGSTOP, *pids)

    # ---- faults: each returns whether it could be done

    def kill_worker(self) -> bool:
        node = self._node()
        return node is not None and self._send(signal.SIGKILL, self._process(node, "ve-worker"))

    def terminate_worker(self) -> bool:
        node = self._node()
        return node is not None and self._send(signal.SIGTERM, self._process(node, "ve-worker"))

    def freeze_worker(self) -> bool:
        node = self._node()
        if node is None:
            return False
        return self._freeze(self.chance.uniform(0, 1.5), self._process(node, "ve-worker"))

    def kill_all_workers(self) -> bool:
        return self._send(
            signal.SIGKILL, *(self._process(node, "ve-worker") for node in self.job.agents)
        )

    def kill_node(self) -> bool:
        node = self._node()
        return node is not None and self._send(signal.SIGKILL, self.job.agents[node].pid)

    def terminate_node(self) -> bool:
        """It leaves, and a new one comes in its place."""
        node = self._node()
        return node is not None and self._send(signal.SIGTERM, self.job.agents[node].pid)

    def freeze_agent(self) -> bool:
        node = self._node()
        if node is None:
            return False
        return self._freeze(self.chance.uniform(0, 2.5), self.job.agents[node].pid)

    def freeze_node(self) -> bool:
        node = self._node()
        if node is None:
            return False
        agent = self.job.agents[node].pid
        with contextlib.suppress(OSError):
            return self._freeze(self.chance.uniform(0, 2.5), agent, *children(agent).values())
        return False

    def kill_coordinator(self) -> bool:
        return 0 in self.job.agents and self._send(signal.SIGKILL, self._process(0, "coordinator"))

    def terminate_coordinator(self) -> bool:
        return 0 in self.job.agents and self._send(signal.SIGTERM, self._process(0, "coordinator"))

    def freeze_coordinator(self) -> bool:
        return 0 in self.job.agents and self._freeze(
            self.chance.uniform(0, 2.0), self._process(0, "coordinator")
        )

    def add_node(self) -> bool:
        if self.fixed or len(self.wanted) == NODES:
            return False
        self.wanted.add(len(self.wanted))
        return True

    def remove_node(self) -> bool:
        if self.fixed or len(self.wanted) == 1:
            return False
        self.wanted.remove(index := len(self.wanted) - 1)
        agent = self.job.agents.get(index)
        return agent is not None and self._send(signal.SIGTERM, agent.pid)

    def delay_network(self) -> bool:
        proxy = self.job.proxies[self.chance.randrange(1, NODES)]
        proxy.delay = self.chance.uniform(0, 0.3)
        self.later(self.chance.uniform(0, 2), lambda: setattr(proxy, "delay", 0.0))
        return True

    def drop_network(self) -> bool:
        proxy = self.job.proxies[self.chance.randrange(1, NODES)]
        proxy.open.clear()
        self.later(self.chance.uniform(0, 3), proxy.open.set)
        return True

    def cut_network(self) -> bool:
        self.job.proxies[self.chance.randrange(1, NODES)].cut()
        return True

    def damage_commit(self) -> bool:
        """The newest one, and never so many that none is left."""
        intact = [c for c in self.storage.commits() if c.identity not in self.damaged]
        if len(intact) < 2:
            return False
        newest = intact[0]
        path = Path(self.storage.path(newest)) / self.chance.choice([MARKER, "state.pt"])
        self.damaged.add(newest.identity)
        if self.chance.random() < 0.2:
            with contextlib.suppress(OSError), path.open("r+b") as file:
                file.truncate(self.chance.randrange(os.fstat(file.fileno()).st_size))
                return True
            return False
        return self._flip(path)

    def damage_memory(self) -> bool:
        """A state at rest in a node's shared memory; half of the time, the workers die of it."""
        node = self._node()
        if node is None:
            return False
        flipped = False
        for path in sorted(self._memory_of(self.job.agents[node].pid)):
            slot = Slot(path)
            # One that is being written is not damaged at rest: nobody has verified it yet.
            with contextlib.suppress(SlotError), slot.locked(exclusive=True) as ours:
                flipped |= ours and slot.sealed() is not None and self._flip(path)
        if flipped and self.chance.random() < 0.5:
            self.kill_all_workers()
        return flipped

    def fail_storage(self) -> bool:
        """For a while; half of the time, the workers die of it and must read."""
        kind = self.chance.choice(["EIO", "ESTALE", "503", "slow", "full", "read-only"])
        fault = self.job.folder / "fault"
        fault.write_text(kind)
        self.tell(f"    storage: {kind}")
        self.later(self.chance.uniform(0.2, 3), lambda: fault.unlink(missing_ok=True))
        if self.chance.random() < 0.5:
            self.kill_all_workers()
        return True

    def unmount_storage(self) -> bool:
        """The folder vanishes and returns."""
        folder, away = self.job.folder / "commits", self.job.folder / "commits-away"
        if away.exists() or not folder.exists():
            return False
        folder.rename(away)
        if empty := self.chance.random() < 0.5:
            folder.mkdir()
        self.tell(f"    storage: {'empty' if empty else 'gone'}")

        def mount() -> None:
            if folder.exists():  # what was written meanwhile is hidden by the mount
                folder.rename(self.job.folder / f"beneath-{time.monotonic_ns()}")
            away.rename(folder)

        self.later(self.chance.uniform(0.2, 3), mount)
        if self.chance.random() < 0.5:
            self.kill_all_workers()
        return True

    def truncate_commit(self) -> bool:
        intact = [c for c in self.storage.commits() if c.identity not in self.damaged]
        if len(intact) < 2:
            return False
        path = Path(self.storage.path(intact[0])) / "state.pt"
        self.damaged.add(intact[0].identity)
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.truncate(self.chance.randrange(os.fstat(file.fileno()).st_size))
            return True
        return False

    def _memory_of(self, agent: int) -> list[Path]:
        """The slots of its workers."""
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{agent}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (target := descriptor.readlink()).name == OWNER:
                        return list(target.parent.glob("rank-*"))
        return []

    def _flip(self, path: Path) -> bool:
        """A bit somewhere in it."""
        with contextlib.suppress(OSError), path.open("r+b") as file:
            at = self.chance.randrange(os.fstat(file.fileno()).st_size)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.chance.randrange(8)]), at)
            return True
        return False

    # ---- the whole story

    def run(self, faults: int) -> None:
        kinds = (
            *(self.kill_worker,) * 4,
            *(self.terminate_worker, self.freeze_worker, self.kill_all_workers),
            *(self.kill_node, self.terminate_node, self.freeze_agent, self.freeze_node),
            *(self.kill_coordinator, self.terminate_coordinator, self.freeze_coordinator),
            *(self.add_node, self.remove_node) * 2,
            *(self.delay_network, self.drop_network, self.cut_network),
            *(self.damage_commit, self.damage_memory) * 2,
            *(self.fail_storage,) * 6,
            *(self.unmount_storage,) * 2,
            self.truncate_commit,
        )
        self.become_whole()
        self.tell("whole")
        since = 0
        while self.done.total() < faults:
            fault = self.chance.choice(kinds)
            if fault():
                self.done[fault.__name__] += 1
                since += 1
                self.tell(f"{self.done.total():3} {fault.__name__}")
            if since and self.chance.random() < 0.25:
                since = 0
                self.become_whole()
                self.tell(f"whole, {len(self.wanted)} nodes")
            self.pass_time(self.chance.choice((0, 0.02, 0.1, 0.5, 1.5)) * self.chance.random())
        self.become_whole()
        epochs = self._end()
        self.check(epochs)

    def _end(self) -> int:
        newest = max(
            (path.read_text().splitlines()[-1].split() for path in self._step_logs()),
            key=lambda words: int(words[0]),
        )
        epochs = int(newest[1]) + 2
        told = self.job.folder / "enough.new"
        told.write_text(str(epochs))
        told.rename(self.job.folder / "enough")
        codes = {index: self.job.wait(index) for index in sorted(self.job.agents)}
        self._see_commits()
        assert set(codes.values()) == {0}, f"exit codes {codes}"
        return epochs

    def _step_logs(self) -> list[Path]:
        return [path for path in self.job.folder.glob("steps-*") if path.stat().st_size]

    def check(self, epochs: int) -> None:
        from elastic_trainer.data.audit import verify

        from tests.elastic_trainer.fault_replay import deviation, history

        report = verify(self.job.folder / "audit", SAMPLES, epochs)
        steps, until = history(self.job.folder / "audit")
        lost = {
            (run, step) for run, step in self.commits - self.damaged if step > until.get(run, -1)
        }
        model, batches = deviation(MODEL, SEED, steps, self.job.folder)
        print(f"{dict(self.done)}")
        print(
            f"{self.done.total()} faults, {report.runs} runs, {report.steps} steps: {report.lost} "
            f"samples lost, {report.repeated} repeated, {report.undone} undone and done again; "
            f"{len(lost)} of {len(self.commits)} commits lost; slowest to be whole "
            f"{self.slowest:.1f} s; parameters differ from one process' by {model:.1e}"
        )
        assert report.ok, report
        assert not lost, f"commits that the final model doesn't descend from: {sorted(lost)}"
        # Two ranks' gradients are summed in one order only.
        tolerance = 0.0 if self.fixed else 1e-6
        assert model <= tolerance, f"the model differs from a replay of its own steps by {model}"
        assert batches == report.steps, f"batch norm counted {batches} of {report.steps} steps"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixed", action="store_true", help="two nodes, never more nor fewer")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    # Commits that were damaged on purpose would be warned about at each look.
    logging.getLogger("elastic_trainer.store.storage").setLevel(logging.ERROR)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    # What loses its parent becomes our child, so that nothing left behind goes unseen.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    nursery = Nursery()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        job = FaultyJob(folder, nursery, "2:2" if options.fixed else f"1:{NODES}")
        try:
            Harness(job, random.Random(options.seed), options.fixed).run(options.faults)
            time.sleep(0.5)
            left = [
                name
                for name, pid in children(os.getpid()).items()
                if not gone(pid) and pid != nursery.pid
            ]
            assert not left, f"left behind: {left}"
        except BaseException:
            if options.folder is None:
                print(job.logs())
            raise
        finally:
            job.close()
            nursery.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
