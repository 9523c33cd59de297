"""The ledger of a job's GPU time: each millisecond of each process in exactly one use; pure.

Names are those of ml-goodput-measurement where they mean the same. A node's time in a round that
makes steps is open until its next step is told: it is training then, less what its workers were
kept from it, and redone if a later round begins at an earlier step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Goodput


class Use(Enum):
    """What a process' time is used for."""

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
    """Of the time from then on; None: open until the next step."""
    open: int = 0
    stall: int = 0
    """As its workers have told, since their start."""
    input: int = 0
    step: int = -1


@dataclass(frozen=True)
class Running:
    """What accounts of one use have in common: their time goes on though nobody writes it down."""

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
    generation: int = 0
    """Of coordinators that have kept it."""
    inherited: Mapping[Use, int] = field(default_factory=lambda: _NOTHING)
    """By the coordinators before."""
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
    departed: Mapping[str, int] = field(default_factory=dict)
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
        if now is not None:
            for use, running in self.running.items():
                found[use or Use.TRAINING] += running.milliseconds(now)
        return found

    @property
    def _open(self) -> int:
        return sum(running.open for running in self.running.values())

    def inherit(self, told: Goodput) -> Ledger:
        """Go on from what an agent was told by the coordinator before, the most of all agents."""
        if not told.id or len(told.milliseconds) != len(Use) or told.generation < 0:
            return self
        newer = told.generation >= self.generation and told.id != self.id
        alike = told.generation == self.generation - 1 and told.id == self.id
        if not newer and not (alike and sum(told.milliseconds) > sum(self.inherited.values())):
            return self
        inherited = dict(zip(Use, told.milliseconds, strict=True))
        return replace(self, id=told.id, generation=told.generation + 1, inherited=inherited)

    def tell(self, now: int | None = None) -> Goodput:
        """Return what agents are to keep for the next coordinator; `now` as for `uses`."""
        uses = self.uses(now)
        return Goodput(self.id, self.generation, tuple(uses[use] for use in Use))


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
        )

    def __contains__(self, agent: str) -> bool:
        return agent in self._accounts

    def enter(self, agent: str, processes: int, since: int, now: int, use: Use | None) -> None:
        """An agent is there.

        Args:
            since: when it was last counted, or began; what was counted since is not counted again.
            use: of the time up to now.
        """
        if agent in self._accounts:
            self.leave(agent, now, Use.REDONE)
        since = min(now, max(since, self._departed.get(agent, since)))
        self._keep(agent, Account(since, max(1, processes), use))
        self._charge(agent, now)

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
