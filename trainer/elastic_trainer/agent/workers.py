"""Serves this node's workers: passes on what they tell, and what the coordinator tells them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elastic_trainer.agent.local_round import LocalRound, Worker
from elastic_trainer.agent.metrics import Reading
from elastic_trainer.agent.paces import furthest, with_paces
from elastic_trainer.agent.step_times import StepTimes
from elastic_trainer.data.division import Division
from elastic_trainer.failures.failure import Exit
from elastic_trainer.link import message as link
from elastic_trainer.link.figures import decoded
from elastic_trainer.link.listener import Accepted, Listener, read_line
from elastic_trainer.link.message import MessageError, decode_from_worker
from elastic_trainer.link.peer import descends, is_alive
from elastic_trainer.link.worker_link import SOCKET_VARIABLE
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.protocol.message import (
    AgentMessage,
    AskStanding,
    Committed,
    Digested,
    Doubted,
    Fenced,
    FenceReply,
    FenceStop,
    Finished,
    Linked,
    Member,
    NewestCommit,
    Progress,
    Reported,
    Round,
    RoundStands,
    Standing,
    Stopped,
    Tables,
    Transferring,
    WorkersFailed,
    newest_commits,
)
from elastic_trainer.store.persister import Persister, Saved
from elastic_trainer.store.slot import Label, SlotError, Slots

ENDING_SECONDS = 2.0
PACES_SECONDS = 1.0
"""So often it is told how fast each worker is by itself."""

log = logging.getLogger(__name__)


class WorkerServer:
    """Serves the workers of the current round; what they say goes to `tell` as messages.

    Args:
        memory: the folder whose slots they save to; None: there is none.
        tell: takes messages to the coordinator.
        failing: a worker ends in an exception, maybe because a peer vanished.
        idle: all workers are out of any round, and wait for the next.
        secondary_failure: a worker's exception followed from the end of its round.
        fatal: a worker says why none is to be started again.
        offer: returns the port of a store for the next round, as all workers stand at a fence; 0:
            they are not to wait for it.
    """

    def __init__(
        self,
        memory: Path | None,
        tell: Callable[[AgentMessage], None],
        failing: Callable[[], None],
        idle: Callable[[], None],
        secondary_failure: Callable[[Exit], None],
        fatal: Callable[[str], None],
        offer: Callable[[], int] = lambda: 0,
    ) -> None:
        self._listener = Listener(self._serve)
        self.address = self._listener.address
        self._memory = memory
        self.local = LocalRound()
        self._asked = AskStanding()
        """The last question, maybe of a round that the workers have no places in yet."""
        self.committed_step = -1
        self.commits: tuple[NewestCommit, ...] = ()
        """The newest in each storage, as far as this agent knows."""
        self.feeders: tuple[Member, ...] = ()
        """Whom this node's newcomers may follow: the port is that of a worker's feed."""
        self.last_run = 0
        """The greatest number of a run that the job's nodes are known to have begun."""
        self.step_times = StepTimes()
        self._paces_told = -math.inf
        self._tell = tell
        self._failing = failing
        self._idle = idle
        self._secondary_failure = secondary_failure
        self._fatal, self._offer = fatal, offer
        self.notes: dict[int, str] = {}
        """Why this agent killed a worker, by process id; of the round."""
        self.places: dict[int, tuple[int, int]] = {}
        """Round and rank that a process is in, which may not be those it was started for."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.persister = Persister(
            self._on_loop(self._sealed),
            self._on_loop(self._stored),
            self._on_loop(self._superseded),
            self._on_loop(self._saved_digest),
        )
        self._handlers: dict[type, Callable[[LocalRound, Worker, Any], None]] = {
            link.Stepped: self._on_stepped,
            link.Stopped: self._on_stopped,
            link.StepInProgress: self._on_step_in_progress,
            link.Fenced: self._on_fenced,
            link.Committed: self._on_committed,
            link.Reported: self._on_reported,
            link.Tables: self._on_tables,
            link.AskNewestCommit: self._on_ask_newest_commit,
            link.AskFeeders: self._on_ask_feeders,
            link.Saved: self._on_saved,
            link.Digested: self._on_digested,
            link.Settle: self._on_settle,
            link.Finished: self._on_finished,
            link.Failing: self._on_failing,
            link.Ending: self._on_ending,
            link.Stuck: self._on_stuck,
            link.Idle: self._on_idle,
            link.Joined: self._on_joined,
            link.SecondaryFailure: self._on_secondary_failure,
            link.Parked: self._on_parked,
            link.GivenUp: self._on_given_up,
            link.Whereabouts: self._on_whereabouts,
            link.Goodbye: self._on_goodbye,
        }

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._listener.start()

    # ---- from the coordinator

    def learn(self, commits: Iterable[NewestCommit], last_run: int = 0) -> None:
        """Note what was committed, and which run was begun, by this node or another."""
        self.commits = newest_commits((*self.commits, *commits))
        self.last_run = max(self.last_run, last_run)

    def begin(self, number: int) -> None:
        """Before the workers of a round are started."""
        self.local = LocalRound(number)
        self.notes.clear()
        self.places.clear()
        self.answer_again()

    def reassign(self, begun: Round, node_rank: int) -> None:
        """Hands the idle workers their places in the next round."""
        before = self.local
        # What a newcomer has followed is what its feeder had.
        followed = [] if before.round else [begun.rank_of(one.agent) for one in self.feeders]
        size = before.local_world_size
        fed_wrongly = any(rank // max(1, size) in followed for rank in begun.diverged)
        local = self.local = before.next(begun.round)
        for local_rank, worker in local.workers.items():
            worker.local = local
            worker.reply, worker.fenced, worker.idle = None, False, False
            worker.stopped, worker.failing, worker.doubt = False, False, 0
            worker.rank = node_rank * local.local_world_size + local_rank
            self.places[worker.pid] = (local.round, worker.rank)
            worker.tell(
                link.Place(
                    round=begun.round,
                    rank=worker.rank,
                    world=len(begun.members) * local.local_world_size,
                    address=begun.master_address,
                    port=begun.master_port,
                    contested=begun.contested,
                    last_run=self.last_run,
                    diverged=fed_wrongly or worker.rank in begun.diverged,
                    shares=Division(tuple(zip(begun.reduced, begun.shares, strict=True))).encode(),
                    stepless=begun.stepless,
                )
            )
        self.answer_again()

    def discard_diverged(self, begun: Round, node_rank: int, processes: int) -> None:
        """Before workers take their places in a round: forget what the one that saves for all of
        this node has saved, if that is another state than the others'."""
        if self._memory is None or node_rank * processes not in begun.diverged:
            return
        log.warning("what is in this node's memory is another state than the others': not used")
        for slot in Slots(self._memory, 0).slots:
            try:
                slot.discard()
            except SlotError as error:
                log.warning("%s", error)

    def dismiss_idle(self) -> None:
        """Tells idle workers that training is complete."""
        self._broadcast(link.NoNextRound())

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
        """Return the reading of the worker that is furthest."""
        noted = furthest([worker.progress.read() for worker in self.local.workers.values()])
        return Reading(noted.step, noted.when / 1e9, noted.samples, noted.stall / 1e9)

    def ask(self, fence: int, at_once: bool) -> None:
        self.local.fence, self.local.stop, self.local.commit = fence, -1, False
        for worker in self.local.workers.values():
            worker.reply, worker.stopped, worker.fenced = None, False, False
        self._broadcast(link.AskStep(fence, at_once))

    def stop(self, stop: FenceStop) -> None:
        if stop.fence != self.local.fence:  # told anew: where they stand was agreed before
            for worker in self.local.workers.values():
                worker.stopped, worker.fenced = False, False
        self.local.fence, self.local.stop, self.local.leaving = stop.fence, stop.step, stop.leaving
        self.local.commit = stop.commit
        told = stop.leaving, stop.commit, stop.memory_stays, stop.displaced
        self._broadcast(link.StopAt(stop.fence, stop.step, *told))

    def cancel(self, fence: int) -> None:
        if fence == self.local.fence:
            self.local.fence, self.local.stop, self.local.commit = 0, -1, False
            self._broadcast(link.StopCancelled())

    def end(self) -> None:
        """The round is over, or its leavers may go."""
        self.local.over = True
        self._broadcast(link.RoundOver(self.local.round))

    def stands(self, asked: AskStanding) -> None:
        """Tell that all workers of a round are there; nothing where one isn't, or ends: what comes
        of that is told."""
        local, self._asked = self.local, asked
        workers = local.workers.values()
        if asked.round != local.round or not asked.question or local.failed:
            return
        if all(one.stands for one in workers):
            self._tell(Standing(asked.round, asked.question))

    def answer_again(self) -> None:
        """Answer the last question, where workers were on their way or ending as it came."""
        self.stands(self._asked)

    def round_stands(self, told: RoundStands) -> None:
        """Tell those workers that asked before."""
        for worker in self.local.workers.values():
            if told.round == self.local.round and 0 < worker.doubt <= told.doubt:
                self._call_its_own(worker)

    def _call_its_own(self, worker: Worker) -> None:
        """Tell a worker that its error is its script's own, which may go on all the same."""
        worker.failing, worker.doubt = False, 0
        worker.tell(link.RoundStands())

    def progress(self) -> Progress | None:
        """The newest step, unless told before."""
        local = self.local
        pages = [worker.progress.read() for _, worker in sorted(local.workers.items())]
        newest = furthest(pages)
        if newest.step <= local.told_step:
            return None
        self.step_times.add(local.round, newest.step, newest.when / 1e9)
        local.step = local.told_step = newest.step
        age = (time.monotonic_ns() - newest.when) / 1e9
        long = self.step_times.long
        stall, waited = (sum(p.stall for p in pages), sum(p.input for p in pages))
        lost = (stall // 1_000_000, waited // 1_000_000)
        told = Progress(
            local.round, newest.step, max(0.0, age), newest.samples, long, *lost, newest.total
        )
        return with_paces(told, pages) if self._pace_due(local) else told

    def _pace_due(self, local: LocalRound) -> bool:
        now = time.monotonic()
        if now < self._paces_told + PACES_SECONDS or not local.complete:
            return False
        self._paces_told = now
        return True

    def transferring(self) -> Transferring | None:
        """The bytes of state its workers have moved in this round, if they are more than told."""
        local = self.local
        moved = sum(worker.progress.read().moved for worker in local.workers.values())
        if moved <= local.told_bytes:
            return None
        local.told_bytes = moved
        return Transferring(local.round, moved)

    # ---- from the workers

    async def _serve(self, accepted: Accepted) -> None:
        """Raises MessageError where a worker says what can't be understood: it isn't believed
        further, and counts as lost."""
        if accepted.hello.round != self.local.round:  # it has passed
            accepted.writer.write(link.encode(link.RoundOver(accepted.hello.round)))
            while await read_line(accepted.reader):
                continue  # it waits to be ended, and what it says counts for nothing
            return
        worker = self._accept(self.local, accepted)
        try:
            while line := await read_line(accepted.reader):
                message = decode_from_worker(line)
                handle = self._handlers.get(type(message))
                if handle is None:
                    raise MessageError(f"expected one Hello, found another: {line[:80]!r}")
                handle(worker.local, worker, message)
        finally:
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

    def _accept(self, local: LocalRound, accepted: Accepted) -> Worker:
        hello = accepted.hello
        self._make_way(local, accepted)
        worker = Worker(
            writer=accepted.writer,
            rank=hello.rank,
            local_rank=hello.local_rank,
            pid=accepted.pid,
            progress=accepted.progress,
            recovers=hello.recovers,
            local=local,
            error_file=hello.error_file,
        )
        local.workers[hello.local_rank] = worker
        self.places[worker.pid] = (local.round, worker.rank)
        local.local_world_size = hello.local_world_size
        if local.over:
            worker.tell(link.RoundOver(local.round))
        if local.linked and local.round:
            self._tell(Linked(local.round, local.pids, local.recovers))
        return worker

    def _make_way(self, local: LocalRound, accepted: Accepted) -> None:
        """Let one process be the worker of a local rank: the first, until it or its link has ended.

        A script's child process inherits the socket's address. Where it comes before its worker, it
        gives way: a worker is never a descendant of its own child.

        Raises:
            MessageError: another process is that worker, and lives.
        """
        known = local.workers.get(accepted.hello.local_rank)
        if known is None or known.pid == accepted.pid or known.writer.is_closing():
            return
        if not is_alive(known.pid):
            return
        words = "expected one process for local rank {} of round {}, which is {}, found {} too: {}"
        advice = (
            f"unset {SOCKET_VARIABLE} in the environment of a training script's child processes"
        )
        numbers = accepted.hello.local_rank, local.round
        if not descends(known.pid, accepted.pid):
            raise MessageError(words.format(*numbers, known.pid, accepted.pid, advice))
        reason = words.format(*numbers, accepted.pid, known.pid, advice)
        log.warning("refused a worker's child process: %s", reason)
        known.closing = True
        known.tell(link.Refused(reason))
        known.writer.close()

    # Each with the round that the worker is in.

    def _on_stepped(self, local: LocalRound, worker: Worker, _: link.Stepped) -> None:
        self._tell_progress()

    def _on_stopped(self, local: LocalRound, worker: Worker, _: link.Stopped) -> None:
        self._tell_progress()
        worker.stopped = True
        if all(one.stopped for one in local.workers.values()):
            self._tell(Stopped(local.fence))

    def _on_step_in_progress(
        self, local: LocalRound, worker: Worker, reply: link.StepInProgress
    ) -> None:
        if reply.fence == local.fence:
            worker.reply = reply.step
            replies = [one.reply for one in local.workers.values() if one.reply is not None]
            if len(replies) == len(local.workers):
                self._tell(FenceReply(local.fence, max(replies)))

    def _on_fenced(self, local: LocalRound, worker: Worker, fenced: link.Fenced) -> None:
        if fenced.fence != local.fence:
            return
        worker.fenced = True
        if local.fenced:
            self._tell_progress()
            self._tell(Fenced(local.fence, fenced.step, self._offer()))

    def _on_committed(self, local: LocalRound, worker: Worker, done: link.Committed) -> None:
        self._committed(done.step, done.round, done.place, done.size)

    def _on_reported(self, local: LocalRound, worker: Worker, said: link.Reported) -> None:
        try:
            figures = decoded(said.figures)
        except ValueError as error:
            raise MessageError(f"Reported.figures: {error}") from None
        self._tell(Reported(tuple(figures), tuple(figures.values())))

    def _on_tables(self, local: LocalRound, worker: Worker, said: link.Tables) -> None:
        try:
            worker.tables = table_load.decoded(said.loads)
        except ValueError as error:
            raise MessageError(f"Tables.loads: {error}") from None
        self._tell(self.told_tables)

    @property
    def told_tables(self) -> Tables:
        """Return what workers have told of embedding tables, for the coordinator."""
        return Tables(tuple(table_load.encoded(one) for one in self.tables().values()))

    def tables(self) -> dict[int, dict[str, TableLoad]]:
        """Return what workers hold of embedding tables, by local rank and name."""
        workers = sorted(self.local.workers.values(), key=lambda one: one.local_rank)
        return {one.local_rank: one.tables for one in workers if one.tables}

    def _on_ask_newest_commit(
        self, local: LocalRound, worker: Worker, asked: link.AskNewestCommit
    ) -> None:
        steps = (one.step for one in self.commits if one.place == asked.place)
        worker.tell(link.NewestCommit(max(steps, default=-1)))

    def _on_ask_feeders(self, local: LocalRound, worker: Worker, _: link.AskFeeders) -> None:
        worker.tell(link.Feeders(",".join(f"{one.address} {one.port}" for one in self.feeders)))

    def _on_saved(self, local: LocalRound, worker: Worker, saved: link.Saved) -> None:
        if self._memory is None:
            raise MessageError("Saved: expected none, as this agent has no memory folder")
        if not saved.slot or saved.slot in (".", "..") or set(saved.slot) & {"/", "\0"}:
            raise MessageError(
                f"Saved.slot: expected a file's name in {self._memory}, found {saved.slot!r}"
            )
        local.savers = saved.savers
        self.persister.saved(
            Saved(
                path=str(self._memory / saved.slot),
                step=saved.step,
                local_rank=worker.local_rank,
                round=saved.round,
                folder=saved.folder,
                keep=saved.keep,
                run=saved.run,
                claim=saved.claim,
                retry_seconds=saved.retry_seconds if saved.retry_seconds >= 0 else None,
            )
        )

    def _on_settle(self, local: LocalRound, worker: Worker, asked: link.Settle) -> None:
        answer = self._on_loop(lambda error: worker.tell(link.Settled(error)))
        self.persister.flush(asked.storage, answer)

    def _on_finished(self, local: LocalRound, worker: Worker, _: link.Finished) -> None:
        worker.closing = True
        self._tell_progress()
        if not local.finished:
            local.finished = True
            self._tell(Finished(local.round))

    def _on_failing(self, local: LocalRound, worker: Worker, failing: link.Failing) -> None:
        if failing.asks and not local.round:
            self._call_its_own(worker)  # it waits for its first round, and has no peers
            return
        worker.failing, worker.doubt = True, 0
        if failing.asks:
            local.doubts += 1
            worker.doubt = local.doubts
            self._tell(Doubted(local.round, worker.doubt))
        self._failing()

    def _on_ending(self, local: LocalRound, worker: Worker, _: link.Ending) -> None:
        worker.ending = True

    def _on_stuck(self, local: LocalRound, worker: Worker, stuck: link.Stuck) -> None:
        if stuck.round == local.round:
            worker.stuck = True

    def _on_idle(self, local: LocalRound, worker: Worker, idle: link.Idle) -> None:
        if idle.round == local.round:
            worker.idle = True
            if local.idle:
                self._idle()

    def _on_joined(self, local: LocalRound, worker: Worker, joined: link.Joined) -> None:
        if joined.round == local.round:
            local.joined.add(worker.local_rank)
            local.feed_port = max(local.feed_port, joined.feed_port)
            local.sharded = joined.sharded
            self.learn((), joined.run)
            if local.linked and len(local.joined) == len(local.workers):
                told = local.pids, local.recovers, self.last_run, local.feed_port, local.sharded
                self._tell(Linked(local.round, *told))

    def _on_secondary_failure(
        self, local: LocalRound, worker: Worker, _: link.SecondaryFailure
    ) -> None:
        self._secondary_failure(
            Exit(
                round=local.round,
                rank=worker.rank,
                local_rank=worker.local_rank,
                pid=worker.pid,
                code=0,
                time=time.time(),
                error_file=worker.error_file,
            )
        )

    def _on_parked(self, local: LocalRound, worker: Worker, _: link.Parked) -> None:
        worker.parked = True

    def _on_given_up(self, local: LocalRound, worker: Worker, given_up: link.GivenUp) -> None:
        self._fatal(given_up.reason)

    def _on_whereabouts(self, local: LocalRound, worker: Worker, told: link.Whereabouts) -> None:
        worker.whereabouts = told

    def _on_goodbye(self, local: LocalRound, worker: Worker, _: link.Goodbye) -> None:
        worker.closing = True

    def _committed(self, step: int, round_: int, place: str, size: int) -> None:
        self.committed_step = max(self.committed_step, step)
        if place:
            self.learn((NewestCommit(place, step),))
        self._tell(Committed(round_, step, place=place, size=size))

    def _stored(self, saved: Saved, label: Label) -> None:
        self._committed(saved.step, label.round, label.place, label.payload)

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

    def _saved_digest(self, saved: Saved, label: Label, digest: str) -> None:
        if saved.round == self.local.round:
            self._digested(self.local, saved.local_rank, saved.step, digest)

    def _on_digested(self, local: LocalRound, worker: Worker, told: link.Digested) -> None:
        if told.round == local.round:
            self._digested(local, worker.local_rank, told.step, told.digest)

    def _digested(self, local: LocalRound, local_rank: int, step: int, digest: str) -> None:
        if digests := local.digested(step, local_rank, digest):
            self._tell(Digested(local.round, step, digests))

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

    def _broadcast(self, message: link.FromAgent) -> None:
        for worker in self.local.workers.values():
            worker.tell(message)
