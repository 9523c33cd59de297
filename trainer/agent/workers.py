"""The agent's end of the unix socket to its local workers (`link.py` is theirs)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainer.agent.link import PROGRESS_BYTES
from trainer.coordinator.message import (
    AgentMessage,
    Committed,
    Fenced,
    FenceReply,
    Finished,
    Linked,
    Progress,
    WorkersFailed,
)


@dataclass
class Worker:
    writer: asyncio.StreamWriter
    rank: int
    pid: int
    progress: memoryview[int]
    reply: int | None = None
    fenced: bool = False
    closing: bool = False


@dataclass
class LocalRound:
    """What this node's workers told since their round began. A new round is a new one of these."""

    round: int = 0
    workers: dict[int, Worker] = field(default_factory=dict)
    """By local rank."""
    local_world_size: int = 0
    step: int = -1
    told_step: int = -1
    fence: int = 0
    stop: int = -1
    leaving: bool = False
    over: bool = False
    finished: bool = False
    failing: bool = False
    """A worker ends in an exception, maybe because a peer vanished, and waits to be told."""
    failed: bool = False

    @property
    def linked(self) -> bool:
        return 0 < self.local_world_size == len(self.workers)

    @property
    def fenced(self) -> bool:
        return self.linked and all(worker.fenced for worker in self.workers.values())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for _, worker in sorted(self.workers.items()))


class WorkerServer:
    """Serves the workers of the current round; what they say goes to `tell` as messages."""

    def __init__(self, tell: Callable[[AgentMessage], None], failing: Callable[[], None]) -> None:
        self.address = f"@volcano-elastic-{uuid.uuid4().hex}"
        self.local = LocalRound()
        self.committed_step = -1
        self._tell = tell
        self._failing = failing
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, "\0" + self.address[1:])

    # ---- from the coordinator

    def begin(self, number: int) -> None:
        """Before the workers of a round are started."""
        self.local = LocalRound(number)

    def ask(self, fence: int) -> None:
        self.local.fence, self.local.stop = fence, -1
        for worker in self.local.workers.values():
            worker.reply, worker.fenced = None, False
        self._broadcast({"type": "ask", "fence": fence})

    def stop(self, fence: int, step: int, leaving: bool) -> None:
        self.local.fence, self.local.stop, self.local.leaving = fence, step, leaving
        self._broadcast({"type": "stop", "fence": fence, "step": step, "leaving": leaving})

    def cancel(self, fence: int) -> None:
        if fence == self.local.fence:
            self.local.fence, self.local.stop = 0, -1
            self._broadcast({"type": "cancel"})

    def end(self) -> None:
        """The round is over, or its leavers may go."""
        self.local.over = True
        self._broadcast({"type": "over"})

    def progress(self) -> Progress | None:
        """The newest step, unless told before."""
        local = self.local
        newest = max(
            ((w.progress[0], w.progress[1]) for w in local.workers.values()), default=(-1, 0)
        )
        if newest[0] <= local.told_step:
            return None
        local.step = local.told_step = newest[0]
        age = (time.monotonic_ns() - newest[1]) / 1e9
        return Progress(local.round, newest[0], max(0.0, age))

    # ---- from the workers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: Worker | None = None
        local = self.local
        try:
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    message = json.loads(line)
                    if worker is None:
                        local = self.local
                        if message["type"] != "hello" or message["round"] != local.round:
                            _write(writer, {"type": "over"})  # of a round that has passed
                            continue
                        worker = self._accept(local, message, writer)
                    else:
                        self._hear(local, worker, message)
        finally:
            writer.close()
            if worker is not None and not (worker.closing or local.over or local.failed):
                local.failed = True
                self._tell_progress()
                self._tell(WorkersFailed(local.round))

    def _accept(
        self, local: LocalRound, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> Worker:
        path = message["progress"]
        with open(path, "r+b") as file:
            pages = mmap.mmap(file.fileno(), PROGRESS_BYTES)
        os.unlink(path)
        worker = Worker(writer, message["rank"], message["pid"], memoryview(pages).cast("q"))
        local.workers[message["local_rank"]] = worker
        local.local_world_size = message["local_world_size"]
        if local.over:
            _write(writer, {"type": "over"})
        if local.linked:
            self._tell(Linked(local.round, local.pids))
        return worker

    def _hear(self, local: LocalRound, worker: Worker, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("stepped", "stopped"):
            self._tell_progress()
        elif kind == "reply" and message["fence"] == local.fence:
            worker.reply = message["step"]
            replies = [one.reply for one in local.workers.values() if one.reply is not None]
            if len(replies) == len(local.workers):
                self._tell(FenceReply(local.fence, max(replies)))
        elif kind == "fenced":
            worker.fenced = True
            if local.fenced:
                self._tell_progress()
                self._tell(Fenced(local.fence, message["step"]))
        elif kind == "committed":
            self.committed_step = max(self.committed_step, message["step"])
            self._tell(Committed(local.round, message["step"]))
        elif kind == "finished":
            worker.closing = True
            self._tell_progress()
            if not local.finished:
                local.finished = True
                self._tell(Finished(local.round))
        elif kind == "failing":
            local.failing = True
            self._failing()
        elif kind == "goodbye":
            worker.closing = True

    def _tell_progress(self) -> None:
        progress = self.progress()
        if progress is not None:
            self._tell(progress)

    def _broadcast(self, message: dict[str, Any]) -> None:
        for worker in self.local.workers.values():
            _write(worker.writer, message)


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")
