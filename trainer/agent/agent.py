"""The agent: one thread in torchrun's process, a stream up to the coordinator, a socket down.

The main thread is torchrun's. It calls `join`, `restart_wanted`, `leave` and `close`; the rest runs
on the thread's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import grpc
import grpc.aio
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainer.agent.coordinator_process import CoordinatorProcess
from trainer.agent.failure import Exit, describe, keep_logs, last_words, oom_kills
from trainer.agent.identity import Identity, address_toward
from trainer.agent.memory import MemoryFolder
from trainer.agent.metrics import WorkerMetrics
from trainer.agent.workers import OwnError, WorkerServer
from trainer.coordinator.admission import HEADER
from trainer.coordinator.exposition import exposition
from trainer.coordinator.failures import bounded
from trainer.coordinator.http import Answer, json_answer, serve_http, text_answer
from trainer.coordinator.message import (
    MESSAGE_BYTES,
    VERSION,
    AgentMessage,
    Dismissed,
    Failed,
    FenceAsk,
    FenceCancel,
    FenceStop,
    Finished,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Member,
    Round,
    RoundOver,
    Standby,
    WorkersFailed,
    decode,
    encode_agent,
)
from trainer.proto.coordinator_pb2_grpc import CoordinatorStub

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
MOST_BEAT_SECONDS = 0.4
BEATS_PER_SECOND = 2500.0
"""Of all agents together; a large job's beat less often, up to MOST_BEAT_SECONDS."""
RETRY_SECONDS = 0.1
SILENT_SECONDS = 3.0
"""Without a word from the coordinator for so long, connect anew."""
UNREACHABLE_LEAVE_SECONDS = 10.0
"""A leaver that can't reach the coordinator goes."""
LEAVE_SECONDS = 28.0
"""A leaver goes, whatever happens: Kubernetes' SIGKILL comes after 30 s."""
IDLE_SECONDS = 30.0
"""For workers that recover in process to come out of a round that is over. Their collectives are
broken at once; what they may still do is compute."""
PERSIST_SECONDS = 10.0
"""At the end, for a checkpoint on its way to storage."""
EXIT_SECONDS = 3.0
"""For workers told to leave to exit by themselves."""

EXIT_TERMINATED = 128 + signal.SIGTERM

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else a retry waits for the last one's back-off
    ("grpc.enable_http_proxy", 0),
]


REFUSED_SECONDS = 45.0
"""How long an agent that is refused tries again: for a moment a name may still lead to the
coordinator of an earlier job, which has Kubernetes' 30 s to end."""
KEPT_FAILURES = 8
"""Of this node, to tell a coordinator that was started anew."""

FRUITLESS_ROUNDS = 5
"""After so many rounds in a row that ended in a failure before the first step, trying is no use."""


def beat_seconds(nodes: int) -> float:
    """Between an agent's signs of life, in a round of so many nodes."""
    return max(BEAT_SECONDS, min(MOST_BEAT_SECONDS, nodes / BEATS_PER_SECOND))


class FruitlessError(RuntimeError):
    """The workers fail before they make a step, each time: another try would not help."""


class RefusedError(RuntimeError):
    """The coordinator won't have this agent; says what it expected."""


class DismissedError(RuntimeError):
    """There is no next round for this agent."""


