"""The agent: one thread in torchrun's process, a stream up to the coordinator, a socket down.

The main thread is torchrun's. It calls `join`, `restart_wanted`, `leave` and `close`; the rest runs
on the thread's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elastic_trainer.agent import control_group
from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.counted import Counted
from elastic_trainer.agent.departure import Departure
from elastic_trainer.agent.errors import DismissedError, PermanentFailureError, RefusedError
from elastic_trainer.agent.fixed_place import FixedPlace
from elastic_trainer.agent.held_parts import held_parts
from elastic_trainer.agent.inspection import Inspector
from elastic_trainer.agent.load import LoadMeter
from elastic_trainer.agent.metrics import WorkerMetrics
from elastic_trainer.agent.metrics_page import MetricsPage
from elastic_trainer.agent.recheck import Recheck
from elastic_trainer.agent.round_exit import RoundExit
from elastic_trainer.agent.stream import CoordinatorStream
from elastic_trainer.agent.succession import Hooks, Succession
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.coordinator.__main__ import (
    END_DELIVERY_SECONDS,
    FAILURES_DELIVERY_SECONDS,
)
from elastic_trainer.failures import failure_rule
from elastic_trainer.failures.failure import Exit, write_termination_message
from elastic_trainer.failures.node_failures import NodeFailures
from elastic_trainer.identity import Identity
from elastic_trainer.link.worker_link import ROUND_VARIABLE
from elastic_trainer.protocol.message import (
    VERSION,
    AgentMessage,
    AskStanding,
    CheckNode,
    Completed,
    Dismissed,
    FenceAsk,
    FenceCancel,
    FenceStop,
    Goodbye,
    Heartbeat,
    Hello,
    Inspect,
    Join,
    Leave,
    Member,
    Round,
    RoundOver,
    RoundStands,
    Standby,
    StatePart,
    WorkersFailed,
    WorkersSucceeded,
)
from elastic_trainer.protocol.pace import BEAT_SECONDS
from elastic_trainer.store.memory_folder import MemoryFolder
from elastic_trainer.store.slot import find_labels

if TYPE_CHECKING:
    from elastic_trainer.node_check.member import Launch

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.4
"""Between two looks at its workers, at the most, however seldom the coordinator is told."""
UNKNOWN_END_SECONDS = 120.0
"""For workers that ended well, without a word from the coordinator on how the others did."""
PERSIST_SECONDS = 10.0
"""At the end, for a checkpoint on its way to storage."""
EXIT_SECONDS = 3.0
"""For workers told to leave to exit by themselves."""

EXIT_TERMINATED = 128 + signal.SIGTERM


class Agent:
    def __init__(
        self,
        identity: Identity,
        coordinator: CoordinatorProcess,
        memory: MemoryFolder | None = None,
        launch: Launch | None = None,
    ) -> None:
        self.identity = identity
        self._memory = memory
        self.exit_code: int | None = None
        """Set when this process is to end; SIGTERM then tells the main thread."""
        self._coordinator = coordinator
        self._stream = CoordinatorStream(
            identity,
            self._resync_messages,
            self._receive,
            self._lost_coordinator,
            self._refuse_to_join,
            lambda: self._place.where(),
        )
        self._place = self._coordinators_place()
        self._failures = NodeFailures(
            self._stream.tell, failure_rule.read(os.environ), control_group.oom_kills
        )
        self._workers = WorkerServer(
            memory=memory.path if memory is not None else None,
            tell=self._stream.tell,
            failing=self._end_orphaned_round,
            idle=self._join_again,
            secondary_failure=self._failures.secondary_failure,
            fatal=self._give_up_on,
            offer=self._offer_store,
        )
        self._workers.learn(identity.commits)
        self._metrics = WorkerMetrics()
        self._metrics_page = MetricsPage(identity, self._metrics, self._workers)
        self._counted = Counted()
        self._beat_seconds = BEAT_SECONDS
        """Seconds between beats, as the coordinator asks."""
        self._load = LoadMeter(
            os.environ,
            lambda load: self._call(self._stream.tell, load),
            lambda: self._beat_seconds,
        )
        self._fatal: str | None = None
        """Why no worker is to be started again."""
        self._job_failed = False
        """The coordinator says so; workers that run are to be ended."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._started = threading.Event()
        self._current: Round | None = None
        self._round_exit = RoundExit(self._failures.add)
        self._inspector = Inspector(self._stream.tell)
        self._recheck = Recheck(identity, launch)
        self._last_round = 0
        self._joining: tuple[Join, Future[Round] | None] | None = None
        """Without a future it is for workers that wait in process."""
        self._offer: Join | None = None
        """That for workers which are at a fence, and will wait in process."""
        self._next: Round | None = None
        """Made by it, until the workers are out of the round before."""
        self._stores: list[TCPStore] = []
        """The last two that this agent offered to serve a round with."""
        self._departure = Departure(identity.grace)
        self._dismissed = False
        """There is no next round for this agent."""
        self._released = False
        """torchrun may hear that workers have ended with code 0."""
        self._complete = False
        """Training is; the coordinator may be gone when workers next ask for a round."""
        self._join_seconds = math.inf
        """How long torchrun waits for a round."""
        self._connected_at = time.monotonic()
        """When a stream to the coordinator was last seen open, or nothing was expected of it."""
        self._closing = False
        self._goodbye_heard = asyncio.Event()
        self._done = asyncio.Event()
        self._ended: set[int] = set()
        """Workers that ended with code 0; the main thread's."""

    # ---- torchrun's main thread

    def start(self) -> str:
        """Starts the thread; the address of the workers' socket."""
        self._thread.start()
        if not self._started.wait(10.0):
            raise RuntimeError("the agent's thread did not start within 10 s")
        if self.identity.in_pod:
            self._load.start()
        return self._workers.address

    @property
    def leaves_by_a_round(self) -> bool:
        """Return whether a leave is the coordinator's to decide: its workers are in a round, or
        wait for one in process with a state that nobody else may have."""
        return self._current is not None or self._holds

    def is_ending(self) -> bool:
        """Tells whether this process is to end, or has no coordinator to wait for."""
        return self.exit_code is not None or self._coordinator.refusal is not None

    def join(self, timeout: float) -> Round:
        """Waits for the next round.

        Raises TimeoutError, DismissedError if there is none, RefusedError, PermanentFailureError.
        """
        future: Future[Round] = Future()
        self._ended.clear()
        self._call(self._join, future, timeout)
        return future.result(timeout)

    def restart_wanted(self) -> bool:
        """Return whether the round that the workers are in is over; true for that round only. Also
        for workers that are to be ended for good, as `join` then says."""
        current = self._current
        return self._job_failed or (
            current is not None and self._round_exit.restarting == current.round
        )

    def worker_failed(self, exit_: Exit) -> None:
        """Before torchrun removes what the worker left."""
        round_, rank = self._workers.places.get(exit_.pid, (exit_.round, exit_.rank))
        exit_ = replace(exit_, round=round_, rank=rank)
        note = exit_.note or self._workers.notes.get(exit_.pid, "")
        failed = self._failures.describe(exit_, note)
        self._call(self._failures.add, failed)

    def may_end(self, pid: int, environment: Mapping[str, str]) -> bool:
        """Return whether torchrun may hear that worker `pid` has ended with code 0: once all
        workers of the round have. Until then they may have to be started again, together with one
        that fails.

        Args:
            environment: that the worker was started with.
        """
        if pid not in self._ended:
            self._ended.add(pid)
            number, _ = self._workers.places.get(pid, (int(environment.get(ROUND_VARIABLE, 0)), 0))
            self._call(self._worker_ended, pid, number, int(environment.get("LOCAL_WORLD_SIZE", 1)))
        return self._released

    def patience(self, pid: int) -> float:
        """Seconds that a worker may take to end once torchrun has sent it SIGTERM."""
        ends = self.exit_code is not None or self.restart_wanted()
        return self._workers.patience(pid) if ends else math.inf

    def leave(self) -> None:
        self._call(self._leave)

    def close(self, complete: bool) -> None:
        """Says goodbye and ends the thread; and the coordinator, if it is ours.

        What is in memory stays for a restarted container, unless training is complete or left.
        """
        self._load.close()
        self._recheck.close()
        self._workers.persister.close(PERSIST_SECONDS)
        if self._memory is not None:
            if complete or self._departure.under_way or self._dismissed:
                self._memory.remove()
            else:
                self._memory.close()
        ended = complete or self._departure.under_way or self._dismissed
        failures = FAILURES_DELIVERY_SECONDS if self.identity.in_pod and not ended else 0.0
        end = (
            END_DELIVERY_SECONDS
            if (complete or self._complete) and not self._departure.under_way
            else 0.0
        )
        if self._thread.is_alive():
            patience = 0.0 if complete else self._goodbye_seconds()
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(
                    self._close(complete, patience), self._loop
                ).result(2.0 + patience)
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(
                    self._place.close(failures_seconds=failures, end_seconds=end), self._loop
                ).result(2.0 + failures + end)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(2.0)
        if not complete:
            write_termination_message(self._failures.kept, self._fatal)
        self._coordinator.close(
            # Else what an operator would tell of a job that failed at once is gone with the pod.
            failures_delivered=failures > 0.0,
            end_delivered=end > 0.0,
        )

    def _call(self, function: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # ---- the loop's thread

    def _coordinators_place(self) -> FixedPlace | Succession:
        if not self.identity.succession:
            return FixedPlace(self.identity)
        hooks = Hooks(
            connected=lambda: self._stream.connected,
            ended_by=lambda: self._stream.ended_by,
            address=lambda: self._stream.address,
            dial_anew=self._stream.dial_anew,
            dialled=lambda: self._stream.dialled,
            tell=self._stream.tell,
            stays=self._stays,
        )
        return Succession(self.identity, self._coordinator, hooks)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except Exception as error:
            log.error("the agent's thread ended: %r", error)
            self._exit(1)

    async def _main(self) -> None:
        await self._workers.start()
        await self._place.serve()
        await self._metrics_page.serve()
        self._started.set()
        tasks = [
            asyncio.ensure_future(self._stream.attend_for_ever()),
            asyncio.ensure_future(self._beat()),
            asyncio.ensure_future(self._place.watch()),
        ]
        done = asyncio.ensure_future(self._done.wait())
        finished, _ = await asyncio.wait({*tasks, done}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ended in finished:
            ended.result()  # raises what ended it, if that was an error

    async def _beat(self) -> None:
        while True:
            beat = self._beat_seconds
            looks = math.ceil(beat / LOOK_SECONDS)
            for look in range(looks):
                await asyncio.sleep(beat / looks)
                if look == looks - 1:
                    self._tell_of_workers()
                self._look_after_workers()

    def _tell_of_workers(self) -> None:
        self._stream.tell(self._workers.progress() or Heartbeat())
        moved = self._workers.transferring()
        if moved is not None:
            self._stream.tell(moved)

    def _look_after_workers(self) -> None:
        if self._next is not None and self._workers.local.failed:  # on the way to it
            self._stream.tell(WorkersFailed(self._next.round))
            self._next = None
        self._metrics.read(self._workers.reading())
        self._see_workers_out()
        self._end_if_never_told(time.monotonic())
        if self.identity.pod_index == 0:
            self._ensure_coordinator()
        if self._coordinator.refusal is not None:
            self._refuse_to_join(self._coordinator.refusal)

    def _ensure_coordinator(self) -> None:
        # A job that was there first has the endpoint, and its agents are to find it free.
        intrudes = self.identity.pod_index < 0 and self._stream.is_refused
        if self._place.hosts_by_right and not (self._closing or intrudes):
            self._coordinator.ensure()

    def _lost_coordinator(self) -> None:
        self._end_orphaned_round()
        self._ensure_coordinator()
        self._place.lost()

    def _stays(self) -> bool:
        """Tells whether this agent takes part in further rounds, as far as it knows."""
        ends = self._departure.under_way or self._dismissed or self._complete or self._closing
        return not (
            ends or self._job_failed or self._fatal is not None or self.exit_code is not None
        )

    def _resync_messages(self) -> Iterator[AgentMessage]:
        """All that a coordinator that was started anew needs to know."""
        self._next = None  # it isn't told of a round that no worker is in
        yield self._hello()
        yield from self._failures.kept
        if self._closing:
            yield Goodbye()
            return
        if (tables := self._workers.told_tables).loads:
            yield tables  # before it asks: a leaver that has rows may wait for a round
        if self._joining is not None:
            if self._place.unheard_seconds(time.monotonic()) > 0.0:
                self._ask_for_round()
            else:
                yield self._joining[0]
        if self._workers.local.held_step >= 0:
            yield self._workers.local.held

    def _ask_for_round(self) -> None:
        """Does so once no round can be under way of which it knows nothing."""
        wait = self._place.unheard_seconds(time.monotonic())
        if wait > 0.0:
            self._loop.call_later(wait, self._ask_for_round)
        elif self._joining is not None:
            self._stream.tell(self._joining[0])

    def _hello(self) -> Hello:
        local = self._workers.local
        current = self._current
        ended = self._round_exit.restarting
        running = current is not None and ended != current.round and not local.failed
        if not running:
            current = None
        return Hello(
            agent=self.identity.agent,
            pod_index=self.identity.pod_index,
            address=self._stream.address,
            last_round=self._last_round,
            round=current,
            step=local.step if running else -1,
            committed_step=self._workers.committed_step,
            linked=running and local.linked,
            leaving=self._departure.under_way,
            finished=running and local.finished,
            succeeded=running and local.succeeded,
            fence=local.fence if running else 0,
            stop_step=local.stop if running else -1,
            stop_commits=running and local.commit,
            holds=self._holds,
            sharded=local.sharded or bool(self._workers.tables()),
            fenced=running and local.fenced,
            pids=local.pids if running else (),
            feed_port=local.feed_port if running else 0,
            recovers=running and local.recovers,
            version=VERSION,
            job=self.identity.job,
            program=self.identity.program,
            processes=self.identity.processes,
            node=self.identity.node,
            grace_seconds=self._departure.grace_left(time.monotonic()),
            commits=self._workers.commits,
            last_run=self._workers.last_run,
            term=self._place.term,
            port=self._place.port,
            electorate=self._place.electorate,
            goodput=self._counted.goodput,
            uncounted_milliseconds=self._counted.uncounted_milliseconds,
            alive_milliseconds=self._counted.alive_milliseconds,
            keepers=self._counted.keepers,
        )

    def _refuse_to_join(self, reason: str) -> None:
        if self._joining is None:
            return
        future = self._joining[1]
        if future is None:  # torchrun asks for no round while workers wait in process
            self._fail_permanently(f"refused: {reason}")
        elif not future.done():
            future.set_exception(RefusedError(reason))

    # ---- failures

    def _give_up_on(self, reason: str) -> None:
        self._fatal = reason

    # ---- what the coordinator says

    def _receive(self, message: Any) -> None:
        self._place.heard(message)
        self._counted.hear(message)
        local = self._workers.local
        if isinstance(message, Heartbeat):
            self._beat_seconds = message.beat_seconds or self._beat_seconds
        elif isinstance(message, Round):
            self._begin(message)
        elif isinstance(message, RoundOver):
            if self._next is not None and message.round == self._next.round:
                self._next = None
            if self._current is not None and message.round == self._current.round:
                self._end_round(message.round)
        elif isinstance(message, FenceAsk):
            if message.round == local.round:
                self._workers.ask(message.fence, message.at_once)
        elif isinstance(message, FenceStop):
            if message.round == local.round:
                self._workers.stop(message)
                self._offer_store()  # beside the last step
        elif isinstance(message, FenceCancel):
            self._workers.cancel(message.fence)
        elif isinstance(message, Inspect):
            if message.round == local.round:
                self._inspector.begin(local)
        elif isinstance(message, AskStanding):
            self._workers.stands(message)
        elif isinstance(message, RoundStands):
            self._workers.round_stands(message)
        elif isinstance(message, CheckNode):
            self._recheck.begin(*self._stream.dialled)
        elif isinstance(message, Standby):
            self._workers.feeders = message.feeders
            self._prewarm()
        elif isinstance(message, Completed):
            self._complete = self._released = True
            self._dismiss_if_complete()
        elif isinstance(message, Dismissed):
            self._dismiss(message)

    def _end_round(self, number: int) -> None:
        self._workers.end()
        self._round_exit.begin(number, self._workers.step_times.patience(self.identity.patience))
        self._see_workers_out()

    def _see_workers_out(self) -> None:
        current = self._current.round if self._current is not None else None
        self._round_exit.look(current, self._workers.local, time.monotonic())

    def _end_orphaned_round(self) -> None:
        """A worker that fails while the coordinator is gone lost a peer with it, most likely."""
        local = self._workers.local
        if not self._stream.connected and local.failing and self._current is not None:
            self._end_round(self._current.round)

    def _begin(self, begun: Round) -> None:
        self._last_round = max(self._last_round, begun.round)
        self._recheck.end()
        self._workers.learn(begun.commits, begun.last_run)
        if self._joining is None and self._offer is not None and self._workers.local.recovers:
            self._next = begun
            return
        if self._joining is None:
            self._stream.tell(WorkersFailed(begun.round))  # nobody here to start workers
            return
        future = self._joining[1]
        self._current = begun  # first: SIGTERM may come between the two
        self._joining = None
        processes = max(1, self.identity.processes)
        self._metrics.begun(begun.round, len(begun.members) * processes)
        if (rank := begun.rank_of(self.identity.agent)) is not None:
            self._workers.discard_diverged(begun, rank, processes)
        if future is None:
            if self._workers.local.failed:
                self._stream.tell(WorkersFailed(begun.round))
                return
            assert rank is not None, f"round {begun.round} was sent to an agent that isn't in it"
            self._workers.reassign(begun, rank)
            return
        self._workers.begin(begun.round)
        if not future.done():
            future.set_result(begun)

    def _prewarm(self) -> None:
        """The workers are started alone, and wait for their first round in process."""
        if self._joining is None or self._joining[1] is None:
            return
        future = self._joining[1]
        self._joining = None
        me = Member(self.identity.agent, self.identity.pod_index, self._stream.address)
        if not future.done():
            future.set_result(Round(0, (me,), self._stream.address, self._stores[-1].port))

    def _join_again(self) -> None:
        """All workers wait in process."""
        begun, self._next = self._next, None
        offered, self._offer = self._offer, None
        joining = offered or self._join_in_process()
        self._joining = (replace(joining, parts=self._held_parts()), None)
        if begun is not None:
            self._begin(begun)
            return
        self._current = None
        self._stream.tell(self._joining[0])
        self._dismiss_if_complete()

    def _join_in_process(self) -> Join:
        return Join(self._serve_store(), live=True, round=self._workers.local.round)

    def _held_parts(self) -> tuple[StatePart, ...]:
        return held_parts(find_labels(self._memory.path)) if self._memory is not None else ()

    def _offer_store(self) -> int:
        """Return the port of a store for the next round, if workers at a fence will wait for it."""
        if self._departure.under_way or not self._workers.local.recovers:
            self._offer = None
        elif self._offer is None:
            self._offer = self._join_in_process()
        return self._offer.store_port if self._offer is not None else 0

    def _serve_store(self) -> int:
        """The port of a fresh store, for the round if it falls to this agent.

        It answers before anybody is told of it: a worker that came too early would try again only
        after some 0.5 s.
        """
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._stores = [*self._stores[-1:], store]
        return int(store.port)

    def _join(self, future: Future[Round], timeout: float) -> None:
        self._join_seconds = timeout
        wait = self._place.unheard_seconds(time.monotonic())
        if wait > 0.0:
            self._loop.call_later(wait, self._join, future, timeout)
            return
        if self._fatal is not None:
            future.set_exception(PermanentFailureError(self._fatal))
            return
        self._current = self._next = self._offer = None
        self._metrics.read(self._workers.reading())  # the last of those that are gone
        self._metrics.started()
        self._workers.end()
        self._workers.begin(0)
        self._released = False
        self._joining = (Join(self._serve_store(), parts=self._held_parts()), future)
        self._stream.tell(self._joining[0])
        self._dismiss_if_complete()

    def _fail_permanently(self, reason: str) -> None:
        self._fatal, self._job_failed = self._fatal or reason, True
        future = self._joining[1] if self._joining is not None else None
        self._joining = None
        if future is not None and not future.done():
            future.set_exception(PermanentFailureError(self._fatal))

    def _dismiss_if_complete(self) -> None:
        """Answers who asks for a round: the coordinator goes soon after training is complete, and
        workers that were being started ask only then."""
        if self._complete and self._joining is not None:
            self._dismiss(Dismissed("training is complete"))

    def _dismiss(self, message: Dismissed) -> None:
        if self._closing:
            self._goodbye_heard.set()
            return
        if message.failed:
            self._fail_permanently(message.reason)
            return
        if self._joining is not None:
            self._dismissed = self._released = True
            future = self._joining[1]
            self._joining = None
            if future is None:
                if self._departure.under_way:
                    self._exit(0)
                self._workers.dismiss_idle()
            elif not future.done():
                future.set_exception(DismissedError(message.reason))
            return
        if not self._departure.under_way or self._dismissed:
            return
        local = self._workers.local
        fenced = local.fenced
        if local.succeeded:
            self._released = True
        elif fenced and local.leaving:
            self._released = True
            self._workers.end()  # they exit 0, then torchrun does
            self._loop.call_later(EXIT_SECONDS, self._exit, 0)
        else:
            self._exit(0 if fenced else EXIT_TERMINATED)

    # ---- the end of the workers' scripts

    def _worker_ended(self, pid: int, number: int, local_world_size: int) -> None:
        """Worker `pid` of round `number` has ended with code 0."""
        local = self._workers.local
        if self._current is None or number != local.round or not local.round:
            # Out of any round, it ends because it was told to, or has no part in the training.
            self._released = self._released or self._joining is None
            return
        local.ended.add(pid)
        self._workers.answer_again()
        if len(local.ended) == local_world_size and not local.succeeded:
            local.succeeded = True
            self._stream.tell(WorkersSucceeded(number))

    def _end_if_never_told(self, now: float) -> None:
        if self._stream.connected or self._released or self._dismissed:
            self._connected_at = now
        elif self._workers.local.succeeded:
            self._end_if_unreachable(
                now, UNKNOWN_END_SECONDS, "its workers have ended with code 0, but the coordinator"
            )
        elif self._waits_in_process:
            self._end_if_unreachable(
                now, self._join_seconds, "its workers wait for a round, but the coordinator"
            )
        else:
            self._connected_at = now

    @property
    def _holds(self) -> bool:
        """Tells whether workers have what a round trained, and bring it to the next one."""
        restarts = self._joining is not None and self._joining[1] is not None
        return not restarts and self._workers.local.holds

    @property
    def _waits_in_process(self) -> bool:
        """Tells whether workers wait for a round, or will, without torchrun's knowledge."""
        if self._joining is not None:
            return self._joining[1] is None
        return self._current is not None and self._current.round == 0

    def _end_if_unreachable(self, now: float, seconds: float, what: str) -> None:
        if now - self._connected_at > seconds:
            self._fatal = (
                f"{what}, which knows of the others, could not be reached for {seconds:.0f} s"
            )
            log.error("%s", self._fatal)
            self._exit(1)

    # ---- leaving

    def _leave(self) -> None:
        departure = self._departure
        if departure.under_way:
            return
        departure.begin(time.monotonic())
        self._stream.tell(Leave(departure.grace))
        self._loop.call_later(departure.unreachable_seconds, self._leave_if_unreachable)
        self._loop.call_later(departure.longest_seconds, self._exit, EXIT_TERMINATED)

    def _leave_if_unreachable(self) -> None:
        if not self._stream.connected:
            self._exit(EXIT_TERMINATED)

    def _exit(self, code: int) -> None:
        """The main thread's SIGTERM handler ends the process with `code`."""
        if self.exit_code is None:
            self.exit_code = code
        os.kill(os.getpid(), signal.SIGTERM)

    def _goodbye_seconds(self) -> float:
        """Return how long a coordinator that may just be started anew, or elected, is waited for to
        hear the goodbye: else those who stay would wait for this agent's return."""
        if not self._place.is_awaited or self._complete or self._job_failed:
            return 0.0
        return self._departure.goodbye_seconds(time.monotonic())

    async def _close(self, complete: bool, patience: float) -> None:
        self._closing = True
        local = self._workers.local
        local.over = True
        if (
            complete
            and self._current is not None
            and not (self._departure.under_way or local.succeeded)
        ):
            # Nobody held its workers' end back; see launcher.py.
            self._stream.tell(WorkersSucceeded(self._current.round))
        self._stream.tell(Goodbye())
        if patience > 0.0:
            heard = asyncio.ensure_future(self._goodbye_heard.wait())
            alone = asyncio.ensure_future(self._place.nobody_stays())
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({heard, alone}, timeout=patience, return_when=first)
            heard.cancel()
            alone.cancel()
        await self._stream.close()
