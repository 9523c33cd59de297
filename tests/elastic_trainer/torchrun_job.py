"""Real torchrun agents on loopback, as a test drives them."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_trainer.launch.zygote import ZygoteProcess
from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.store.memory_folder import SHARED_MEMORY, folder_name

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer import nursery

_PR_SET_PDEATHSIG = 1
PEERS = ",".join(f"127.0.0.{index + 1}" for index in range(5))
"""The agents that may be asked where the coordinator is; each has its own address."""
PATIENCE = 120.0
"""Seconds: importing torch takes long when the machine is busy."""


STEPPING = """
import time
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import WorkerLink

link = WorkerLink.from_environment()
step = 0
while True:
    time.sleep(0.02)
    order = link.boundary(step)
    if order is not Order.GO:
        link.committed(step)
        link.fenced(step, order)
    step += 1
"""
"""A script that does nothing but steps, for ever."""


_TORCHRUN = """
import runpy, sys
sys.argv[0] = "torch.distributed.run"
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Job:
    """torchrun agents, each with its own 127.0.0.x address, as pods have."""

    def __init__(self, folder: Path, script: str, nodes: str = "1:4") -> None:
        self.folder = folder
        self.name = f"test/{uuid.uuid4().hex}"
        """Its own in each test: the agents' folders on shared memory are named after it."""
        self.port = free_endpoint()
        self.nodes = nodes
        self.patience = PATIENCE
        """Seconds that anything may take which is waited for."""
        self.token = ""
        """Token that /status is asked with."""
        self.commits: dict[str, int] = {}
        """Steps by digest of their storage, as /status told of them."""
        self.script = folder / "train.py"
        self.script.write_text(script)
        self.agents: dict[int, subprocess.Popen[bytes] | ZygoteProcess] = {}

    def start(
        self,
        *indexes: int,
        restarts: int = 3,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        before: str = "",
        cold: bool = False,
    ) -> None:
        """Start the agents of these pods.

        Args:
            before: what each agent does first.
            cold: by `python -m torch.distributed.run`; else with torch imported. So it is, too,
                where an interpreter has to look at PYTHONPATH.
        """
        cold = cold or "PYTHONPATH" in (environment or {})
        for index in indexes:
            variables = {
                **os.environ,
                "VOLCANO_ELASTIC_POD_INDEX": str(index),
                "VOLCANO_ELASTIC_POD_IP": f"127.0.0.{index + 1}",
                "VOLCANO_ELASTIC_JOB": self.name,
                "VOLCANO_ELASTIC_PEERS": PEERS,
                "VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT": "5",
                "VOLCANO_ELASTIC_PRELOAD": "-torch._dynamo",
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            }
            program = ["-m", "torch.distributed.run"]
            if before:
                # Each has its own, which nobody writes anew while it is read.
                program = [str(self.folder / f"agent-{index}.py")]
                Path(*program).write_text(f"{before}\n{_TORCHRUN}")
            arguments = [
                *program,
                *("--nnodes", self.nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts)),
                *("--rdzv-backend", "volcano-elastic", "--rdzv-id", "test"),
                *("--rdzv-endpoint", f"127.0.0.1:{self.port}", *options),
                *(str(self.script), str(self.folder)),
            ]
            with open(self.folder / f"agent-{index}.log", "ab") as log:
                if not cold:
                    self.agents[index] = nursery.shared().start(arguments, variables, log)
                    continue
                self.agents[index] = subprocess.Popen(
                    [sys.executable, *arguments],
                    env=variables,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )

    def status(self) -> dict[str, Any]:
        """Return what the coordinator tells, wherever it is; of two that of the later term."""
        found = []
        for index in {0, *self.agents}:
            # Where nobody listens, a connection from the very same port finds itself.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                url = f"http://127.0.0.{index + 1}:{self.port + 1}/status"
                request = urllib.request.Request(url, headers={HEADER: self.token})
                with urllib.request.urlopen(request, timeout=2) as answer:
                    found.append(dict(json.load(answer)))
        if found:
            newest = max(found, key=lambda told: int(told["term"]))
            self.commits.update(newest.get("commits") or {})
            return newest
        return {
            "phase": "unreachable",
            "term": -1,
            "world": 0,
            "round": 0,
            "step": -1,
            "ranks": {},
            "pids": {},
            "rounds": [],
            "diverged": [],
            "committed_step": -1,
        }

    def wait_for_status(self) -> dict[str, Any]:
        """Return what the coordinator tells, once it answers: where it is busy, not at once."""
        return self.until("its coordinator answers", lambda told: told["phase"] != "unreachable")

    def until(self, what: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look until the condition is true; a look at what isn't told yet (LookupError) is not."""
        deadline = time.monotonic() + self.patience
        while True:
            told, missing = self.status(), ""
            try:
                if condition(told):
                    return told
            except LookupError as error:
                missing = f"; the last look missed {error!r}"
            if time.monotonic() > deadline:
                found = f"{told}{missing}\n{self.logs()}"
                raise AssertionError(f"not within {self.patience} s: {what}; {found}")
            time.sleep(0.05)

    def stepping(self, world: int, after_round: int = 0) -> dict[str, Any]:
        """Waits until a later round of `world` nodes makes steps and its workers are linked."""

        def condition(told: dict[str, Any]) -> bool:
            rounds = told.get("rounds", [])
            return (
                told["phase"] == "running"
                and told["world"] == world
                and told["round"] > after_round
                and bool(rounds)
                and (rounds[-1]["last_step"] or 0) > (rounds[-1]["first_step"] or 0) + 2
                and all(told["pids"].values())
            )

        return self.until(f"a round of {world} makes steps", condition)

    def wait(self, index: int) -> int:
        try:
            return self.agents[index].wait(self.patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {index} did not end\n{self.logs()}") from None

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-4000:]}" for path in self.folder.glob("*.log")
        )

    def steps(self) -> dict[int, dict[int, list[int]]]:
        """By round and rank, the steps made."""
        found: dict[int, dict[int, list[int]]] = {}
        for path in self.folder.glob("round-*"):
            _, number, _, rank, _, _ = path.name.split("-")
            lines = [int(line) for line in path.read_text().split()]
            found.setdefault(int(number), {})[int(rank)] = lines
        return dict(sorted(found.items()))

    def close(self) -> None:
        for agent in self.agents.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait(120)
        for index in self.agents:
            self._forget(index)

    def memory(self, index: int) -> list[Path]:
        """Return the folders on shared memory that the pod's agents have had."""
        name = folder_name(self.name, f"{socket.gethostname()}/{index}")
        return sorted(SHARED_MEMORY.glob(f"{name}-*"))

    def lose(self, index: int) -> None:
        """Kill an agent and its workers, and with them goes what its node's memory holds."""
        os.killpg(self.agents[index].pid, signal.SIGKILL)
        self.agents[index].wait()
        self._forget(index)

    def _forget(self, index: int) -> None:
        for path in self.memory(index):
            shutil.rmtree(path, ignore_errors=True)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children(pid: int) -> dict[str, int]:
    """The process's children by name, and theirs."""
    found: dict[str, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        told = ""
        with contextlib.suppress(OSError):  # a thread that has just ended
            told = (task / "children").read_text()
        for child in told.split():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{child}/comm").read_text().strip()
                arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                found["coordinator" if b"elastic_trainer.coordinator" in arguments else name] = int(
                    child
                )
                found |= children(int(child))
    return found


def reason(told: dict[str, Any]) -> str:
    """Return why the newest round was made; empty where none is told of."""
    rounds = told["rounds"]
    return str(rounds[-1]["reason"]) if rounds else ""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