class Agent:
    def __init__(
        self,
        identity: Identity,
        coordinator: CoordinatorProcess,
        memory: MemoryFolder | None = None,
    ) -> None:
        self.identity = identity
        self._memory = memory
        self.exit_code: int | None = None
        """Set when this process is to end; SIGTERM then tells the main thread."""
        self._coordinator = coordinator
        self._workers = WorkerServer(
            self._tell,
            self._end_orphaned_round,
            self._join_again,
            self._gave_way,
            self._give_up_on,
            self._own_error,
        )
        self._metrics = WorkerMetrics()
        self._failures: list[Failed] = []
        self._oom_kills = oom_kills()
        self._own_errors: list[OwnError] = []
        self._fatal: str | None = None
        """Why no worker is to be started again."""
        self._refused_since: float | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._started = threading.Event()
        self._outbox: asyncio.Queue[AgentMessage | None] | None = None
        self._address = identity.address
        self._current: Round | None = None
        self._ended_round = 0
        self._last_round = 0
        self._joining: tuple[Join, Future[Round] | None] | None = None
        """Without a future it is for workers that wait in process."""
        self._stores: list[TCPStore] = []
        """The last two that this agent offered to serve a round with."""
        self._fruitless = 0
        self._leaving = False
        self._dismissed = False
        """There is no next round for this agent."""
        self._connected = False
        self._closing = False
        self._done = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None

    # ---- torchrun's main thread

    def start(self) -> str:
        """Starts the thread; the address of the workers' socket."""
        self._thread.start()
        if not self._started.wait(10.0):
            raise RuntimeError("the agent's thread did not start within 10 s")
        return self._workers.address

    @property
    def in_round(self) -> bool:
        return self._current is not None

    def join(self, timeout: float) -> Round:
        """Waits for the next round.

        Raises TimeoutError, DismissedError if there is none, RefusedError, or FruitlessError.
        """
        future: Future[Round] = Future()
        self._call(self._join, future)
        return future.result(timeout)

    def restart_wanted(self) -> bool:
        """Whether the round that the workers are in is over; true for that round only."""
        current = self._current
        return current is not None and self._ended_round == current.round

    def worker_failed(self, exit_: Exit) -> None:
        """Before torchrun removes what the worker left."""
        killed = oom_kills()
        failed = describe(
            exit_,
            oom_killed=killed > self._oom_kills,
            note=self._workers.notes.get(exit_.pid, ""),
            log=keep_logs(exit_),
        )
        self._oom_kills = killed
        self._call(self._collect, failed)

    def leave(self) -> None:
        self._call(self._leave)

    def close(self, complete: bool) -> None:
        """Says goodbye and ends the thread; and the coordinator, if it is ours.

        What is in memory stays for a restarted container, unless training is complete or left.
        """
        self._workers.persister.close(PERSIST_SECONDS)
        if self._memory is not None:
            if complete or self._leaving or self._dismissed:
                self._memory.remove()
            else:
                self._memory.close()
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close(complete), self._loop).result(2.0)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(2.0)
        if not complete:
            last_words(self._failures)
        self._coordinator.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # ---- the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except Exception as error:
            log.error("the agent's thread ended: %r", error)
            self._exit(1)

    async def _main(self) -> None:
        await self._workers.start()
        if self.identity.metrics is not None:
            host, port = self.identity.metrics
            try:
                await serve_http(host, port, self._respond)
            except OSError as error:
                log.warning("no metrics: cannot serve %s:%d: %s", host, port, error)
        self._started.set()
        tasks = [
            asyncio.ensure_future(self._attend_for_ever()),
            asyncio.ensure_future(self._beat()),
        ]
        done = asyncio.ensure_future(self._done.wait())
        finished, _ = await asyncio.wait({*tasks, done}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=done in finished)

    async def _beat(self) -> None:
        while True:
            nodes = len(self._current.members) if self._current is not None else 1
            await asyncio.sleep(beat_seconds(nodes))
            self._tell(self._workers.progress() or Heartbeat())
            self._metrics.read(self._workers.reading())
            self._workers.kill_stopped(time.monotonic())
            if self.identity.pod_index == 0 and self.identity.may_host and not self._closing:
                self._coordinator.ensure()
            if self._coordinator.refusal is not None:
                self._refuse_to_join(self._coordinator.refusal)

    def _tell(self, message: AgentMessage) -> None:
        """Without a connection it is dropped: the next Hello tells the state it led to."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def _attend_for_ever(self) -> None:
        while not self._closing:
            try:
                await self._attend()
            except (TimeoutError, grpc.RpcError, OSError) as error:
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in _REFUSALS:
                    self._refused(str(error.details()))
                log.debug("no coordinator at %s: %r", self.identity.host, error)
            self._outbox = None
            self._connected = False
            self._end_orphaned_round()
            if self.identity.may_host and not self._closing:
                self._coordinator.ensure()
            await asyncio.sleep(RETRY_SECONDS)

    async def _attend(self) -> None:
        host, port = self.identity.host, self.identity.port
        if not self._address:
            self._address = await asyncio.to_thread(address_toward, host, port)
        found = await self._loop.getaddrinfo(host, port)
        address = found[0][4][0]
        target = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
        async with grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
            token = self.identity.token
            call = CoordinatorStub(channel).Attend(  # type: ignore[no-untyped-call]
                metadata=((HEADER, token),) if token else ()
            )
            await asyncio.wait_for(call.write(encode_agent(self._hello())), SILENT_SECONDS)
            outbox: asyncio.Queue[AgentMessage | None] = asyncio.Queue()
            for failed in self._failures:
                outbox.put_nowait(failed)
            if self._joining is not None:
                outbox.put_nowait(self._joining[0])
            local = self._workers.local
            if local.held_step >= 0:
                outbox.put_nowait(local.held)
            self._outbox = outbox
            writer = self._writing = asyncio.ensure_future(self._write(call, outbox))
            try:
                while True:
                    envelope = await asyncio.wait_for(call.read(), SILENT_SECONDS)
                    if envelope is grpc.aio.EOF:
                        return
                    self._connected, self._refused_since = True, None
                    message = decode(envelope)
                    if message is not None:
                        self._receive(message)
            finally:
                self._outbox = None
                writer.cancel()
                call.cancel()

    async def _write(self, call: Any, outbox: asyncio.Queue[AgentMessage | None]) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while (message := await outbox.get()) is not None:
                await call.write(encode_agent(message))
            await call.done_writing()

    def _hello(self) -> Hello:
        local = self._workers.local
        current = self._current
        running = current is not None and self._ended_round != current.round and not local.failed
        if not running:
            current = None
        return Hello(
            agent=self.identity.agent,
            pod_index=self.identity.pod_index,
            address=self._address,
            last_round=self._last_round,
            round=current,
            step=local.step if running else -1,
            committed_step=self._workers.committed_step,
            linked=running and local.linked,
            leaving=self._leaving,
            finished=running and local.finished,
            fence=local.fence if running else 0,
            stop_step=local.stop if running else -1,
            fenced=running and local.fenced,
            pids=local.pids if running else (),
            recovers=running and local.recovers,
            version=VERSION,
            job=self.identity.job,
            processes=self.identity.processes,
        )

    def _refused(self, reason: str) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
            where = f"{self.identity.host}:{self.identity.port}"
            log.warning("the coordinator at %s refuses this worker: %s", where, reason)
        elif now - self._refused_since >= REFUSED_SECONDS:
            self._refuse_to_join(reason)

    def _refuse_to_join(self, reason: str) -> None:
        future = self._joining[1] if self._joining is not None else None
        if future is not None and not future.done():
            future.set_exception(RefusedError(reason))

    # ---- failures and figures

    def _collect(self, failed: Failed) -> None:
        known = {(one.pid, one.round) for one in self._failures}
        if (failed.pid, failed.round) not in known:
            failed = bounded(failed)
            self._failures = [*self._failures, failed][-KEPT_FAILURES:]
            self._tell(failed)

    def _gave_way(self, exit_: Exit) -> None:
        self._collect(describe(exit_, oom_killed=False, note="gave way to another's failure"))

    def _give_up_on(self, reason: str) -> None:
        self._fatal = reason

    def _own_error(self, found: OwnError) -> None:
        if any(found.repeats(earlier) for earlier in self._own_errors):
            self._fatal = f"started anew, training ended in the same error: {found.error}"
        self._own_errors = [*self._own_errors, found][-KEPT_FAILURES:]

    def _hopeless(self) -> str | None:
        """Why another try is of no use."""
        if self._fatal is not None:
            return self._fatal
        if self._fruitless < FRUITLESS_ROUNDS:
            return None
        last = self._failures[-1].message if self._failures else "see the workers' output above"
        return f"{self._fruitless} rounds in a row failed before their first step; the last: {last}"

    def _respond(self, path: str, headers: Mapping[str, str]) -> Answer:
        if path != "/metrics":
            return json_answer("404 Not Found", {"error": f"expected GET /metrics, found {path!r}"})
        identity = self.identity
        labels = {"job": identity.job, "worker": str(identity.pod_index)}
        self._metrics.read(self._workers.reading())
        return text_answer(exposition(self._metrics.metrics(), labels))

    # ---- what the coordinator says

    def _receive(self, message: Any) -> None:
        local = self._workers.local
        if isinstance(message, Round):
            self._begin(message)
        elif isinstance(message, RoundOver):
            if self._current is not None and message.round == self._current.round:
                self._end_round(message.round)
        elif isinstance(message, FenceAsk):
            if message.round == local.round:
                self._workers.ask(message.fence)
        elif isinstance(message, FenceStop):
            if message.round == local.round:
                self._workers.stop(message)
        elif isinstance(message, FenceCancel):
            self._workers.cancel(message.fence)
        elif isinstance(message, Standby):
            self._stand_by()
        elif isinstance(message, Dismissed):
            self._dismiss(message)

    def _end_round(self, number: int) -> None:
        self._workers.end()
        if self._workers.local.recovers:
            self._loop.call_later(IDLE_SECONDS, self._workers.kill_unless_idle, number)
        else:
            self._ended_round = number

    def _end_orphaned_round(self) -> None:
        """A worker that fails while the coordinator is gone lost a peer with it, most likely."""
        local = self._workers.local
        if not self._connected and local.failing and self._current is not None:
            self._end_round(self._current.round)

    def _begin(self, begun: Round) -> None:
        self._last_round = max(self._last_round, begun.round)
        if self._joining is None:
            self._tell(WorkersFailed(begun.round))  # nobody here to start workers
            return
        future = self._joining[1]
        self._joining = None
        self._current = begun
        self._metrics.begun(begun.round, len(begun.members) * max(1, self.identity.processes))
        if future is None:
            if self._workers.local.failed:
                self._tell(WorkersFailed(begun.round))
                return
            rank = begun.rank_of(self.identity.agent)
            assert rank is not None, f"round {begun.round} was sent to an agent that isn't in it"
            self._workers.carry(begun, rank)
            return
        self._workers.begin(begun.round)
        if not future.done():
            future.set_result(begun)

    def _stand_by(self) -> None:
        """The workers are started alone, and wait for their first round in process."""
        if self._joining is None or self._joining[1] is None:
            return
        future = self._joining[1]
        self._joining = None
        me = Member(self.identity.agent, self.identity.pod_index, self._address)
        if not future.done():
            future.set_result(Round(0, (me,), self._address, self._stores[-1].port))

    def _join_again(self) -> None:
        """All workers wait in process."""
        local = self._workers.local
        if self._current is not None and local.step >= 0:
            self._fruitless = 0
        self._current = None
        self._joining = (Join(self._serve_store(), live=True), None)
        self._tell(self._joining[0])

    def _serve_store(self) -> int:
        """The port of a fresh store, for the round if it falls to this agent.

        It answers before anybody is told of it: a worker that came too early would try again only
        after some 0.5 s.
        """
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._stores = [*self._stores[-1:], store]
        return int(store.port)

    def _join(self, future: Future[Round]) -> None:
        if self._current is not None:
            local = self._workers.local
            if local.step >= 0:
                self._fruitless = 0
            elif local.failing or self._ended_round != self._current.round:
                self._fruitless += 1
            if (reason := self._hopeless()) is not None:
                future.set_exception(FruitlessError(reason))
                return
        self._current = None
        self._metrics.read(self._workers.reading())  # the last of those that are gone
        self._metrics.started()
        self._workers.end()
        self._workers.begin(0)
        self._joining = (Join(self._serve_store()), future)
        self._tell(self._joining[0])

    def _dismiss(self, message: Dismissed) -> None:
        if self._joining is not None:
            self._dismissed = True
            future = self._joining[1]
            self._joining = None
            if future is None:
                if self._leaving:
                    self._exit(0)
                self._workers.send_home()
            elif not future.done():
                future.set_exception(DismissedError(message.reason))
            return
        local = self._workers.local
        if not self._leaving or local.finished:
            return  # its workers are about to end by themselves
        fenced = local.fenced
        if fenced and local.leaving:
            self._workers.end()  # they exit 0, then torchrun does
            self._loop.call_later(EXIT_SECONDS, self._exit, 0)
        else:
            self._exit(0 if fenced else EXIT_TERMINATED)

    # ---- leaving

    def _leave(self) -> None:
        if self._leaving:
            return
        self._leaving = True
        self._tell(Leave())
        self._loop.call_later(UNREACHABLE_LEAVE_SECONDS, self._leave_if_unreachable)
        self._loop.call_later(LEAVE_SECONDS, self._exit, EXIT_TERMINATED)

    def _leave_if_unreachable(self) -> None:
        if not self._connected:
            self._exit(EXIT_TERMINATED)

    def _exit(self, code: int) -> None:
        """The main thread's SIGTERM handler ends the process with `code`."""
        if self.exit_code is None:
            self.exit_code = code
        os.kill(os.getpid(), signal.SIGTERM)

    async def _close(self, complete: bool) -> None:
        self._closing = True
        local = self._workers.local
        local.over = True
        if complete and self._current is not None and not self._leaving:
            self._tell(Finished(self._current.round))
        self._tell(Goodbye())
        if self._outbox is not None and self._writing is not None:
            self._outbox.put_nowait(None)
            await asyncio.wait({self._writing}, timeout=0.5)
