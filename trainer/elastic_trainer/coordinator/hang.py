"""Decides whether training hangs, and which rank is behind; pure.

A long step is no hang, and to stop one is worse than to wait: an evaluation in the loop, or a step
that compiles, comes to its end. So the limit follows the steps as measured; who computes or commits
has ten times as long, and so has a step at which a round was stopped, once it is made again, as a
second stop may be the job's end; that doubles with each stop until training is a step further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import WorkerReport

MEDIANS = 10.0
"""A step of so many median ones may hang."""
LONGEST = 2.0
"""So may one of so many times the longest that came to its end."""
WORKING = 10.0
"""How many times as long a rank has that computes or commits, and one in a round's first step, or
in the one at which a round hung before."""
MOST_DOUBLED = 6
BUSY_CPUS = 0.3
"""Part of one CPU: a process that uses more computes; one that waits in a collective uses none."""
RECENT = 16
"""Steps of which the median is taken."""
ANSWER_SECONDS = 10.0
"""For agents to report their workers' stacks."""
KEPT = 5
"""Hangs that /status tells."""
KEPT_STACKS = 8
"""Stacks of the newest hang that differ, those of ranks behind first. Older ones keep the first."""
KEPT_FLIGHTS = 4


@dataclass(frozen=True)
class StepWatch:
    """Knowledge of the steps that come, or don't. Times are seconds of the caller's clock."""

    since: float = 0.0
    """When the last step was applied, or the round's workers were all there, or state moved."""
    step: int = -1
    """The newest of the round; -1: none yet."""
    recent: tuple[float, ...] = ()
    """How long the last steps took, in whatever round."""
    longest: float = 0.0
    fruitless: int = 0
    """Rounds that were ended as hung since training came further than it had been."""
    hung: int = -1
    """The newest step at which a round was ended as hung, -1: none: until a newer one, those that
    are made again from a commit are no progress."""
    working: bool = False
    """Ranks were looked at, and were at work."""
    asked: float | None = None
    """When agents were asked for their workers' stacks."""
    reports: Mapping[str, tuple[WorkerReport, ...]] = field(default_factory=dict)
    """Reports of each agent that has answered."""

    def begun(self, now: float) -> StepWatch:
        """A round's workers begin, or bytes of state have moved."""
        return replace(self, since=now, step=-1, working=False, asked=None, reports={})

    def moved(self, now: float) -> StepWatch:
        """Something else than a step shows that training goes on."""
        return replace(self, since=now, asked=None, reports={})

    def stepped(self, step: int, time: float) -> StepWatch:
        """`step` of the round was applied at `time`."""
        if step <= self.step:
            return self
        recent, longest = self.recent, self.longest
        if self.step >= 0:
            seconds = max(0.0, time - self.since)
            recent = (*recent, seconds / (step - self.step))[-RECENT:]
            longest = max(longest, seconds)
        return replace(
            self.moved(max(self.since, time)),
            step=step,
            recent=recent,
            longest=longest,
            working=False,
            fruitless=self.fruitless if step <= self.hung else 0,
        )

    def broken(self, step: int) -> StepWatch:
        """A round was ended as hung when training's newest step was `step`."""
        return replace(self, fruitless=self.fruitless + 1, hung=max(self.hung, step))

    def anew(self) -> StepWatch:
        """Another attempt begins, to which what hung before is nothing."""
        return replace(self, fruitless=0, hung=-1)

    def limit(self, least: float) -> float:
        """Return the seconds without a step after which training may hang.

        Args:
            least: of them, however short steps are.
        """
        seconds = least
        if self.recent:
            seconds = max(least, MEDIANS * median(self.recent), LONGEST * self.longest)
        if self.working or self.step in (-1, self.hung) or not self.recent:
            seconds *= WORKING
        return seconds * 2.0 ** min(self.fruitless, MOST_DOUBLED)


