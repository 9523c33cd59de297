"""The worker's end of the unix socket between a training process and its agent.

Training processes hold no gRPC: one line a message (elastic_trainer.link.message), read by one
daemon thread. Progress is not sent at all: a step's number and time are stores into a mapped
page (elastic_trainer.link.progress) that the agent reads when it wants to know. Where a rank stops
at a fence is RankFence's (elastic_trainer.link.rank_fence).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from elastic_trainer.link import error_file
from elastic_trainer.link.figures import Figures, encoded
from elastic_trainer.link.message import (
    LINE_BYTES,
    AskFeeders,
    AskNewestCommit,
    AskStep,
    AskWhereabouts,
    Committed,
    Digested,
    Ending,
    Failing,
    Feeders,
    Fenced,
    Finished,
    FromWorker,
    GivenUp,
    Goodbye,
    Hello,
    Idle,
    Joined,
    MessageError,
    NewestCommit,
    NoNextRound,
    Parked,
    Place,
    Refused,
    Reported,
    RoundOver,
    RoundStands,
    Saved,
    SecondaryFailure,
    Settle,
    Settled,
    Stepped,
    StopAt,
    StopCancelled,
    Stopped,
    Stuck,
    Tables,
    decode_from_agent,
    encode,
)
from elastic_trainer.link.order import Order
from elastic_trainer.link.output import complain, flush
from elastic_trainer.link.progress import ProgressPage
from elastic_trainer.link.rank_fence import RankFence
from elastic_trainer.link.stack import offer_stack
from elastic_trainer.link.whereabouts import whereabouts
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.table_load import TableLoad

SOCKET_VARIABLE = "VOLCANO_ELASTIC_AGENT_SOCKET"
"""Address of the agent's socket; a leading @ means Linux's abstract namespace."""

ROUND_VARIABLE = "VOLCANO_ELASTIC_ROUND"
"""The round a worker was started in."""

CONNECT_TIMEOUT_SECONDS = 10.0
MOST_CHARACTERS = 4000
"""Most characters of a reason to give up."""
BLAME_SECONDS = 1.0
"""How long a failing worker waits to hear that another one failed first."""


_Answer = TypeVar("_Answer", Settled, NewestCommit, Feeders)
_ANSWERS = (Settled, NewestCommit, Feeders, RoundStands)


class LinkError(RuntimeError):
    """The agent's socket was named but could not be used."""


