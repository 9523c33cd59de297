"""Keeps a job's ledger of GPU time: what each event of the coordinator means for it; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.goodput import Book, Ledger, Use
from elastic_trainer.coordinator.inheritance import Arrival
from elastic_trainer.coordinator.model import Event, Phase, Received, State, Tick
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import (
    Heartbeat,
    Hello,
    Load,
    Progress,
    Reported,
    Tables,
    Transferring,
)
from elastic_trainer.protocol.pace import silence

SETTLE_MILLISECONDS = 1000
"""So often steps are entered: the time of several is known together then."""
SETTLE_MILLISECONDS_AN_AGENT = 1
"""Likewise, where that is more: it takes some microseconds an agent."""


def booked(before: State, after: State, event: Event, now: float) -> State:
    """Return the state after an event with its ledger brought up to it.

    An agent's time is counted when its use changes: that follows from what `_facts` has, which is
    the same for all, and from the agent itself, of whom only its own messages tell.
    """
    moment = int(now * 1000)
    said = event.message if isinstance(event, Received) else None
    if isinstance(said, Heartbeat | Transferring | Load | Reported | Tables):
        return after
    changed = _facts(before) != _facts(after)
    if not changed and isinstance(said, Progress):
        return after
    accounts = after.ledger.accounts
    fewer = len(after.agents) < len(before.agents)
    gone = accounts.keys() - after.agents.keys() if fewer else frozenset()
    if not (changed or gone) and isinstance(event, Tick):
        wait = max(SETTLE_MILLISECONDS, SETTLE_MILLISECONDS_AN_AGENT * len(accounts))
        if moment - after.ledger.settled < wait:
            return after
        book = _settled(before, accounts)
        return replace(after, ledger=replace(book.closed(), settled=moment))
    concerned = _concerned(after, event, everybody=changed)
    if not (concerned or gone):
        return after
    book = _settled(before, accounts if changed else {*concerned, *gone})
    arrival = _arrival(said, moment) if isinstance(said, Hello) else None
    if arrival is not None:
        book = Book(book.closed().inherit(arrival, _silence(after)))
    closing = _closing(before, after)
    if _number(before) != _number(after):
        book.close(moment, closing)
    for name in gone:
        book.leave(name, moment, closing)
    if isinstance(said, Hello) and arrival is not None and said.agent in after.agents:
        use = use_of(after, after.agents[said.agent])
        if use is not None:
            use = Use.REGROUPING if said.goodput.id else Use.STARTING
        book.enter(said.agent, arrival, use)
    if not after.ledger.begun and after.phase not in (Phase.FORMING, Phase.ADOPTING):
        book.begin()
    for name in concerned:
        if name in book:
            book.become(name, use_of(after, after.agents[name]), moment, closing)
    first = _first_step(after)
    if isinstance(said, Progress) and first is not None and first != _first_step(before):
        book.roll_back(first)
    return replace(after, ledger=book.closed())


def _arrival(said: Hello, moment: int) -> Arrival:
    heard = moment - max(0, said.uncounted_milliseconds)
    born = min(heard, moment - said.alive_milliseconds)
    keepers = tuple((one.name, moment - one.ago) for one in said.keepers)
    return Arrival(moment, said.processes, said.goodput, heard, born, keepers)


def _silence(state: State) -> int:
    """Return for how long (ms) a coordinator counts an agent that it hears no more."""
    return int(silence(state.settings.lost_after, state.pace.slowest) * 1000)


def ledger_as_of(state: State, now: float) -> Ledger:
    """Return the ledger of GPU time with everybody counted up to `now`."""
    book = _settled(state, state.ledger.accounts)
    book.charge(int(now * 1000))
    return book.closed()


def _settled(state: State, names: Iterable[str]) -> Book:
    """Return the ledger's book with the steps that some agents have told of."""
    book, number = Book(state.ledger), _number(state)
    for name in names if _makes_steps(state) else ():
        agent = state.agents.get(name)
        told = agent.reached if agent is not None else None
        if told is not None and told.round == number and name in book:
            book.stepped(name, told.step, int(told.time * 1000), told.stall, told.waited)
    return book


def _concerned(after: State, event: Event, *, everybody: bool) -> Collection[str]:
    """Return the agents whose use may be another one."""
    if everybody:
        return after.agents
    if isinstance(event, Received):
        agent = after.agents.get(event.agent)
        account = after.ledger.accounts.get(event.agent)
        if agent is None:
            return ()
        same = account is not None and account.use is use_of(after, agent)
        return () if same and not isinstance(event.message, Hello) else (event.agent,)
    return ()


def use_of(state: State, agent: Agent) -> Use | None:
    """Return what an agent's time is used for; None: for the step in progress."""
    if agent.attached and state.round is not None:
        if state.phase in (Phase.COMPLETING, Phase.FINISHED):
            return Use.TRAINING
        if _makes_steps(state):
            return None
        return Use.STARTING if agent.agent in state.newcomers else Use.REGROUPING
    if agent.node in state.excluded or state.phase is Phase.FAILED:
        return Use.WAITING
    if state.checking:
        return Use.NODE_CHECK
    if state.phase is Phase.FORMING:
        return Use.STARTING if _enough(state) else Use.WAITING
    if state.phase is Phase.FINISHED:
        return Use.TRAINING
    if agent.leaving or agent.agent in state.last_members:
        return Use.REGROUPING
    full = state.round is not None and len(state.round.members) >= state.settings.max_nodes
    kept_waiting = agent.live and state.larger_since is not None and state.phase is Phase.RUNNING
    return Use.WAITING if full or kept_waiting else Use.STARTING


def _closing(before: State, after: State) -> Use:
    """Return what the time since the last step of a round that is over was."""
    if after.hangs_total > before.hangs_total:
        return Use.HANG
    if after.phase in (Phase.COMPLETING, Phase.FINISHED):
        return Use.TRAINING
    reached = before.fence is not None and before.fence.reached
    return Use.REGROUPING if reached else Use.REDONE


def _facts(state: State) -> tuple[object, ...]:
    """Return all that decides on the uses of more than one agent."""
    return (
        state.phase,
        _number(state),
        _makes_steps(state),
        state.checking,
        _enough(state),
        len(state.excluded),
        state.settings.max_nodes,
    )


def _enough(state: State) -> bool:
    return state.settings.size(len(state.agents)) > 0


def _number(state: State) -> int:
    return state.round.round if state.round is not None else -1


def _first_step(state: State) -> int | None:
    return state.rounds[-1].first_step if state.rounds else None


def _makes_steps(state: State) -> bool:
    if state.round is None or not state.rounds:
        return False
    newest = state.rounds[-1]
    return newest.first_step is not None or newest.adopted