@dataclass(frozen=True)
class Hang:
    """No step came for long, and what all ranks did meanwhile."""

    round: int
    step: int
    """The last that was applied; -1: none in the round."""
    time: float
    """When that was seen."""
    seconds: float
    """Since that step, or since the round began."""
    broken: bool
    """The round was ended for it; else ranks are at work, and are waited for."""
    behind: tuple[int, ...]
    """Ranks for which others wait; empty: that can't be told."""
    words: str
    stacks: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks with the same stacks, and these; of ranks behind first."""
    nodes: tuple[str, ...] = ()
    """Nodes of the ranks behind, or of a lone one; else of agents that did not report."""
    flights: tuple[tuple[int, str], ...] = ()
    """By rank, the newest collectives as torch recorded them."""


def with_hang(known: tuple[Hang, ...], found: Hang) -> tuple[Hang, ...]:
    """Return the hangs that are told, by time: /status is read by who takes 1 MiB at most."""
    older = (replace(one, stacks=one.stacks[:1], flights=()) for one in known)
    return (*older, found)[-KEPT:]


def judge(
    reports: Iterable[WorkerReport],
    silent: Sequence[int],
    watch: StepWatch,
    number: int,
    now: float,
) -> Hang:
    """Return what ranks without a step are found to do.

    Args:
        reports: of all workers that were looked at.
        silent: pod indexes of agents that did not report.
        number: of the round.
    """
    ranks = sorted(reports, key=lambda one: one.rank)
    behind = _behind(ranks)
    suspects = behind or ranks
    at_work = [one for one in suspects if one.committing or one.cpus > BUSY_CPUS]
    broken = watch.working or not at_work or bool(silent)
    words = [_position(ranks, behind)] if ranks else []
    if at_work:
        words.append(f"at work: {_named(at_work)}")
    if silent:
        words.append(f"worker {', '.join(map(str, silent))} did not report")
    ordered = [*behind, *(one for one in ranks if one not in behind)]
    return Hang(
        round=number,
        step=watch.step,
        time=now,
        seconds=now - watch.since,
        broken=broken,
        behind=tuple(one.rank for one in behind),
        words="; ".join(words) or "no worker was looked at",
        stacks=_same_stacks(ordered),
        flights=tuple((one.rank, one.flight) for one in ordered if one.flight)[:KEPT_FLIGHTS],
    )


def _behind(ranks: Sequence[WorkerReport]) -> list[WorkerReport]:
    """Return those that have begun fewer steps or collectives than others, or, where that is not
    known, whose Python does not answer; nobody if that is so of all."""
    if len({one.step for one in ranks}) > 1:
        least = min(one.step for one in ranks)
        return [one for one in ranks if one.step == least]
    mute = [one for one in ranks if not one.answers]
    if mute:
        return mute if len(mute) < len(ranks) else []
    known = {one.collectives for one in ranks}
    if len(known) < 2 or -1 in known:
        return []
    return [one for one in ranks if one.collectives == min(known)]


def _position(ranks: Sequence[WorkerReport], behind: Sequence[WorkerReport]) -> str:
    if not behind:
        if len(ranks) == 1:
            return f"rank {ranks[0].rank} is alone"
        told = {one.collectives for one in ranks}
        where = f"collective {told.pop()}" if len(told) == 1 and -1 not in told else "the same step"
        return f"no rank is behind: all {len(ranks)} are in {where}, so maybe the network between"
    others = [one for one in ranks if one not in behind]
    verb = "is" if len(behind) == 1 else "are"
    text = f"{_named(behind)} {verb} behind"
    if behind[0].step != others[0].step:
        first = behind[0].step < 0  # -1: it has applied none in this round
        at = "in the round's first step" if first else f"at step {behind[0].step}"
        return f"{text}: {at}, others at {max(one.step for one in others)}"
    if not behind[0].answers:
        return f"{text}: Python gives no answer there"
    most = max(one.collectives for one in others)
    return f"{text}: at collective {behind[0].collectives}, others at {most}"


def _named(ranks: Sequence[WorkerReport], most: int = 8) -> str:
    names = ", ".join(str(one.rank) for one in ranks[:most])
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{more}"


def _same_stacks(ranks: Iterable[WorkerReport]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Group ranks whose threads are at the same places, whatever their numbers."""
    groups: dict[str, tuple[list[int], str]] = {}
    for one in ranks:
        frames = [line for line in one.stack.splitlines() if line.startswith("  ")]
        groups.setdefault("\n".join(frames), ([], one.stack))[0].append(one.rank)
    found = [(tuple(numbers), stack) for numbers, stack in groups.values()]
    return tuple(found[:KEPT_STACKS])


def as_json(hang: Hang, offset: float) -> dict[str, Any]:
    """Return a hang for /status; `offset` makes Unix seconds of its time."""
    return {
        "round": hang.round,
        "step": hang.step,
        "time": round(hang.time + offset, 3),
        "seconds": round(hang.seconds, 3),
        "broken": hang.broken,
        "behind": list(hang.behind),
        "words": hang.words,
        "stacks": [{"ranks": list(ranks), "stack": stack} for ranks, stack in hang.stacks],
        "flights": [{"rank": rank, "record": record} for rank, record in hang.flights],
    }