class WorkerLink:
    """A worker's link to its agent. Methods are for the main thread.

    Checkpointer and ElasticLoop have one; a loop written from scratch makes its own:

        link = WorkerLink.from_environment()  # or WorkerLink(None): a world that never changes
        for step in range(steps):
            ...
            order = link.boundary(step)  # on every rank, after the step was applied
            if order is not Order.GO:
                save(step)
                link.fenced(step, order)  # doesn't return: the next round's process goes on
        link.finished()

    A worker that gives `broken` recovers in process: a round that is over doesn't end it. `broken`
    is called in the reading thread, to free the main thread from the round's collectives; the main
    thread then asks for its next place.
    """

    def __init__(
        self,
        connection: socket.socket | None,
        started_round: int = 0,
        broken: Callable[[], None] | None = None,
    ) -> None:
        self.round = started_round
        """0 without an agent, and before a newcomer's first round."""
        self.told: StopAt | None = None
        """The stop that was told last in this round."""
        self._broken = broken
        self._connection = connection
        self._pid = os.getpid()
        self._step = -1
        self._reached = -1
        """The last step applied in this process."""
        self._pending = connection is not None  # so that the first boundary is told at once
        self._first_told = False
        self._fence = RankFence()
        self._over_round = -1
        self._waiting = False
        """The main thread is out of any round, and asks for the next."""
        self._place: Place | None = None
        self.last_run = 0
        """The greatest number of a run that the job's nodes knew of when this process was given its
        place; 0: none."""
        self._home = False
        self._finished = False
        """Out of the training loop; the script's tail may still fail."""
        self._closing = False
        self._failing = False
        self._changed = threading.Condition()
        self._answers: dict[type, Any] = {}
        """The agent's answers by their types: the newest, to questions of the main thread."""
        self._sending = threading.Lock()
        self._progress = ProgressPage.private()
        self._figures = Figures()
        self._handlers: dict[type, Callable[[Any], FromWorker | None]] = {
            AskStep: self._on_ask_step,
            StopAt: self._on_stop_at,
            StopCancelled: self._on_stop_cancelled,
            RoundOver: self._on_round_over,
            Place: self._on_place,
            **dict.fromkeys(_ANSWERS, self._on_answer),
            AskWhereabouts: lambda _: whereabouts(self._step),
            NoNextRound: self._on_no_next_round,
            Refused: lambda said: complain(f"the agent refuses this worker: {said.reason}"),
        }

    @property
    def agent(self) -> bool:
        """True if there is an agent at all."""
        return self._connection is not None

    @property
    def contested(self) -> bool:
        """Return whether others may have gone on from the state that is live in this round."""
        return self._place is not None and self._place.contested

    @property
    def diverged(self) -> bool:
        """Return whether this process's state isn't to be gone on from in this round."""
        return self._place is not None and self._place.diverged

    @property
    def stepless(self) -> bool:
        """Return whether this round is for its fence alone: nobody makes a step before."""
        return self._place is not None and self._place.stepless

    @property
    def shares(self) -> str:
        """Return which of the round's ranks take fewer samples, see data/division.py; empty where
        none does, or where this process was started in this round."""
        return self._place.shares if self._place is not None else ""

    @property
    def over(self) -> bool:
        """True once the round has ended."""
        return self._over_round >= self.round

    @classmethod
    def from_environment(cls, broken: Callable[[], None] | None = None) -> WorkerLink:
        """The link to the agent that started this process; says GO for ever if there is none.

        Raises LinkError if an agent is named and doesn't answer.
        """
        address = os.environ.get(SOCKET_VARIABLE, "")
        if not address:
            return cls(None)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_TIMEOUT_SECONDS)
        try:
            connection.connect("\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            connection.close()
            raise LinkError(
                f"{SOCKET_VARIABLE} names the agent's socket {address!r}, which doesn't answer "
                f"({error}); unset it to run without an agent"
            ) from error
        connection.settimeout(None)
        link = cls(connection, int(os.environ.get(ROUND_VARIABLE, "0")), broken)
        link._open()
        return link

    def _open(self) -> None:
        connection = self._connection
        assert connection is not None
        self._progress = page = ProgressPage.create()
        hello = Hello(
            round=self.round,
            rank=int(os.environ.get("RANK", "0")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            recovers=self._broken is not None,
            error_file=os.environ.get(error_file.VARIABLE, ""),
        )
        with contextlib.suppress(OSError):  # a lost agent is the reading thread's business
            socket.send_fds(connection, [encode(hello)], [page.fileno()])
        page.sent()
        threading.Thread(target=self._read, name="agent-link", daemon=True).start()
        offer_stack()
        atexit.register(self._goodbye)
        os.register_at_fork(after_in_child=self._forget)
        self._previous_excepthook = sys.excepthook
        sys.excepthook = self._excepthook

    # ---- the loop's side

    def boundary(self, step: int, samples: int = 0, waited: float = 0.0) -> Order:
        """To be called by every rank after step `step` was applied, which made it `samples` that
        all ranks have consumed so far (0: not known), and waited so many seconds for data.

        FENCE or LEAVE come on every rank of a round at the same step.
        """
        self._step = self._reached = step
        self._progress.waited(waited)
        self._progress.stepped(step, samples)
        if not self._pending:
            return Order.GO
        return self._boundary_pending(step)

    def _boundary_pending(self, step: int) -> Order:
        if not self._first_told:
            self._first_told = True
            self._send(Stepped())
        with self._changed:
            self._changed.wait_for(lambda: self._fence.may_decide(step) or self.over)
            over = self.over
            if not over:
                if not self._fence.asked:
                    self._pending = False
                    return Order.GO
                if self._fence.passes(step):
                    return Order.GO
        if over:
            if self._broken is not None:
                return Order.ABORTED
            self._park()
        if self._fence.stand():
            self._send(Stopped())
        return Order.LEAVE if self.told is not None and self.told.leaving else Order.FENCE

    def await_fence(self, step: int) -> Order:
        """In place of `boundary`, in a round in which no step is made: wait for its fence.

        Args:
            step: the last that was applied before.
        """
        self._first_told = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._fence.stop_known or self.over)
            order = self._boundary_pending(step)
            if order is not Order.GO:
                return order

    def committed(self, step: int, round_: int = 0, place: str = "", size: int = 0) -> None:
        """A commit for `step` is durable; rank 0 says it.

        Args:
            round_: that made it, of a commit found in storage: later rounds must have higher
                numbers, also where nobody is left to remember it.
            place: digest of the storage's path or URL, for `newest_commit`; empty: in none.
            size: bytes of its files; 0: not known.
        """
        self._send(Committed(round_ or self.round, step, place, size))

    def newest_commit(self, place: str) -> int:
        """The newest step that the job is known to have committed to a storage; -1 if none is. Not
        all that was committed is known; what a round tells is what was known when it began.

        Raises LinkError if the round is over before.
        """
        if self._connection is None:
            return -1
        told = self._ask(AskNewestCommit(place), NewestCommit, lambda: self.over)
        if told is None:
            raise LinkError("the round is over; the next one's agents know of the commits")
        return told.step

    def feeders(self) -> list[tuple[str, int]]:
        """Return hosts and ports where a newcomer may follow the state of those that train, as was
        known when this process was started; for a process without a round.

        Raises LinkError if it is to have none.
        """
        if self._connection is None:
            return []
        told = self._ask(AskFeeders(), Feeders, lambda: self._home)
        if told is None:
            raise LinkError("training is complete")
        pairs = (one.rpartition(" ") for one in told.addresses.split(",") if one)
        return [(host, int(port)) for host, _, port in pairs]

    def stalled(self, seconds: float) -> None:
        """A commit has kept this process from training for so long; for its metrics."""
        self._progress.stalled(seconds)

    def worked(self, compute: int, network: int, batches: int, samples: int) -> None:
        """The step in progress, of so many batches and samples of this process, took it so many
        nanoseconds of work by itself, and so many of waiting for the gradients of others."""
        self._progress.worked(compute, network, batches, samples)

    def commits(self) -> None:
        """A commit keeps this process from training, until `stalled` says how long it did."""
        self._progress.commits()

    def plans(self, samples: int) -> None:
        """Training will have consumed so many samples in the end, over all epochs and ranks; 0: how
        many isn't known."""
        self._progress.plans(samples)

    def report(self, **figures: float) -> None:
        """Report figures of training by name, such as `loss=0.31`, for the job's status. Those of
        rank 0 count; they are sent at most once a second.

        Raises:
            ValueError: more than 16 names, or one of more than 63 characters.
        """
        self._tell_figures(self._figures.report(figures, time.monotonic()))

    def report_log(self, log: Mapping[str, Any]) -> None:
        """Report the numbers of what a library logs, such as Trainer's `logs`, as far as there is
        room: what is no number is left out, and so are names beyond the 16th or too long ones."""
        self.report(**self._figures.fitting(log))

    def holds(self, loads: Mapping[str, TableLoad]) -> None:
        """Report what this process holds of embedding tables, by name, for metrics."""
        self._send(Tables(table_load.encoded(loads)))

    def transferred(self, count: int) -> None:
        """So many bytes of state were sent, received or read: who waits for it knows that this
        process is on its way into the round."""
        self._progress.transferred(count)

    def give_up(self, reason: str) -> None:
        """Before an error that another try would only repeat: no worker is started again."""
        self._send(GivenUp(reason[:MOST_CHARACTERS]))

    def saved(
        self,
        path: str,
        step: int,
        savers: int,
        folder: str = "",
        keep: int = 3,
        run: int = 0,
        claim: str = "",
        retry_seconds: float | None = None,
    ) -> None:
        """The slot at `path`, in the agent's memory folder, holds a new state for it to verify.

        Args:
            savers: how many of this node's workers save.
            folder: the storage that the agent is to bring it to; empty: none.
            keep: commits to keep there.
            run: in which it was saved, or restored.
            claim: the token of this process' claim to the storage for that run.
            retry_seconds: how long to try a storage that doesn't answer again; None: the default.
        """
        self._send(
            Saved(
                round=self.round,
                slot=os.path.basename(path),
                step=step,
                savers=savers,
                folder=folder,
                keep=keep,
                run=run,
                claim=claim,
                retry_seconds=-1.0 if retry_seconds is None else float(retry_seconds),
            )
        )

    def digested(self, step: int, digest: str) -> None:
        """Tell the digest, after that step, of the state that all ranks have alike."""
        self._send(Digested(self.round, step, digest))

    def settle(self, *, storage: bool) -> str:
        """Waits until the agent has verified what this node saved, or brought it to storage too;
        why that failed, or nothing.

        Raises LinkError if the round is over before.
        """
        if self._connection is None:
            return ""
        told = self._ask(Settle(storage), Settled, lambda: self.over)
        if told is None:
            raise LinkError("the round is over; the next one goes on from what was saved")
        return told.error

    def _ask(
        self, question: FromWorker, kind: type[_Answer], in_vain: Callable[[], bool]
    ) -> _Answer | None:
        """Return the agent's answer; None where none comes.

        Args:
            kind: of the answer.
            in_vain: tells whether it is waited for in vain.
        """
        with self._changed:
            self._answers.pop(kind, None)
            self._send(question)
            self._changed.wait_for(lambda: kind in self._answers or in_vain())
            return self._answers.get(kind)

    def fenced(self, step: int, order: Order) -> NoReturn:
        """After the commit: waits to be restarted (FENCE), or exits 0 (LEAVE).

        A leaver stays until every rank has come here, as rank 0's process serves the others' store.
        """
        with self._changed:
            self._fence.park(step)
            fence = self.told.fence if self.told is not None else 0
        self._send(Fenced(fence, step))
        if order is not Order.LEAVE:
            self._park()
        with self._changed:
            self._changed.wait_for(lambda: self.over)
        self.leave()

    def agreed_stop(self, gather: Callable[[StopAt], list[StopAt]]) -> list[StopAt]:
        """Return by rank the stop that was told last, once all have heard of the same one: some may
        hear before others do that somebody else begins to leave. On all ranks, at a fence.

        Args:
            gather: returns, on all ranks, what each gave it.
        """
        while True:
            told = self.told
            assert told is not None
            said = gather(told)
            if len({one.fence for one in said}) == 1:
                return said

    def wait_at_fence(self, step: int, fence: int) -> bool:
        """Wait until all workers stand at the fence, or the round is over for another reason.
        Return False where the stop is told anew instead, as somebody else begins to leave: ranks
        are to agree on that one, too, and commit what it asks for.

        Args:
            fence: the number of the stop that all ranks have heard of.
        """
        self._send(Fenced(fence, step))
        with self._changed:
            while not self.over:
                if self.told is not None and self.told.fence != fence:
                    return False
                self._changed.wait()
        return True

    def leave(self) -> NoReturn:
        """Exit 0, as the round is over, and this worker was told to leave there."""
        self._closing = True
        self._send(Goodbye())
        flush()
        os._exit(0)

    def peer_lost(self, patience: float = BLAME_SECONDS, *, asks: bool = False) -> bool:
        """Asked after an error: whether the round is over, so that a vanished peer was its cause.

        Waits up to `patience` seconds for the word of it.

        Args:
            asks: be told that the round stands, too, which ends the wait.
        """
        if self._connection is None or self._waiting:  # there are no peers out of any round
            return False
        deadline = time.monotonic() + patience
        with self._changed:
            self._answers.pop(RoundStands, None)
            self._send(Failing(asks))
            while not (self.over or RoundStands in self._answers):
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            return self.over

    def stuck(self) -> None:
        """The round is over, and the main thread waits for what will never come: this process is to
        be started anew."""
        self._send(Stuck(self.round))

    def next_place(self, meanwhile: Callable[[], bool] | None = None) -> Place:
        """Out of any round, with no collective under way: waits for the next round.

        Args:
            meanwhile: called again and again until it returns False.

        Ends the process with 0 where training was completed meanwhile.
        """
        self._progress.clear()
        with self._changed:
            self._over_round = max(self._over_round, self.round)
            self._step = -1
            self._forget_fence()
            self._first_told = False
            self._pending = self._waiting = True
            self._place = None
            self._send(Idle(self.round))
            while self._place is None and not self._home:
                if meanwhile is None:
                    self._changed.wait()
                    continue
                self._changed.release()
                try:
                    goes_on = meanwhile()
                finally:
                    self._changed.acquire()
                meanwhile = meanwhile if goes_on else None
            self._waiting = False
            place = self._place
            if place is not None:
                self.round = place.round
                return place
            self._closing = True
        self._send(Goodbye())
        sys.exit(0)

    def joined(self, run: int, feed_port: int = 0, *, sharded: bool = False) -> None:
        """This process is in its round: connected, with the common state, and in that run.

        Args:
            feed_port: where newcomers may follow its state; 0: nowhere.
            sharded: it has a part of that state which others may not have.
        """
        self._send(Joined(self.round, run, feed_port, sharded))

    def finished(self) -> None:
        """The training loop is over: no step will follow, and no order is heeded any more.

        Training is complete once the processes of all workers have ended with code 0. Who fails
        before is started again, and all others with it, to run the script's tail anew.
        """
        self._finished = True
        self._tell_figures(self._figures.take())
        self._send(Finished())

    # ---- the agent's side

    def _read(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            with contextlib.suppress(OSError), connection.makefile("rb") as lines:
                while line := lines.readline(LINE_BYTES):
                    self._hear(line)
        except Exception as error:  # unheard, an agent's words would be waited for without end
            complain(f"the link to the agent failed: {error!r}")
        if not self._closing and os.getpid() == self._pid:
            # The agent is gone, so nobody would stop or restart this process: don't outlive it.
            os._exit(1)

    def _hear(self, line: bytes) -> None:
        try:
            message = decode_from_agent(line)
        except MessageError as error:
            complain(f"ignored a message of the agent: {error}")
            return
        with self._changed:
            in_round = not self._waiting and not self.over
            answer = self._handlers[type(message)](message)
            broke = in_round and self.over
            self._changed.notify_all()
        if answer is not None:
            self._send(answer)
        if broke and self._broken is not None:
            self._broken()

    # Each with the lock held; returns what is to be answered.

    def _on_ask_step(self, asked: AskStep) -> FromWorker:
        self._pending = True  # before reading the step: a later boundary waits for the lock
        return self._fence.ask(asked, self._step)

    def _on_stop_at(self, stop: StopAt) -> FromWorker | None:
        self.told, self._pending = stop, True
        return self._fence.stop_at(stop)

    def _on_stop_cancelled(self, _: StopCancelled) -> None:
        self._fence.cancel()

    def _on_round_over(self, ended: RoundOver) -> FromWorker | None:
        self._over_round = max(self._over_round, ended.round)
        self._pending = True
        if self._waiting and ended.round > self.round:
            self._place = None  # it overtook the round that it ends
            return Idle(ended.round)
        return None

    def _on_place(self, place: Place) -> None:
        self._place = place
        self.last_run = place.last_run
        self._forget_fence()  # what came since the last round was meant for that one

    def _forget_fence(self) -> None:
        self._fence.cancel()
        self.told = None

    def _on_answer(self, answer: Settled | NewestCommit | Feeders | RoundStands) -> None:
        self._answers[type(answer)] = answer

    def _on_no_next_round(self, _: NoNextRound) -> None:
        self._home = True

    # ---- ends

    def _park(self) -> NoReturn:
        """Wait for the agent's SIGTERM; a restart that the agent makes itself isn't charged."""
        flush()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._send(Parked())  # the script's handler may have taken the signal before
        while True:
            time.sleep(3600)

    def _excepthook(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """A worker that fails because a peer vanished waits to be restarted instead of exiting 1.

        torchrun charges the latter to max_restarts, on every survivor.
        """
        self._previous_excepthook(kind, error, trace)
        if self._connection is None or os.getpid() != self._pid or self._closing:
            return
        self._failing = True
        if issubclass(kind, KeyboardInterrupt):
            return
        error_file.write(kind, error, trace)
        # One that recovers in process has asked before, and was told that this error is its own.
        if (self._broken is None or self._finished) and self.peer_lost():
            self._send(SecondaryFailure())
            self._park()
        error_file.own(kind, error, trace, self._reached)

    def _goodbye(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._failing:
            self._send(Ending())
        else:
            self._closing = True
            self._tell_figures(self._figures.take())
            self._send(Goodbye())

    def _forget(self) -> None:
        """In a forked child (a data loader's): the agent must see the parent's death, not ours."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._progress = ProgressPage.private()
            self._pending = False

    def _tell_figures(self, figures: Mapping[str, str]) -> None:
        place = self._place
        rank = int(os.environ.get("RANK", "0")) if place is None else place.rank
        if figures and rank == 0:
            self._send(Reported(encoded(figures)))

    def _send(self, message: FromWorker) -> None:
        connection = self._connection
        if connection is None:
            return
        # A lost agent is the reading thread's business.
        with contextlib.suppress(OSError), self._sending:
            connection.sendall(encode(message))
