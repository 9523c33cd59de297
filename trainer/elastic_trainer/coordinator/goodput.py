"""The ledger of a job's GPU time: each millisecond of each process in exactly one use; pure.

Names are those of ml-goodput-measurement where they mean the same. A node's time in a round that
makes steps is open until its next step is told: it is training then, less what its workers were
kept from it, and redone if a later round begins at an earlier step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice

from elastic_trainer.coordinator.inheritance import MOST_TOLD_DEPARTED, Arrival, Inheritance
from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Goodput, Moment


class Use(Enum):
    """A use of a process' time."""

    TRAINING = "productive_training"
    """Steps that count, and what the script does after the last one."""
    REDONE = "wasted_progress_from_disruption"
    """Steps that were undone, or cut short."""
    STARTING = "program_startup"
    """From the start of a node's agent to its first step."""
    REGROUPING = "elastic_reinitialization"
    """Between the last step of a round and the first of the next, for who is in both."""
    SAVING = "unproductive_checkpoint_save"
    INPUT = "data_loading_sync"
    """The data wasn't there when it was asked for."""
    HANG = "hang"
    NODE_CHECK = "node_check"
    WAITING = "elastic_wait"
    """Too few nodes for a round; or no place in it."""


MOST_SPANS = 128
MOST_DEPARTED = 1000
_NOTHING: Mapping[Use, int] = dict.fromkeys(Use, 0)


@dataclass(frozen=True)
class Account:
    """One agent's time so far; in milliseconds times its processes, but for `since`."""

    since: int
    """Until when (ms of the caller's clock) it is counted."""
    processes: int
    use: Use | None
    """The use of the time from then on; None: open until the next step."""
    open: int = 0
    stall: int = 0
    """Time that its workers have told, since their start."""
    input: int = 0
    step: int = -1


@dataclass(frozen=True)
class Running:
    """The part that accounts of one use share: their time goes on though nobody writes it down."""

    processes: int = 0
    since: int = 0
    """The sum of their `since`, times their processes."""
    open: int = 0

    def milliseconds(self, now: int) -> int:
        """Return their time that isn't written down yet."""
        return now * self.processes - self.since

    def changed(self, account: Account, sign: int) -> Running:
        """Return it with an account more (`sign` 1), or less (-1)."""
        processes = sign * account.processes
        return Running(
            self.processes + processes,
            self.since + processes * account.since,
            self.open + sign * account.open,
        )


@dataclass(frozen=True)
class Span:
    """Training for the steps above `low`, up to `high`, of all agents."""

    low: int
    high: int
    milliseconds: int


