"""Finds ranks that are slower by themselves than the others, for whom these wait each step; pure.

In a step all ranks take equally long, as they wait for the slowest one's gradients. So each is
measured without that wait, over a window of many batches, and compared with the others: by how many
of their deviations (median absolute, times `NORMAL`) it is above their median. A rank is named once
that was so in `CONFIRMED` windows in a row, and until a window in which it is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from elastic_trainer.coordinator.replacement import replace

WINDOW_BATCHES = 5
"""The fewest of each rank that are compared: longer ones make a longer window."""
TRIES = 5
"""Looks in so long at a window in which a rank has too few batches yet."""
CONFIRMED = 3
"""Windows in a row in which a rank is slow before it is named."""
SCORE = 3.5
"""Deviations above the others' median from which a rank is slow."""
NORMAL = 1.4826
"""Makes a median absolute deviation comparable with a standard deviation."""
NOISE = 0.1
"""The least deviation, as part of the others' median: equal ranks differ by chance."""
NEGLIGIBLE = 0.02
"""The least deviation, as part of a batch with all waiting: less does not slow the job down."""

Rank = TypeVar("Rank", bound=Hashable)


@dataclass(frozen=True)
class Worked:
    """One worker's time so far, in milliseconds, since its start."""

    compute: int
    """Work on batches, without waiting for other ranks."""
    waited: int
    """Waiting for data."""
    network: int
    """Waiting for the gradients of others."""
    batches: int
    """That these are of."""
    samples: int
    """Samples of those batches."""


@dataclass(frozen=True)
class Pace:
    """One rank's seconds for a batch."""

    compute: float
    input: float = 0.0
    network: float = 0.0
    samples: float = 1.0
    """Samples of a batch."""

    @property
    def own(self) -> float:
        """Seconds that the others would have to wait for."""
        return self.compute + self.input


@dataclass(frozen=True)
class Slowness:
    """How much slower than the others a rank is."""

    own: float
    """Its seconds for a batch."""
    usual: float
    """The others' median."""
    score: float
    """Deviations above it."""
    cause: str
    """"compute" or "input": where most of the difference is."""


@dataclass(frozen=True)
class Straggler:
    """A slow rank that is named."""

    since: float
    """When it was named."""
    slowness: Slowness
    """In the newest window."""


Key = tuple[str, int]
"""Agent and local rank."""


@dataclass(frozen=True)
class StragglerWatch:
    """Knowledge of how fast ranks are by themselves; times are in seconds of one clock."""

    round: int = -1
    since: float = 0.0
    """When the window began."""
    tried: float = 0.0
    """When it was looked at last."""
    base: Mapping[Key, Worked] = field(default_factory=dict)
    """The totals told then."""
    streaks: Mapping[Key, int] = field(default_factory=dict)
    """Windows in a row in which it was slow; of those that were in the last one."""
    named: Mapping[Key, Straggler] = field(default_factory=dict)
    pace: Pace | None = None
    """The ranks' medians in the last window; None: there was none yet."""
    paces: Mapping[Key, Pace] = field(default_factory=dict)
    """Each rank's in the last window."""
    total: int = 0
    """Ranks that were ever named, as often as they were."""

    def due(self, now: float, least: float) -> bool:
        """Return whether `looked` may have something to compare, after a window of `least`
        seconds; it is asked in vain a few times at most in such a window."""
        again = self.tried + least / TRIES
        return self.round < 0 or now >= max(self.since + least, again)

    def looked(self, number: int, told: Mapping[Key, Worked], now: float) -> StragglerWatch:
        """Return the watch after a look at what the workers of round `number` have told last.

        A window ends once all that were there at its begin have had enough batches. In another
        round another begins, since batches may be of another size there.
        """
        if number != self.round or not self.base:
            return replace(
                self,
                round=number,
                since=now,
                base=dict(told),
                streaks={key: one for key, one in self.streaks.items() if key in told},
                named={key: one for key, one in self.named.items() if key in told},
            )
        paces = {key: _pace(before, told[key]) for key, before in self.base.items() if key in told}
        found = {key: pace for key, pace in paces.items() if pace is not None}
        if len(found) < len(paces) or not found:
            began_anew = any(told[key].batches < self.base[key].batches for key in paces)
            return replace(self, round=-1 if began_anew or not paces else number, tried=now)
        slow = stragglers(found)
        streaks = {key: self.streaks.get(key, 0) + 1 for key in slow}
        named = {
            key: Straggler(self.named[key].since if key in self.named else now, slow[key])
            for key, streak in streaks.items()
            if streak >= CONFIRMED
        }
        return StragglerWatch(
            number,
            now,
            now,
            dict(told),
            streaks,
            named,
            _median_pace(list(found.values())),
            found,
            self.total + len(named.keys() - self.named.keys()),
        )


def _pace(before: Worked, now: Worked) -> Pace | None:
    batches = now.batches - before.batches
    if batches < WINDOW_BATCHES:
        return None
    seconds = 1000.0 * batches
    return Pace(
        max(0, now.compute - before.compute) / seconds,
        max(0, now.waited - before.waited) / seconds,
        max(0, now.network - before.network) / seconds,
        max(batches, now.samples - before.samples) / batches,
    )


def stragglers(paces: Mapping[Rank, Pace]) -> dict[Rank, Slowness]:
    """Return the ranks that are slower by themselves than the others, by the batch and also by the
    sample, as batches of few samples can't all be equal; never more than half of the ranks."""
    if len(paces) < 2:
        return {}
    typical = _median_pace(list(paces.values()))
    negligible = NEGLIGIBLE * (typical.own + typical.network)
    owns = {rank: pace.own for rank, pace in paces.items()}
    by_sample = {rank: pace.own / pace.samples for rank, pace in paces.items()}
    samples = _median(sorted(pace.samples for pace in paces.values()))
    also = _above(by_sample, negligible / samples)
    found = {}
    for rank, (usual, score) in _above(owns, negligible).items():
        if rank in also:
            pace = paces[rank]
            by_input = pace.input - typical.input > pace.compute - typical.compute
            cause = "input" if by_input else "compute"
            found[rank] = Slowness(pace.own, usual, min(score, also[rank][1]), cause)
    return found


def _above(owns: Mapping[Rank, float], negligible: float) -> dict[Rank, tuple[float, float]]:
    """Return the others' median, and how many of their deviations it is above that, of each rank
    where these are more than `SCORE`."""
    ordered = sorted(owns.values())
    # All ranks above the median leave the same median of others behind.
    usual = _median(ordered[:-1])
    deviations = sorted(abs(own - usual) for own in ordered)
    found = {}
    for rank, own in owns.items():
        excess = own - usual
        if excess <= 0:
            continue
        deviation = NORMAL * _median_without(deviations, bisect_left(deviations, excess))
        score = excess / max(deviation, NOISE * usual, negligible, 1e-9)
        if score > SCORE:
            found[rank] = usual, score
    return found


def _median_pace(paces: Sequence[Pace]) -> Pace:
    return Pace(
        _median(sorted(pace.compute for pace in paces)),
        _median(sorted(pace.input for pace in paces)),
        _median(sorted(pace.network for pace in paces)),
        _median(sorted(pace.samples for pace in paces)),
    )


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Return the median of all but the one at `place`."""

    def at(index: int) -> float:
        return ordered[index + (index >= place)]

    count = len(ordered) - 1
    middle = count // 2
    return at(middle) if count % 2 else (at(middle - 1) + at(middle)) / 2
