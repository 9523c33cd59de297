"""The agent's end of the unix socket to its local workers (`link.py` is theirs)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import mmap
import os
import signal
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from elastic_trainer.agent.local_round import LocalRound, Worker
from elastic_trainer.agent.metrics import Reading
from elastic_trainer.agent.step_times import StepTimes
from elastic_trainer.failures.failure import Exit
from elastic_trainer.link.worker_link import PROGRESS_BYTES
from elastic_trainer.protocol.message import (
    AgentMessage,
    Committed,
    Fenced,
    FenceReply,
    FenceStop,
    Finished,
    Linked,
    Progress,
    Round,
    Stopped,
    Transferring,
    WorkersFailed,
)
from elastic_trainer.store.persister import Persister, Saved
from elastic_trainer.store.slot import Label

ENDING_SECONDS = 2.0


class WorkerServer:
    """Serves the workers of the current round; what they say goes to `tell` as messages."""

    def __init__(
        self,
        tell: Callable[[AgentMessage], None],
        failing: Callable[[], None],
        idle: Callable[[], None],
        gave_way: Callable[[Exit], None],
        fatal: Callable[[str], None],
    ) -> None:
        self.address = f"@volcano-elastic-{uuid.uuid4().hex}"
        self.local = LocalRound()
        self.committed_step = -1
        self.step_times = StepTimes()
        self._tell = tell
        self._failing = failing
        self._idle = idle
        self._gave_way = gave_way
        self._fatal = fatal
        self.notes: dict[int, str] = {}
        """Why this agent killed a worker, by process id; of the round."""
        self.places: dict[int, tuple[int, int]] = {}
        """Round and rank that a process is in, which may not be those it was started for."""
        self._server: asyncio.AbstractServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.persister = Persister(
            self._on_loop(self._sealed),
            self._on_loop(self._stored),
            self._on_loop(self._superseded),
        )

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_unix_server(self._serve, "\0" + self.address[1:])

    # ---- from the coordinator

    def begin(self, number: int) -> None:
        """Before the workers of a round are started."""
        self.local = LocalRound(number)
        self.notes.clear()
        self.places.clear()

    def carry(self, begun: Round, node_rank: int) -> None:
        """Hands the idle workers their places in the next round."""
        before = self.local
        local = self.local = LocalRound(
            begun.round,
            before.workers,
            before.local_world_size,
            told_bytes=before.told_bytes,
            failed=before.failed,
            carried=True,
        )
        for local_rank, worker in local.workers.items():
            worker.local = local
            worker.reply, worker.fenced, worker.idle = None, False, False
            worker.stopped = False
            worker.rank = node_rank * local.local_world_size + local_rank
            self.places[worker.pid] = (local.round, worker.rank)
            place = {
                "type": "round",
                "round": begun.round,
                "rank": worker.rank,
                "world": len(begun.members) * local.local_world_size,
                "address": begun.master_address,
                "port": begun.master_port,
            }
            _write(worker.writer, place)

    def send_home(self) -> None:
        """Training is complete; idle workers have nothing to wait for."""
        self._broadcast({"type": "bye"})

    def kill_unless_idle(self, number: int) -> None:
        """Of round `number`: those that did not come out of it."""
        if self.local.round == number:
            for worker in self.local.workers.values():
                if worker.recovers and not worker.idle:
                    self._kill(worker.pid, "it did not come out of its broken round")

    def patience(self, pid: int) -> float:
        """Seconds that a worker may take to end once its round is over; in any thread.

        What it would go on from is committed. A script's own SIGTERM handler may do what it likes
        with them, but one that only makes a note keeps all others waiting; and no handler of
        Python's runs while a collective hangs.
        """
        for worker in list(self.local.workers.values()):
            if worker.pid == pid:
                return 0.0 if worker.parked else ENDING_SECONDS
        return math.inf  # a script without a link: it may commit by such a handler

    def _kill(self, pid: int, why: str) -> None:
        self.notes[pid] = why
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def reading(self) -> Reading:
        """Of the worker that is furthest."""
        pages = [worker.progress for worker in self.local.workers.values()]
        page = max(pages, key=lambda page: page[0], default=None)
        if page is None:
            return Reading()
        return Reading(page[0], page[1] / 1e9, page[2], page[3] / 1e9)

    def ask(self, fence: int, at_once: bool) -> None:
        self.local.fence, self.local.stop = fence, -1
        for worker in self.local.workers.values():
            worker.reply, worker.stopped, worker.fenced = None, False, False
        self._broadcast({"type": "ask", "fence": fence, "at_once": at_once})

    def stop(self, stop: FenceStop) -> None:
        self.local.fence, self.local.stop, self.local.leaving = stop.fence, stop.step, stop.leaving
        self._broadcast(
            {
                "type": "stop",
                "fence": stop.fence,
                "step": stop.step,
                "leaving": stop.leaving,
                "commit": stop.commit,
            }
        )

    def cancel(self, fence: int) -> None:
        if fence == self.local.fence:
            self.local.fence, self.local.stop = 0, -1
            self._broadcast({"type": "cancel"})

    def end(self) -> None:
        """The round is over, or its leavers may go."""
        self.local.over = True
        self._broadcast({"type": "over", "round": self.local.round})

    def progress(self) -> Progress | None:
        """The newest step, unless told before."""
        local = self.local
        newest = max(
            ((w.progress[0], w.progress[1], w.progress[2]) for w in local.workers.values()),
            default=(-1, 0, 0),
        )
        if newest[0] <= local.told_step:
            return None
        self.step_times.add(local.round, newest[0], newest[1] / 1e9)
        local.step = local.told_step = newest[0]
        age = (time.monotonic_ns() - newest[1]) / 1e9
        longest = self.step_times.longest
        return Progress(local.round, newest[0], max(0.0, age), newest[2], longest)

    def transferring(self) -> Transferring | None:
        """The bytes of state its workers have moved in this round, if they are more than told."""
        local = self.local
        moved = sum(worker.progress[4] for worker in local.workers.values())
        if moved <= local.told_bytes:
            return None
        local.told_bytes = moved
        return Transferring(local.round, moved)

    # ---- from the workers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: Worker | None = None
        try:
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    message = json.loads(line)
                    if worker is not None:
                        self._hear(worker.local, worker, message)
                    elif message["type"] == "hello" and message["round"] == self.local.round:
                        worker = self._accept(self.local, message, writer)
                    else:  # of a round that has passed
                        _write(writer, {"type": "over", "round": message["round"]})
        finally:
            writer.close()
            if worker is not None:
                self._lost(worker.local, worker)

    def _lost(self, local: LocalRound, worker: Worker) -> None:
        if worker.closing or local.failed or (local.over and not worker.recovers):
            return
        local.failed = True
        # torchrun restarts all workers of a node when one dies; waiting for that costs seconds.
        for sibling in local.workers.values():
            if sibling is not worker and sibling.recovers:
                self._kill(sibling.pid, "killed, as another worker of its node had failed")
        if not local.over:
            self._tell_progress()
            self._tell(WorkersFailed(local.round))

    def _accept(
        self, local: LocalRound, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> Worker:
        path = message["progress"]
        with open(path, "r+b") as file:
            pages = mmap.mmap(file.fileno(), PROGRESS_BYTES)
        os.unlink(path)
        worker = Worker(
            writer,
            message["rank"],
            message["pid"],
            memoryview(pages).cast("q"),
            message["recovers"],
            local,
            message["error_file"],
        )
        local.workers[message["local_rank"]] = worker
        self.places[worker.pid] = (local.round, worker.rank)
        local.local_world_size = message["local_world_size"]
        if local.over:
            _write(writer, {"type": "over", "round": local.round})
        if local.linked and local.round:
            self._tell(Linked(local.round, local.pids, local.recovers))
        return worker

    def _hear(self, local: LocalRound, worker: Worker, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "stepped":
            self._tell_progress()
        elif kind == "stopped":
            self._tell_progress()
            worker.stopped = True
            if all(one.stopped for one in local.workers.values()):
                self._tell(Stopped(local.fence))
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
            self._committed(message["step"], message["round"])
        elif kind == "saved":
            local.savers = message["savers"]
            number = next(n for n, one in local.workers.items() if one is worker)
            self.persister.saved(
                Saved(
                    message["path"],
                    message["step"],
                    number,
                    message["round"],
                    message["folder"],
                    message["keep"],
                    message["run"],
                    message["claim"],
                    message["retry_seconds"],
                )
            )
        elif kind == "settle":
            self.persister.flush(message["storage"], self._on_loop(partial(_settled, worker)))
        elif kind == "finished":
            worker.closing = True
            self._tell_progress()
            if not local.finished:
                local.finished = True
                self._tell(Finished(local.round))
        elif kind == "failing":
            local.failing = True
            self._failing()
        elif kind == "idle" and message["round"] == local.round:
            worker.idle = True
            if local.idle:
                self._idle()
        elif kind == "joined" and message["round"] == local.round:
            local.joined |= {n for n, one in local.workers.items() if one is worker}
            if local.linked:
                self._tell(Linked(local.round, local.pids, local.recovers))
        elif kind == "gave_way":
            number = next(n for n, one in local.workers.items() if one is worker)
            self._gave_way(
                Exit(
                    local.round, worker.rank, number, worker.pid, 0, time.time(), worker.error_file
                )
            )
        elif kind == "parked":
            worker.parked = True
        elif kind == "fatal":
            self._fatal(str(message["reason"]))
        elif kind == "goodbye":
            worker.closing = True

    def _committed(self, step: int, round_: int) -> None:
        self.committed_step = max(self.committed_step, step)
        self._tell(Committed(round_, step))

    def _stored(self, saved: Saved, label: Label) -> None:
        self._committed(saved.step, label.round)

    def _superseded(self, saved: Saved, reason: str) -> None:
        """End what another process has replaced; its own next round may have, which is no harm."""
        if saved.round == self.local.round and not self.local.over:
            self._fatal(reason)
            for worker in self.local.workers.values():
                self._kill(worker.pid, reason)

    def _sealed(self, saved: Saved, label: Label) -> None:
        local = self.local
        if saved.round != local.round:
            return
        local.sealed[saved.local_rank] = saved.step
        local.held_round = max(local.held_round, label.round)
        if len(local.sealed) == local.savers:
            local.held_step = min(local.sealed.values())
            self._tell(local.held)

    def _on_loop(self, function: Callable[..., None]) -> Callable[..., None]:
        """To be called in any thread."""

        def call(*arguments: Any) -> None:
            if self._loop is not None and not self._loop.is_closed():
                with contextlib.suppress(RuntimeError):  # closed since
                    self._loop.call_soon_threadsafe(function, *arguments)

        return call

    def _tell_progress(self) -> None:
        progress = self.progress()
        if progress is not None:
            self._tell(progress)

    def _broadcast(self, message: dict[str, Any]) -> None:
        for worker in self.local.workers.values():
            _write(worker.writer, message)


def _settled(worker: Worker, error: str) -> None:
    _write(worker.writer, {"type": "settled", "error": error})


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")