@dataclass(frozen=True)
class Ledger:
    """All uses of a job's GPU time.

    `total` of the uses and the open time is always what was held: see `held`.
    """

    id: str = ""
    """Stays the same when the coordinator is started anew, or another takes its place."""
    keeper: str = ""
    """The coordinator that keeps it."""
    generation: int = 0
    """Coordinators that have kept it."""
    inherited: Mapping[Use, int] = field(default_factory=lambda: _NOTHING)
    """By the coordinators before."""
    inheritance: Inheritance | None = None
    """Where that is from."""
    begun: bool = False
    """A round has run since: what the coordinators before counted later is not taken over."""
    arrivals: PersistentMap[str, tuple[Arrival, Use | None]] = field(default_factory=PersistentMap)
    """Agents that came before a round ran, and what they did up to then: how much of their time is
    inherited follows from the newest word, which others may still bring."""
    bridged: Mapping[Use | None, int] = field(default_factory=dict)
    """Their time that is not inherited, up to their coming."""
    spent: Mapping[Use, int] = field(default_factory=lambda: _NOTHING)
    accounts: PersistentMap[str, Account] = field(default_factory=PersistentMap)
    running: Mapping[Use | None, Running] = field(default_factory=dict)
    """The sums of the accounts, by their use."""
    spans: tuple[Span, ...] = ()
    """The newest steps' training, which may still have to be redone."""
    settled: int = 0
    """When the steps of all agents were last entered (ms)."""
    held: int = 0
    """Milliseconds times processes, counted by themselves."""
    departed: dict[str, int] = field(default_factory=dict)
    """Until when agents that went are counted."""

    @property
    def total(self) -> int:
        """Return the time in all uses, the open one included; always `held`."""
        return sum(self.spent.values()) + self._open

    def uses(self, now: int | None = None) -> dict[Use, int]:
        """Return all time by use; what is open counts as training, until it is known better.

        Args:
            now: everybody's time counts up to then; None: as far as it is written down.
        """
        found = {use: self.inherited[use] + self.spent[use] for use in Use}
        found[Use.TRAINING] += self._open
        for passed, spent in self.bridged.items():
            found[passed or Use.TRAINING] += spent
        if now is not None:
            for use, running in self.running.items():
                found[use or Use.TRAINING] += running.milliseconds(now)
        return found

    @property
    def _open(self) -> int:
        return sum(running.open for running in self.running.values())

    @property
    def beginning(self) -> int:
        """Return the time up to the coming of the agents, that of the coordinators before with it;
        `held` is without it."""
        return sum(self.inherited.values()) + sum(self.bridged.values())

    def inherit(self, arrival: Arrival, silence: int) -> Ledger:
        """Go on from what an agent was told by the coordinator before, the newest word of all.

        Args:
            silence: milliseconds for which a coordinator counts an agent that it hears no more.
        """
        told, known = arrival.told, self.inheritance
        if not told.id or len(told.milliseconds) != len(Use) or told.generation < 0:
            return self
        if self._is_own(told) or (known is not None and self.begun):
            return self
        found = Inheritance.of(arrival, silence)
        if known is not None and not found.rank > known.rank:
            return self
        if any(found.at > one.at for one, _ in islice(self.arrivals.values(), 1)):
            return self  # it may have counted, until then, who was here already
        return replace(
            self,
            id=told.id,
            generation=told.generation + 1,
            inherited=dict(zip(Use, told.milliseconds, strict=True)),
            inheritance=found,
            bridged=_bridged(found, self.arrivals),
        )

    def since(self, agent: str, arrival: Arrival) -> int:
        """Return up to when an agent that comes is counted already."""
        known = self.inheritance
        if agent in self.departed:
            return min(arrival.at, self.departed[agent])
        if known is None or self._is_own(arrival.told):
            return min(arrival.at, arrival.heard)
        return known.until(agent, arrival)

    def tell(self, now: int | None = None) -> Goodput:
        """Return what agents are to keep for the next coordinator; `now` as for `uses`."""
        uses = self.uses(now)
        told = tuple(uses[use] for use in Use)
        away = () if now is None else tuple(islice(self._away(now), MOST_TOLD_DEPARTED))
        known = self.inheritance
        earlier = known.earlier(now) if known is not None and now is not None else ()
        return Goodput(self.id, self.generation, told, self.keeper, away, earlier)

    def _away(self, now: int) -> Iterator[Moment]:
        """Yield the agents that are known and not there, those first that went last."""
        absent = self.inheritance.absent if self.inheritance is not None else {}
        for agent in chain(reversed(self.departed), reversed(absent)):
            if agent not in self.accounts:
                until = self.departed[agent] if agent in self.departed else absent[agent]
                yield Moment(agent, now - until)

    def _is_own(self, told: Goodput) -> bool:
        return bool(told.keeper) and told.keeper == self.keeper


def _bridged(
    inherited: Inheritance, arrivals: Mapping[str, tuple[Arrival, Use | None]]
) -> dict[Use | None, int]:
    found: dict[Use | None, int] = {}
    for agent, (arrival, use) in arrivals.items():
        found[use] = found.get(use, 0) + inherited.missing(agent, arrival)
    return found


_NONE = Running()


