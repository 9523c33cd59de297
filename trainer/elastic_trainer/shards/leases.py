"""Hands out ranges of samples: `step(state, event, now) -> (state, answer)`, pure; one state a data
set.

Asynchronous workers fetch leases of the stream that `Shards` describes. What counts as consumed is
not theirs to say: a sample is consumed when it is in the model, so the model's *owner* (the process
that saves it) keeps a `Ledger` of it, saves both in one commit, and tells it here. This state only
hands out what is in nobody's hands, and can always be made anew from what owner and workers tell.

    todo ── fetch ──► doing ── the owner tells that it has it ──► consumed
    doing ── its worker is lost ──► todo
    doing, consumed ── the model is rolled back: an owner opens with another life ──► todo

A *life* of a model ends where its state is loaded from a commit. Leases belong to a life, and the
owner's ledger takes no lease of another, nor one twice: whatever is forgotten or handed out twice
here costs time and never exactness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from elastic_trainer.shards.ranges import NOTHING, Ranges
from elastic_trainer.shards.shards import Shards

RETELL_SECONDS = 1.0
"""After a restart, how long workers have to say which leases they hold before others get them."""


@dataclass(frozen=True)
class State:
    life: str = ""
    """Life of the model; empty until its owner came."""
    owner: str = ""
    """Empty while it is away: nobody could take what is fetched meanwhile."""
    shards: Shards = field(default_factory=lambda: Shards(1, 1, 1))
    consumed: Ranges = NOTHING
    """In the live model, as its owner told last."""
    committed: Ranges = NOTHING
    """In the newest commit."""
    committed_step: int = -1
    todo: Ranges = NOTHING
    doing: Mapping[str, Ranges] = field(default_factory=dict)
    told: Mapping[str, tuple[str, Ranges]] = field(default_factory=dict)
    """Leases that workers say they hold, with their life, while no owner has come."""
    hold_until: float = 0.0

    @property
    def complete(self) -> bool:
        return bool(self.life) and not self.shards.all - self.committed


@dataclass(frozen=True)
class Opened:
    """A worker is here, and holds leases of `life` from before."""

    client: str
    life: str = ""
    held: Ranges = NOTHING


@dataclass(frozen=True)
class Owned:
    """The model's owner is here; also said again at each change of its life."""

    client: str
    shards: Shards
    life: str
    consumed: Ranges
    step: int = -1
    """Step of the newest commit."""
    committed: Ranges = NOTHING
    held: Ranges = NOTHING
    """Its own leases of this life."""
    again: bool = False
    """It said so before, in this life: to a coordinator that may have been another."""


@dataclass(frozen=True)
class Told:
    """By the owner: the live model has `consumed`; at a commit, also what was saved."""

    client: str
    life: str
    consumed: Ranges
    step: int = -1
    committed: bool = False


@dataclass(frozen=True)
class Fetch:
    client: str
    shards: Shards
    """Shards that its client has too: positions must mean the same to everybody."""
    count: int


@dataclass(frozen=True)
class Lost:
    client: str


Event = Opened | Owned | Told | Fetch | Lost


@dataclass(frozen=True)
class Leases:
    """Some leases, or none and then, by `complete`, none ever again."""

    life: str
    ranges: Ranges = NOTHING
    complete: bool = False
    below: int = 0
    """Every position below is consumed: a worker may forget its leases there."""


@dataclass(frozen=True)
class Later:
    """Ask again once the state has changed, and no later than `at` (None: no such time)."""

    at: float | None = None


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class Refused:
    reason: str


Answer = Leases | Later | Done | Refused


def step(state: State, event: Event, now: float) -> tuple[State, Answer]:
    """Return the state after an event, and the answer to its sender."""
    match event:
        case Opened():
            return _opened(state, event)
        case Owned():
            return _owned(state, event, now)
        case Told():
            return _told(state, event)
        case Fetch():
            return _fetch(state, event, now)
        case Lost():
            return _lost(state, event), Done()


def _opened(state: State, event: Opened) -> tuple[State, Answer]:
    if not state.life:
        return replace(state, told={**state.told, event.client: (event.life, event.held)}), Done()
    held = event.held if event.life == state.life else NOTHING
    return _hold(state, event.client, held), Done()


def _hold(state: State, client: str, held: Ranges) -> State:
    """The client has what it says, unless it was consumed or went to another meanwhile."""
    free = state.todo | (state.doing.get(client, NOTHING) - state.consumed)
    held = held & free
    return replace(state, todo=free - held, doing={**state.doing, client: held})


def _owned(state: State, event: Owned, now: float) -> tuple[State, Answer]:
    if state.life:
        if difference := state.shards.difference(event.shards):
            return state, Refused(f"the job's data set is another: {difference}")
        if state.life == event.life and state.shards.size != event.shards.size:
            return state, Refused("the size of leases can't change within a life")
    told = dict(state.told)
    if state.life:
        told = {client: (state.life, held) for client, held in state.doing.items()}
    told[event.client] = (event.life, event.held)
    new = State(
        life=event.life,
        owner=event.client,
        shards=event.shards,
        consumed=event.consumed,
        committed=event.committed,
        committed_step=event.step,
        todo=event.shards.all - event.consumed,
        hold_until=now + RETELL_SECONDS if event.again and not state.life else 0.0,
    )
    for client, (life, held) in told.items():
        new = _hold(new, client, held if life == event.life else NOTHING)
    return new, Done()


def _told(state: State, event: Told) -> tuple[State, Answer]:
    if (event.client, event.life) != (state.owner, state.life):
        return state, Refused(
            f"this process no longer owns the model: expected {state.owner or 'nobody'} in life "
            f"{state.life or 'none'}, found {event.client} in life {event.life}; end it, or load "
            "the newest commit and open anew"
        )
    consumed = event.consumed
    state = replace(
        state,
        consumed=consumed,
        # Also what went back meanwhile and was in the model after all.
        todo=state.todo - consumed,
        doing={client: held - consumed for client, held in state.doing.items()},
    )
    if event.committed:
        state = replace(state, committed=consumed, committed_step=event.step)
    return state, Done()


def _fetch(state: State, event: Fetch, now: float) -> tuple[State, Answer]:
    if not state.owner and not state.complete:  # once it has all, the owner may have gone home
        return state, Later()
    if now < state.hold_until:
        return state, Later(state.hold_until)
    if event.shards != state.shards:
        return state, Refused(f"expected the model owner's {state.shards}, found {event.shards}")
    if state.todo and event.count > 0:
        cuts = list(islice(state.shards.cut(state.todo), event.count))
        granted = state.todo & Ranges.of(cuts[0][0], cuts[-1][1])
        mine = state.doing.get(event.client, NOTHING) | granted
        state = replace(state, todo=state.todo - granted, doing={**state.doing, event.client: mine})
        return state, Leases(state.life, granted, below=state.consumed.below)
    nobody_else = not any(held for client, held in state.doing.items() if client != event.client)
    if state.complete or (event.client == state.owner and nobody_else):
        return state, Leases(state.life, complete=state.complete, below=state.consumed.below)
    # What others hold may come back, and so may all since the last commit.
    return state, Later()


def _lost(state: State, event: Lost) -> State:
    held = state.doing.get(event.client, NOTHING)
    return replace(
        state,
        owner="" if event.client == state.owner else state.owner,
        todo=state.todo | (held - state.consumed),
        doing={client: held for client, held in state.doing.items() if client != event.client},
        told={client: told for client, told in state.told.items() if client != event.client},
    )
