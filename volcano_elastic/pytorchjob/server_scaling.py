"""Decides by their loads how many parameter servers a job should have. Pure.

memory  one over 80 %, or half of them over 60 %  ─► as many as are 60 % full with what all hold
CPU     likewise                                  ─► likewise, if it pays: see below
both    more than half under 40 % for a minute    ─► as many as are 60 % full, half of them at least

A growth for CPU that made training less than 5 % faster is taken back, and not tried again until
the number of workers changes: a job that waits for something else gains nothing by it. Memory is
no matter of gain. After each change all servers have to report, and a minute to pass.

Sources: thresholds as in DeepRec Extension's AIMaster (80, 60, 40 %, halving after two low looks,
at the beginning a checkpoint's size / 0.6 / a server's memory). Its steps of +2, x2 and x1.2 are
what is needed here, its cool-down of 5 minutes is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.server_bounds import ServerBounds

MOST, MUCH, LITTLE = 0.8, 0.6, 0.4
"""Shares of what a server may use: of one, of half of them, and of more than half."""
FULL = 0.6
"""Share of each where the number is chosen; hash tables, buffers and what arrives need the rest."""
LOW_SECONDS = 60.0
REST_SECONDS = 60.0
"""After a change, until its gain is measured, and another may follow."""
LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Capacity:
    """Resources that a server may use; 0: not known, and not judged."""

    cpus: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """All servers of a job at one time."""

    at: float
    """Seconds."""
    cpus: Sequence[float]
    """CPUs that each server uses."""
    memory: Sequence[int]
    """Bytes of each server."""
    steps_per_second: float
    """Sum over all workers."""
    workers: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A growth for CPU, until its gain is known."""

    at: float
    before: int
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class History:
    """Memory of earlier looks; lost with the process, which costs a minute."""

    low_since: float | None = None
    changed: float | None = None
    trial: Trial | None = None
    useless: tuple[int, int] | None = None
    """Workers, and number of servers beyond which more brought nothing."""


@dataclass(frozen=True, slots=True)
class Decision:
    replicas: int
    message: str


def servers_for_checkpoint(size: Bytes, each: Bytes, without: int) -> int:
    """Return the number of parameter servers for a model that is in a checkpoint already.

    Args:
        size: of the checkpoint, 0 if there is none.
        each: memory of each server, more than 0.
        without: number to use where there is no checkpoint.
    """
    if not size:
        return without
    needed = size * (1 / FULL)
    return max(1, -(-needed.count // each.count))


def decide(
    history: History, look: Look, has: int, bounds: ServerBounds, capacity: Capacity
) -> tuple[History, Decision | None]:
    """Return what to remember, and another number of servers; None: it stays.

    Args:
        has: how many there are to be.
    """
    if has != bounds.within(has):
        number = bounds.within(has)
        said = f"{bounds.least} to {bounds.most} may be"
        return _changed(history, look), Decision(number, said)
    history = _waited(history, look)
    if len(look.memory) != has or _rests(history, look):
        return replace(history, low_since=None), None
    history, back = _judged(history, look, has)
    if back is not None:
        return _changed(history, look), Decision(bounds.within(back.replicas), back.message)
    memory = _shares(look.memory, capacity.memory)
    cpus = _shares(look.cpus, capacity.cpus)
    if _high(memory) and (more := _needed(memory, has, bounds)) > has:
        said = f"memory: {_percent(memory)}; so many are {FULL:.0%} full"
        return _changed(history, look), Decision(more, said)
    useless = history.useless is not None and has >= history.useless[1]
    if _high(cpus) and not useless and (more := _needed(cpus, has, bounds)) > has:
        said = f"CPU: {_percent(cpus)}; so many are {FULL:.0%} busy"
        trial = Trial(look.at, has, look.steps_per_second)
        return replace(_changed(history, look), trial=trial), Decision(more, said)
    # Where nobody knows how full they are, none is given up.
    if not (memory and _low(memory) and _low(cpus)):
        return replace(history, low_since=None), None
    since = look.at if history.low_since is None else history.low_since
    needed = max(_needed(memory, has, bounds), _needed(cpus, has, bounds), -(-has // 2))
    fewer = bounds.within(needed)
    if fewer >= has or look.at - since < LOW_SECONDS:
        return replace(history, low_since=since), None
    said = f"memory {_percent(memory)}, CPU {_percent(cpus)}; so many are {FULL:.0%} full"
    return _changed(history, look), Decision(fewer, said)


def _changed(history: History, look: Look) -> History:
    return replace(history, low_since=None, changed=look.at, trial=None)


def _waited(history: History, look: Look) -> History:
    """Forget what other workers' demand has shown."""
    if history.useless is not None and history.useless[0] != look.workers:
        return replace(history, useless=None)
    return history


def _rests(history: History, look: Look) -> bool:
    return history.changed is not None and look.at - history.changed < REST_SECONDS


def _judged(history: History, look: Look, has: int) -> tuple[History, Decision | None]:
    """End a trial: keep it where training got faster, else go back."""
    trial = history.trial
    if trial is None:
        return history, None
    history = replace(history, trial=None)
    if has <= trial.before or look.steps_per_second >= trial.steps_per_second * (1 + LEAST_GAIN):
        return history, None
    gain = look.steps_per_second / trial.steps_per_second - 1 if trial.steps_per_second else 0.0
    history = replace(history, useless=(look.workers, trial.before))
    said = f"{has} made training {gain:+.0%} faster: less than {LEAST_GAIN:.0%}"
    return history, Decision(trial.before, said)


def _shares(used: Sequence[float], each: float) -> list[float]:
    return [one / each for one in used] if each else []


def _high(shares: Sequence[float]) -> bool:
    much = sum(one > MUCH for one in shares)
    return bool(shares) and (max(shares) > MOST or 2 * much >= len(shares))


def _low(shares: Sequence[float]) -> bool:
    """Return whether more than half use little; where nobody knows, nothing is in the way."""
    return not shares or (
        2 * sum(one < LITTLE for one in shares) > len(shares) and not _high(shares)
    )


def _needed(shares: Sequence[float], has: int, bounds: ServerBounds) -> int:
    """Return how many servers are FULL on average with what all use now."""
    # Sums of shares are off by less than this.
    return bounds.within(max(1, ceil(sum(shares) / FULL - 1e-9)))


def _percent(shares: Sequence[float]) -> str:
    if not shares:
        return "not known"
    mean = sum(shares) / len(shares)
    return f"{mean:.0%} of {len(shares)} servers' is in use, {max(shares):.0%} of the fullest one's"
