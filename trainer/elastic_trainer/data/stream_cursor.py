"""The position in a stream of shards, which all ranks keep alike. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import Any

from elastic_trainer.shards.permutation import Permutation


@dataclass(frozen=True, slots=True)
class Unit:
    """The samples one rank reads at a time: start..stop-1 of a shard, or from start to its end."""

    shard: str
    start: int = 0
    stop: int | None = None
    ends: bool = False
    """True if the shard should have no sample after `stop`."""


@dataclass(frozen=True, slots=True)
class ShardList:
    """The shards of one epoch, as they were when it began.

    Raises:
        ValueError: a name that comes twice, or a count that is no number of samples.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...] | None = None
    """Samples of each; None: known when they have been read."""

    def __post_init__(self) -> None:
        repeated = [name for name, times in Counter(self.names).items() if times > 1]
        if repeated:
            raise ValueError(
                f"{len(repeated)} shards are listed twice, such as {repeated[0]!r}: expected each "
                "once, as their samples are consumed once an epoch"
            )
        if self.counts is not None and min(self.counts, default=0) < 0:
            raise ValueError(f"a shard of {min(self.counts)} samples: expected at least 0")

    @classmethod
    def of(cls, shards: Sequence[str] | Mapping[str, int]) -> ShardList:
        if isinstance(shards, Mapping):
            names = tuple(map(str, shards))
            return cls(names, tuple(int(count) for count in shards.values()))
        return cls(tuple(map(str, shards)))

    @property
    def samples(self) -> int:
        """Samples of the epoch; 0: not known."""
        return 0 if self.counts is None else sum(self.counts)

    def units(self, largest: int | None) -> list[Unit]:
        """Return what is read in one go: whole shards, or parts of `largest` samples where their
        counts are known; an empty shard is opened, too."""
        if self.counts is None:
            return [Unit(name) for name in self.names]
        found = []
        for name, count in zip(self.names, self.counts, strict=True):
            step = largest or max(1, count)
            found += [
                Unit(name, start, min(start + step, count), start + step >= count)
                for start in range(0, max(1, count), step)
            ]
        return found


@dataclass(frozen=True, slots=True)
class OpenUnit:
    """A unit that a coordinate reads, and how much of it was consumed."""

    number: int
    """In the epoch's order of units."""
    owner: int
    """The coordinate that reads it."""
    taken: int = 0
    """Samples consumed, in the order in which this unit's come."""
    part: int = 0
    """Tokens consumed of the sample after those, which was cut where a row was full."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a coordinate in a unit that it has read from."""

    number: int
    taken: int
    part: int
    ended: bool
    """Nothing is left of it."""


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """`step` steps are done. Of this epoch's units those from `next` on were read by nobody, `open`
    ones in part, all others wholly.

    `world` is what owners are numbers in; any world can go on from any cursor, see `regrouped`.
    """

    epoch: int = 0
    step: int = 0
    next: int = 0
    open: tuple[OpenUnit, ...] = ()
    world: int = 1
    samples: int = 0
    """Consumed since the very beginning."""
    tokens: int = 0
    shards: ShardList | None = field(default=None, compare=False)
    """The epoch's; None: it has not begun, and nobody has looked which there are."""

    def regrouped(self, world: int) -> StreamCursor:
        """Return the cursor for so many coordinates: open units are dealt out anew if these aren't
        as many as before."""
        if world == self.world:
            return self
        dealt = tuple(replace(unit, owner=number % world) for number, unit in enumerate(self.open))
        return replace(self, world=world, open=dealt)

    def granted(self, units: int, each: int) -> StreamCursor:
        """Return the cursor after every coordinate was given units until it has `each` open, as far
        as there are some; the last ones go from who has several to who has none.

        Args:
            units: of the epoch.
        """
        opened, following = list(self.open), self.next
        held = Counter(unit.owner for unit in opened)
        fewest = [(held[owner], owner) for owner in range(self.world)]
        heapify(fewest)
        while following < units and fewest[0][0] < each:
            count, owner = fewest[0]
            heapreplace(fewest, (count + 1, owner))
            opened.append(OpenUnit(following, owner))
            following += 1
        if following >= units:
            _share_last(opened, self.world)
        return replace(self, open=tuple(opened), next=following)

    def after(self, said: Iterable[Progress]) -> StreamCursor:
        """Return the cursor once so much of open units is read, those that ended left out."""
        by_number = {one.number: one for one in said}
        opened = []
        for unit in self.open:
            told = by_number.get(unit.number)
            if told is None:
                opened.append(unit)
            elif not told.ended:
                opened.append(replace(unit, taken=told.taken, part=told.part))
        return replace(self, open=tuple(opened))

    def over(self, units: int) -> bool:
        """Return whether the epoch has no further sample."""
        return self.next >= units and not self.open

    def next_epoch(self) -> StreamCursor:
        return replace(self, epoch=self.epoch + 1, next=0, open=(), shards=None)

    def to_state(self) -> dict[str, Any]:
        shards = self.shards
        return {
            "epoch": self.epoch,
            "step": self.step,
            "next": self.next,
            "open": [[one.number, one.owner, one.taken, one.part] for one in self.open],
            "world": self.world,
            "samples": self.samples,
            "tokens": self.tokens,
            "shards": None if shards is None else list(shards.names),
            "counts": None if shards is None or shards.counts is None else list(shards.counts),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StreamCursor:
        shards = None
        if state["shards"] is not None:
            counts = state["counts"]
            names = tuple(state["shards"])
            shards = ShardList(names, None if counts is None else tuple(counts))
        return cls(
            epoch=state["epoch"],
            step=state["step"],
            next=state["next"],
            open=tuple(OpenUnit(*one) for one in state["open"]),
            world=state["world"],
            samples=state["samples"],
            tokens=state["tokens"],
            shards=shards,
        )


def _share_last(opened: list[OpenUnit], world: int) -> None:
    """Give who has no unit the last one of who has most, unless that is its only one."""
    places: list[list[int]] = [[] for _ in range(world)]
    for place, unit in enumerate(opened):
        places[unit.owner].append(place)
    most = [(-len(found), owner) for owner, found in enumerate(places) if len(found) > 1]
    heapify(most)
    for idle in (owner for owner in range(world) if not places[owner]):
        if not most:
            break
        count, giver = most[0]
        place = places[giver].pop()
        opened[place] = replace(opened[place], owner=idle)
        if count < -2:
            heapreplace(most, (count + 1, giver))
        else:
            heappop(most)


def order(units: Sequence[Unit], *, seed: int, epoch: int, shuffled: bool) -> list[Unit]:
    """Return an epoch's units in the order in which they are handed to ranks."""
    if not shuffled or len(units) < 2:
        return list(units)
    permutation = Permutation(len(units), seed=seed, epoch=epoch)
    return [units[number] for number in permutation.slice(0, len(units)).tolist()]
