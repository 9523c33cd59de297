"""One seed of the sharded harness whose processes live on: rounds of ElasticLoop.

Instead of agents, this process answers the workers' links: it gives places, and says when a round
is over.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_trainer.link.message import (
    AskFeeders,
    AskNewestCommit,
    Feeders,
    Fenced,
    FromAgent,
    Hello,
    Idle,
    NewestCommit,
    Place,
    RoundOver,
    Settle,
    Settled,
    decode_from_worker,
    encode,
)
from elastic_trainer.link.worker_link import ROUND_VARIABLE, SOCKET_VARIABLE
from elastic_trainer.store.copier import OVERLAP_VARIABLE
from elastic_trainer.store.slot import MEMORY_VARIABLE

from tests.elastic_trainer.sharded_harness import (
    LOST_SECONDS,
    ROUND_SECONDS,
    STACKS_SECONDS,
    Counts,
    Identity,
    Store,
    Training,
    Violation,
)
from tests.elastic_trainer.sharded_loop_rank import DEVICE_VARIABLE, run_life
from tests.elastic_trainer.sharded_round import SHOW_STACKS, Round


class _Worker:
    """A process of a node."""

    def __init__(self, pid: int, node: int, local: int, connection: socket.socket) -> None:
        self.pid, self.node, self.local = pid, node, local
        self._connection = connection
        self._buffer = b""
        self.idle = self.fenced = False
        self.code: int | None = None

    def tell(self, message: FromAgent) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(message))

    def fileno(self) -> int:
        return self._connection.fileno()

    def hear(self) -> bool:
        """Take what it says; return False where it says nothing more."""
        with contextlib.suppress(OSError):
            if found := self._connection.recv(1 << 16):
                *lines, self._buffer = (self._buffer + found).split(b"\n")
                for line in lines:
                    self._answer(line + b"\n")
                return True
        return False

    def _answer(self, line: bytes) -> None:
        match decode_from_worker(line):
            case Idle():
                self.idle = True
            case Fenced():
                self.fenced = True
            case Settle():
                self.tell(Settled(""))
            case AskNewestCommit():
                self.tell(NewestCommit(-1))
            case AskFeeders():
                self.tell(Feeders(""))

    def reap(self) -> bool:
        """Return whether it has ended."""
        if self.code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
                self._connection.close()
        return self.code is not None

    def show_stacks(self) -> None:
        """Have it write to its log where its threads are."""
        if not self.reap():
            os.kill(self.pid, SHOW_STACKS)

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
            self._connection.close()


class LoopTraining(Training):
    """A Training whose processes end with their node, or the training, not with their round.

    `close` ends what is left.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        store: Store,
        counts: Counts,
        unit: int = 1,
        hsdp: bool = False,
        device: str = "cpu",
    ) -> None:
        super().__init__(seed, folder, store, counts, unit, hsdp, device)
        self._ordered = False
        """The last round ended in order, and all of its state is on the nodes that stay."""
        self._workers: list[_Worker] = []
        self._started = 0

    def close(self) -> None:
        self.end_processes()

    def end_processes(self) -> None:
        """Kill those of all nodes, whose memory stays."""
        for worker in self._workers:
            worker.kill()
        self._workers, self._ordered = [], False

    def _train(self, round_: Round) -> int | None:
        (self.folder / f"round-{round_.number}").write_bytes(pickle.dumps(round_))
        there = {(one.node, one.local) for one in self._workers}
        for node in round_.nodes:
            for local in range(round_.local):
                if (node, local) not in there:
                    self._workers.append(self._start(node, local, round_.every))
        members = [
            next(one for one in self._workers if (one.node, one.local) == (node, local))
            for node in round_.nodes
            for local in range(round_.local)
        ]
        self._until(round_, lambda: all(one.idle for one in members), members)
        port = self.store.fresh()
        for rank, worker in enumerate(members):
            worker.idle = worker.fenced = False
            worker.tell(Place(round_.number, rank, len(members), "127.0.0.1", port))

        def ended() -> bool:
            gone = any(one.code is not None for one in members)
            return gone or all(one.fenced for one in members)

        self._until(round_, ended, members)
        lost = self._lose(round_, members)
        if lost is not None or all(one.fenced for one in members):
            for worker in members:
                worker.tell(RoundOver(round_.number))
            leaving = {lost} if lost is not None else set(round_.leavers)
            self._until(
                round_,
                lambda: all(
                    one.code is not None if one.node in leaving else one.idle for one in members
                ),
                members,
            )
        else:
            self._until(round_, lambda: all(one.code is not None for one in members), members)
        self._workers = [one for one in self._workers if one.code is None]
        return lost

    def _check(self, round_: Round, whole: Identity, stored: Identity, lost: int | None) -> None:
        super()._check(round_, whole, stored, lost)
        asked = [
            one["asked"]
            for rank in range(round_.world)
            for one in self._said(round_.number, rank)
            if one["kind"] == "restored"
        ]
        if self._ordered and any(asked):
            raise Violation(f"storage was looked into, and memory had all: {round_}")
        staying = set(round_.nodes) - set(round_.leavers)
        kept = len(staying) > 1 or not self._doubles(round_)
        self._ordered = lost is None and bool(round_.fence) and kept

    def _doubles(self, round_: Round) -> bool:
        return bool(round_.leavers)

    def _lose(self, round_: Round, members: list[_Worker]) -> int | None:
        """Kill the node, too, where a rank of it was killed; return that."""
        killed = [one for one in members if one.code == -signal.SIGKILL]
        if not killed:
            return None
        node = killed[0].node
        for worker in members:
            if worker.node == node:
                worker.kill()
        shutil.rmtree(self.folder / f"node-{node}", ignore_errors=True)
        time.sleep(self.chance.random() * LOST_SECONDS)
        return node

    def _until(self, round_: Round, condition: Callable[[], bool], members: list[_Worker]) -> None:
        """Raises Violation where a process fails, or it takes too long."""
        deadline = time.monotonic() + ROUND_SECONDS
        while not condition():
            with selectors.DefaultSelector() as selector:
                for worker in members:
                    if worker.code is None:
                        selector.register(worker, selectors.EVENT_READ, worker)
                for key, _ in selector.select(0.01):
                    if not key.data.hear():
                        time.sleep(0.001)  # it is about to end
            failed = [one for one in members if one.reap() and one.code not in (0, -signal.SIGKILL)]
            if failed or time.monotonic() > deadline:
                for worker in members:
                    worker.show_stacks()
                time.sleep(STACKS_SECONDS)
                texts = [
                    f"--- {path.name}\n{path.read_text()[-6000:]}"
                    for path in sorted(self.folder.glob("log-*"))
                ]
                codes = [(one.node, one.local, one.code, one.idle, one.fenced) for one in members]
                raise Violation(f"processes {codes} in {round_}:\n" + "\n".join(texts))

    def _start(self, node: int, local: int, every: int) -> _Worker:
        mine = self.folder / f"node-{node}"
        mine.mkdir(exist_ok=True)
        self._started += 1
        path = str(self.folder / f"agent-{self._started}")
        number = node * self.local + local
        gpu = {DEVICE_VARIABLE: str(number)} if self.device == "cuda" else {}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            listening.listen(1)
            pid = os.fork()
            if not pid:
                listening.close()
                for worker in self._workers:
                    worker._connection.close()
                run_life(
                    self.folder,
                    f"{node}-{local}-{self._started}",
                    {
                        SOCKET_VARIABLE: path,
                        MEMORY_VARIABLE: str(mine),
                        ROUND_VARIABLE: "0",
                        "RANK": "0",
                        "WORLD_SIZE": "1",
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(self.local),
                        "GROUP_RANK": str(node),
                        "HARNESS_EVERY": str(every),
                        OVERLAP_VARIABLE: "0",  # states this small, too
                        **gpu,
                    },
                )
            connection, _ = listening.accept()
        line, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        assert isinstance(decode_from_worker(line), Hello)
        return _Worker(pid, node, local, connection)

    def _said(self, number: int, rank: int) -> list[dict[str, Any]]:
        if not (self.folder / f"said-{number}-{rank}").exists():  # it was not in the round yet
            return []
        return super()._said(number, rank)
