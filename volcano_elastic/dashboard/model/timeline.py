"""Averages of GPU use over time, in buckets of several lengths: short ones are kept for an hour,
long ones for as long as the history.

A moment's use is taken to last until the next one is noted, but no longer than `GAP_MS`: of the
time in which nobody looked a bucket says nothing, and its `observed` is shorter than it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from volcano_elastic.dashboard.model.gpu_use import GpuUse

GAP_MS = 60_000


@dataclass(frozen=True, slots=True)
class Level:
    """Buckets of one length."""

    milliseconds: int
    keep: timedelta

    def begin(self, time: int) -> int:
        """Return when the bucket begins in which that time is."""
        return time - time % self.milliseconds


LEVELS = (
    Level(2_000, timedelta(hours=1)),
    Level(30_000, timedelta(hours=12)),
    Level(300_000, timedelta.max),
)
"""From the shortest to the longest; the last is kept for as long as the history is."""


def level_for(span: timedelta) -> int:
    """Return which of `LEVELS` shows a span of time up to now."""
    return next(i for i, level in enumerate(LEVELS) if span <= level.keep)


@dataclass(frozen=True, slots=True)
class QueueAverage:
    """Means of one queue, in units of the resource; None where the queue states no such amount."""

    held: float
    running: float
    wanted: float
    idle_wanted: float
    deserved: float | None = None
    guarantee: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Means over a bucket's observed time, in units of the resource. Times are milliseconds since
    1970."""

    begin: int
    observed: int
    capacity: float
    idle: float
    kept_out: float
    idle_wanted: float
    queues: Mapping[str, QueueAverage]

    def shown(self) -> dict[str, Any]:
        """Return the form in which it is stored and sent; queues with nothing are left out."""
        return {
            "t": self.begin,
            "ms": self.observed,
            "capacity": self.capacity,
            "idle": self.idle,
            "keptOut": self.kept_out,
            "idleWanted": self.idle_wanted,
            "queues": {
                name: [q.held, q.running, q.wanted, q.idle_wanted, q.deserved, q.guarantee]
                for name, q in self.queues.items()
                if q.held or q.wanted or q.deserved or q.guarantee
            },
        }


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two observations of one bucket, in the form of `shown`, say together."""
    whole = first["ms"] + second["ms"]

    def mean(a: float, b: float) -> float:
        found: float = (a * first["ms"] + b * second["ms"]) / whole
        return round(found, 3)

    cluster = {key: mean(first[key], second[key]) for key in _CLUSTER}
    queues = {}
    nothing = [0, 0, 0, 0, None, None]
    for name in [*first["queues"], *(second["queues"].keys() - first["queues"].keys())]:
        a, b = first["queues"].get(name, nothing), second["queues"].get(name, nothing)
        stated = b if name in second["queues"] else a
        queues[name] = [*map(mean, a[:4], b[:4]), *stated[4:]]
    return {"t": first["t"], "ms": whole, **cluster, "queues": queues}


_CLUSTER = ("capacity", "idle", "keptOut", "idleWanted")


@dataclass(frozen=True, slots=True)
class Moment:
    """The use at one time, and what queues deserve and are guaranteed."""

    time: int
    """Milliseconds since 1970."""
    use: GpuUse
    deserved: Mapping[str, int]
    """In thousandths, of queues that state it."""
    guarantee: Mapping[str, int]


class Averages:
    """Adds up moments into the buckets of one level."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._last: Moment | None = None
        self._open: _Open | None = None

    def note(self, moment: Moment) -> list[Bucket]:
        """Return the buckets that are full now. Moments come in order; one that is earlier than
        the last, as after a clock was set, only takes its place."""
        full: list[Bucket] = []
        last, self._last = self._last, moment
        if last is not None and moment.time > last.time:
            until = min(moment.time, last.time + GAP_MS)
            for begin, start, end in self._parts(last.time, until):
                if self._open is not None and self._open.begin != begin:
                    full.append(self._open.bucket())
                    self._open = None
                self._open = self._open or _Open(begin)
                self._open.add(last, end - start)
        now = self._level.begin(moment.time)
        if self._open is not None and self._open.begin != now:
            full.append(self._open.bucket())
            self._open = None
        return full

    def so_far(self) -> Bucket | None:
        """Return the bucket that is not full yet."""
        return None if self._open is None else self._open.bucket()

    def _parts(self, start: int, until: int) -> Iterator[tuple[int, int, int]]:
        while start < until:
            begin = self._level.begin(start)
            end = min(until, begin + self._level.milliseconds)
            yield begin, start, end
            start = end


class _Open:
    def __init__(self, begin: int) -> None:
        self.begin, self._observed = begin, 0
        self._cluster = [0] * 4
        self._queues: dict[str, list[int]] = {}
        self._stated: dict[str, tuple[int | None, int | None]] = {}

    def add(self, moment: Moment, milliseconds: int) -> None:
        use = moment.use
        self._observed += milliseconds
        amounts = (use.capacity, use.idle, use.kept_out, use.idle_wanted)
        for i, amount in enumerate(amounts):
            self._cluster[i] += amount * milliseconds
        for name, queue in use.queues.items():
            sums = self._queues.setdefault(name, [0] * 4)
            found = (queue.held, queue.running, queue.wanted, queue.idle_wanted)
            for i, amount in enumerate(found):
                sums[i] += amount * milliseconds
            # They change seldom: the latest will do.
            self._stated[name] = (moment.deserved.get(name), moment.guarantee.get(name))

    def bucket(self) -> Bucket:
        queues = {
            name: QueueAverage(
                *map(self._mean, sums),
                *(None if stated is None else stated / 1000 for stated in self._stated[name]),
            )
            for name, sums in self._queues.items()
        }
        capacity, idle, kept_out, idle_wanted = map(self._mean, self._cluster)
        return Bucket(self.begin, self._observed, capacity, idle, kept_out, idle_wanted, queues)

    def _mean(self, amount: int) -> float:
        return round(amount / self._observed / 1000, 3)
