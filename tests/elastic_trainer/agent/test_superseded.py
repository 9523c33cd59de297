"""An agent that another process's claim keeps from storage ends its worker and says why."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.slot import Label, Slots
from elastic_trainer.store.storage import Storage

pytestmark = pytest.mark.process

WORKER = """
import socket, sys
from elastic_trainer.link.message import Hello, Saved, Settle, encode
from elastic_trainer.link.progress import ProgressPage

address, slot, folder, round_ = *sys.argv[1:4], int(sys.argv[4])
connection = socket.socket(socket.AF_UNIX)
connection.connect("\\0" + address[1:])
hello = Hello(round=1, rank=0, local_rank=0, local_world_size=1, recovers=False, error_file="")
socket.send_fds(connection, [encode(hello)], [ProgressPage.create().fileno()])
saved = Saved(
    round=round_, slot=slot, step=5, savers=1, folder=folder, keep=3, run=1, claim="mine",
    retry_seconds=0.0,
)
connection.sendall(encode(saved))
connection.sendall(encode(Settle(storage=True)))
for line in connection.makefile("rb"):
    print(line.decode().strip(), flush=True)
"""


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


class Agent:
    """A WorkerServer in round 1 whose storage another process has claimed since."""

    def __init__(self, folder: Path, workers: list[subprocess.Popen[str]]) -> None:
        self.fatal: list[str] = []
        self.memory, self.commits = folder / "memory", folder / "commits"
        self.memory.mkdir()
        self.storage = Storage(self.commits)
        training = self.storage.open()
        self.storage.take_over(0, "mine")
        Storage(self.commits).take_over(1, "of the other side")
        blob = lay_out({"cursor": {}, "model": torch.ones(3)})
        label = Label(training, 1, 5, 0, 1, False, len(blob.skeleton), blob.size)
        self.slot = Slots(self.memory, 0).write(label, blob).path.name
        self.workers = workers
        nothing: Any = lambda *_: None  # noqa: E731
        self.server = WorkerServer(
            self.memory, nothing, nothing, nothing, nothing, self.fatal.append
        )
        self.server.begin(1)

    def start_worker(self, round_: int) -> subprocess.Popen[str]:
        arguments = [self.server.address, self.slot, str(self.commits), str(round_)]
        command = [sys.executable, "-c", WORKER, *arguments]
        self.workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return self.workers[-1]


async def test_an_agent_whose_claim_is_superseded_kills_its_worker_and_says_why(
    tmp_path: Path, workers: list[subprocess.Popen[str]]
) -> None:
    agent = Agent(tmp_path, workers)
    await agent.server.start()
    worker = agent.start_worker(round_=1)
    assert await asyncio.to_thread(worker.wait, 120) == -signal.SIGKILL
    (reason,) = agent.fatal
    assert "taken over by run 2" in reason
    assert agent.server.notes == {worker.pid: reason}
    assert agent.storage.commits() == []


async def test_what_an_earlier_round_could_not_store_ends_no_later_one(
    tmp_path: Path, workers: list[subprocess.Popen[str]]
) -> None:
    agent = Agent(tmp_path, workers)
    await agent.server.start()
    worker = agent.start_worker(round_=0)
    assert worker.stdout is not None
    answer = await asyncio.to_thread(worker.stdout.readline)
    assert "taken over by run 2" in answer
    assert (agent.fatal, agent.server.notes, worker.poll()) == ([], {}, None)
    assert agent.storage.commits() == []