class Book:
    """A ledger that is written in, for one event; `closed` is what it comes to.

    Times are milliseconds of one clock.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._accounts, self._spent = ledger.accounts, dict(ledger.spent)
        self._running = dict(ledger.running)
        self._held, self._spans, self._departed = ledger.held, ledger.spans, ledger.departed
        self._arrivals, self._bridged = ledger.arrivals, ledger.bridged
        self._begun = ledger.begun

    def closed(self) -> Ledger:
        """Return the ledger; nothing may be written any more."""
        return replace(
            self._ledger,
            accounts=self._accounts,
            running=self._running,
            spent=self._spent,
            held=self._held,
            spans=self._spans,
            departed=self._departed,
            arrivals=self._arrivals,
            bridged=self._bridged,
            begun=self._begun,
        )

    def __contains__(self, agent: str) -> bool:
        return agent in self._accounts

    def enter(self, agent: str, arrival: Arrival, use: Use | None) -> None:
        """An agent is there.

        Args:
            use: of its time up to now, as far as that isn't counted yet.
        """
        if agent in self._accounts:
            self.leave(agent, arrival.at, Use.REDONE)
        known, at = self._ledger.inheritance, arrival.at
        since = replace(self._ledger, departed=self._departed).since(agent, arrival)
        waits = known is not None and not (self._begun or agent in self._departed)
        if waits and known is not None and arrival.told.id:
            self._arrivals = self._arrivals.with_entry(agent, (arrival, use))
            missing = self._bridged.get(use, 0) + known.missing(agent, arrival)
            self._bridged = {**self._bridged, use: missing}
            since = at
        if agent in self._departed:
            self._departed = {n: until for n, until in self._departed.items() if n != agent}
        self._keep(agent, Account(since, max(1, arrival.processes), use))
        self._charge(agent, at)

    def begin(self) -> None:
        """A round runs: what the ledger begins with is known."""
        known, arrivals = self._ledger.inheritance, self._arrivals
        self._arrivals, self._bridged, self._begun = PersistentMap(), {}, True
        if known is None:
            return
        for agent, (arrival, use) in arrivals.items():
            missing = known.missing(agent, arrival)
            account = self._accounts.get(agent)
            self._held += missing
            if use is None and account is not None and account.use is None and account.step < 0:
                self._keep(agent, replace(account, open=account.open + missing))
            else:
                self._spent[use or Use.TRAINING] += missing

    def leave(self, agent: str, now: int, closing: Use) -> None:
        """The agent is gone; its open time was `closing`."""
        self._charge(agent, now)
        account = self._accounts[agent]
        self._spent[closing] += account.open
        self._count(account, -1)
        self._accounts = self._accounts.without(agent)
        kept = list(self._departed.items())[-MOST_DEPARTED:]
        self._departed = {**dict(kept), agent: now}

    def become(self, agent: str, use: Use | None, now: int, closing: Use) -> None:
        """From now on the agent's time is of another use.

        Args:
            closing: what its open time was, if it is no longer in a round that makes steps.
        """
        if self._accounts[agent].use is use:
            return
        self._charge(agent, now)
        account = self._accounts[agent]
        if account.use is None:
            self._spent[closing] += account.open
            account = replace(account, open=0, step=-1)
        self._keep(agent, replace(account, use=use))

    def close(self, now: int, closing: Use) -> None:
        """The round is over: all open time was `closing`."""
        for agent, account in list(self._accounts.items()):
            if account.use is None:
                self.become(agent, Use.REGROUPING, now, closing)

    def charge(self, now: int) -> None:
        """Count everybody's time up to now."""
        for agent in list(self._accounts):
            self._charge(agent, now)

    def stepped(self, agent: str, step: int, now: int, stall: int, waited: int) -> None:
        """The agent's workers applied `step` at `now`: its open time until then is known.

        Args:
            stall: milliseconds of all its processes that commits took, since their start.
            waited: likewise, for data.
        """
        self._charge(agent, now)
        account = self._accounts[agent]
        if account.use is not None or step <= account.step:
            return
        saving = min(account.open, _more(stall, account.stall))
        waiting = min(account.open - saving, _more(waited, account.input))
        training = account.open - saving - waiting
        low = account.step if account.step >= 0 else step - 1
        self._spent[Use.SAVING] += saving
        self._spent[Use.INPUT] += waiting
        self._spent[Use.TRAINING] += training
        self._keep(agent, replace(account, open=0, stall=stall, input=waited, step=step))
        self._spans = _with_span(self._spans, Span(low, step, training))

    def roll_back(self, first: int) -> None:
        """A round's first step is `first`: what was trained for it and later ones was in vain."""
        kept, lost = [], 0
        for span in self._spans:
            if span.high < first:
                kept.append(span)
                continue
            steps, saved = span.high - span.low, max(0, first - 1 - span.low)
            left = span.milliseconds * saved // steps
            lost += span.milliseconds - left
            if left:
                kept.append(Span(span.low, first - 1, left))
        self._spans = tuple(kept)
        self._spent[Use.TRAINING] -= lost
        self._spent[Use.REDONE] += lost

    def _charge(self, agent: str, now: int) -> None:
        account = self._accounts[agent]
        passed = max(0, now - account.since) * account.processes
        if not passed:
            return
        self._held += passed
        if account.use is not None:
            self._spent[account.use] += passed
        more = passed if account.use is None else 0
        self._keep(agent, replace(account, since=now, open=account.open + more))

    def _keep(self, agent: str, account: Account) -> None:
        before = self._accounts.get(agent)
        if before is not None:
            self._count(before, -1)
        self._count(account, 1)
        self._accounts = self._accounts.with_entry(agent, account)

    def _count(self, account: Account, sign: int) -> None:
        known = self._running.get(account.use, _NONE)
        self._running[account.use] = known.changed(account, sign)


def _more(told: int, known: int) -> int:
    """Return what was added; a worker that was started anew begins at 0."""
    return told - known if told >= known else told


def _with_span(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    if not span.milliseconds:
        return spans
    found = list(spans)
    if found and found[-1].high >= span.high:  # another agent has told of it
        last = found[-1]
        low, total = min(last.low, span.low), last.milliseconds + span.milliseconds
        found[-1] = Span(low, last.high, total)
        return tuple(found)
    found.append(replace(span, low=max(span.low, found[-1].high) if found else span.low))
    if len(found) > MOST_SPANS:
        # Older steps are known less finely: only a loss of many commits undoes them.
        half = MOST_SPANS // 2
        found[:half] = [
            Span(one.low, two.high, one.milliseconds + two.milliseconds)
            for one, two in zip(found[0:half:2], found[1:half:2], strict=True)
        ]
    return tuple(found)
