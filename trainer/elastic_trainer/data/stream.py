"""ElasticStream: shards in, this rank's batches out, every sample once an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from elastic_trainer.data.elastic_data import ElasticData, whole
from elastic_trainer.data.sample_copy import copy_sample
from elastic_trainer.data.seeded import kept_generators, seed_generators_by
from elastic_trainer.data.step_budget import (
    Packing,
    RowBudget,
    SampleBudget,
    StepBudget,
    TokenBudget,
)
from elastic_trainer.data.stream_cursor import (
    Progress,
    ShardList,
    StreamCursor,
    Unit,
    order,
)
from elastic_trainer.data.unit_draw import UnitDraw
from elastic_trainer.data.unit_reader import Read, UnitReader
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.retry import storage_policy

if TYPE_CHECKING:
    from elastic_trainer.data.coordinate import Mesh

Shards = Sequence[str] | Mapping[str, int]


class ElasticStream(ElasticData):
    """All epochs of a list of shards in one iteration, shared among the ranks.

        data = ElasticStream(
            sorted(glob("web/*.tar")), read=tar_samples, batch_size=32, epochs=1
        )
        loop = ElasticLoop("commits", model=net, optimizer=optimizer, data=data)
        for batch in loop:
            with loop.step():
                (loop.weight * loss(loop.model(batch["images"]), batch["labels"])).backward()

    Each rank reads shards of its own, one after another. Which ones, and how far, is the cursor:
    the ranks tell one another at each step, so that all hold the same one, and it is in each
    commit. Where the world changes, shards that were begun go on from their sample with another
    rank. So each sample is consumed once an epoch, whatever joins, leaves or is lost, whichever
    rank reads it; in a world that doesn't change the batches are the same, too, however often
    training was interrupted.

    A step is one of these: `batch_size` samples on each rank; `global_batch` on all together, in
    batches of `batch_size` at most; samples of `max_tokens` tokens at most on each rank; or
    `pack`, rows full of tokens. What doesn't fit stays in the shard, for the next step. Ranks may
    have less, or nothing, where shards end: multiply the mean loss, over samples or over tokens
    where these are counted, by `weight`.

    Args:
        shards: their names; or names with how many samples each has; or a function that returns
            either, which rank 0 asks where an epoch begins, so that the epoch has all that are
            there then and nothing that comes later. An epoch that was begun keeps its list, which
            is in the commit, whatever is given here after a restart.
        read: opens a shard by its name: an iterable of its samples, always the same ones in the
            same order. It is called in a thread beside the training's, so random numbers belong
            into `transform`. What can be indexed and has a length is read by index.
        epochs: how often all shards are passed.
        batch_size: most samples of a batch on a rank.
        global_batch: samples of a full step on all ranks together.
        max_tokens: most tokens of a step on a rank.
        tokens: the tokens of a sample, for `max_tokens`.
        pack: rows of tokens, in place of samples.
        shuffle: samples of a shard that are shuffled among themselves, which are in memory for
            each shard that is open; 0: no shuffling, of shards neither.
        interleave: shards that a rank reads at once; each sample is of one of them, by chance.
        unit: where samples are counted, most of them that one rank reads of a shard in one go.
        transform: makes a sample of a copy of what was read, in this process; `torch`,
            `numpy.random` and `random` are seeded for each by (seed, epoch, shard, index). It may
            be called again for a sample that had no room in a step.
        collate: list of samples -> batch. With `max_tokens` the list itself is the default.
        seed: of the order; a restart must use the same.
        audit: a folder, shared by the ranks, for what `elastic_trainer.data.audit` verifies.
        group, mesh: as ElasticDataset's.
        patience: for how long a shard that can't be read is tried again; None: what
            VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS says, else 60 s.

    Raises:
        ValueError, TypeError: no step is given, or two of them; a number below 1; shards that are
            listed twice.
        ShardError: where it is iterated, a shard can't be read or isn't what was said of it. No
            shard is passed over.
    """

    cursor: StreamCursor
    _ahead: StreamCursor | None
    agrees = True

    def __init__(
        self,
        shards: Shards | Callable[[], Shards],
        *,
        read: Read,
        epochs: int,
        batch_size: int | None = None,
        global_batch: int | None = None,
        max_tokens: int | None = None,
        tokens: Callable[[Any], int] = len,
        pack: Packing | None = None,
        shuffle: int = 1000,
        interleave: int = 1,
        unit: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        seed: int = 0,
        audit: str | Path | None = None,
        group: ProcessGroup | None = None,
        mesh: Mesh | None = None,
        patience: timedelta | None = None,
    ) -> None:
        super().__init__(seed=seed, audit=audit, group=group, mesh=mesh)
        kinds = [batch_size is not None or global_batch is not None, bool(max_tokens), bool(pack)]
        if sum(kinds) != 1:
            raise ValueError(
                "expected one kind of step: batch_size, global_batch or both; or max_tokens; or "
                "pack=Packing(rows, length)"
            )
        for name, value in (
            ("epochs", epochs),
            ("batch_size", batch_size),
            ("global_batch", global_batch),
            ("max_tokens", max_tokens),
            ("interleave", interleave),
            ("unit", unit),
        ):
            if value is not None and whole(name, value) < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        if whole("shuffle", shuffle) < 0:
            raise ValueError(f"shuffle is {shuffle}: expected a number of samples, or 0")
        if isinstance(shards, str | Path):
            raise TypeError(f"shards is one name, {str(shards)!r}: expected a list of names")
        self._shards = shards if callable(shards) else ShardList.of(shards)
        self.epochs = epochs
        self.batch_size = batch_size
        self.global_batch = global_batch
        self.max_tokens = max_tokens
        self.pack = pack
        self.shuffle = shuffle
        self.interleave = interleave
        self.unit = unit
        self._tokens = tokens
        self._read = read
        self._transform = transform
        self._collate = collate
        self._policy = storage_policy(None if patience is None else patience.total_seconds())
        self.cursor = StreamCursor()
        self._units: tuple[int, ShardList, list[Unit]] | None = None
        self._readers: dict[tuple[int, int], UnitReader] = {}
        self._spared: tuple[tuple[int, int], Any] | None = None

    # ---- sizes

    @property
    def batch(self) -> int:
        """Samples of a full step over all ranks, or its tokens where these are counted."""
        if self.global_batch is not None:
            return self.global_batch
        if self.pack is not None:
            return self.pack.rows * self.pack.length * self.coordinate.world
        return (self.batch_size or self.max_tokens or 0) * self.coordinate.world

    @property
    def consumed(self) -> int:
        return self.cursor.samples

    @property
    def total(self) -> int:
        """Samples of all epochs; 0 where that isn't known before they were read."""
        return 0 if callable(self._shards) else self._shards.samples * self.epochs

    def _budget(self) -> StepBudget:
        if self.pack is not None:
            return RowBudget(self.pack)
        if self.max_tokens is not None:
            return TokenBudget(self.max_tokens, self._tokens)
        if self.global_batch is None:
            return SampleBudget(self.batch_size or 1)
        each, extra = divmod(self.global_batch, self.coordinate.world)
        return SampleBudget(each + (self.coordinate.rank < extra))

    # ---- batches

    def __iter__(self) -> Iterator[Any]:
        self._begin_alone()
        at = self._ahead = self.cursor
        while True:
            at, step = self._step(at)
            if not step:
                return
            for number, batch in enumerate(step, 1):
                self.weight, self.batch_samples = batch.weight, batch.samples
                self.last = number == len(step)
                if self.last:
                    self._ahead = at
                yield batch.content

    def _step(self, at: StreamCursor) -> tuple[StreamCursor, list[_Batch]]:
        """Return the cursor after the next step, and this rank's batches of it; none where the
        epochs have ended."""
        if at.epoch >= self.epochs:
            return at, []
        at = self._begun(at)
        units = self._units_of(at)
        each = self.interleave + 1  # one more, which is opened ahead
        mine = self.coordinate
        budget = self._budget()
        draw = UnitDraw(
            budget,
            lambda number: self._reader(at.epoch, number, units[number]),
            partial(self._prepared, at.epoch),
            interleave=self.interleave,
            seed=f"{self.seed}/{at.epoch}/{at.step}/{mine.rank}",
        )
        now = at.granted(len(units), each)
        while True:
            asked = time.monotonic()
            with kept_generators():
                draw.take([one for one in now.open if one.owner == mine.rank])
            self._waited += time.monotonic() - asked  # for data: not for the other ranks
            said = self._agree(draw, budget)
            now = now.after(one for rank in said for one in rank.progress)
            had = {(one.number, one.owner) for one in now.open}
            now = now.granted(len(units), each)
            given = {one.owner for one in now.open if (one.number, one.owner) not in had}
            # Who lacks a part of its share reads on where it was given something; and somebody has
            # to know of a further sample, so that an epoch's last step is known as such.
            lacking = any(not said[owner].full for owner in given)
            if lacking or (now.open and not any(rank.live for rank in said)):
                continue
            if not self._enlarge(budget, said):
                break
        if not any(rank.pieces for rank in said):
            raise ValueError(
                f"epoch {at.epoch} has no sample in its {len(units)} shards or parts of them: "
                "expected some, or training would never end"
            )
        if mine.first and self._log is not None:
            self._log.took(step=at.step + 1, epoch=at.epoch, shards=draw.taken)
        batches = self._batches(draw, budget, said, partial(self._spare, at.epoch, said, units))
        after = replace(
            now,
            step=at.step + 1,
            samples=at.samples + sum(rank.samples for rank in said),
            tokens=at.tokens + (0 if self._by_samples else sum(rank.weight for rank in said)),
        )
        self._forget(at, after)
        return (after.next_epoch() if after.over(len(units)) else after), batches

    def _enlarge(self, budget: StepBudget, said: Sequence[_Said]) -> bool:
        """Share what is lacking of `global_batch` among those that have more; return whether
        anybody has."""
        if self.global_batch is None:
            return False
        lack = self.global_batch - sum(one.samples for one in said)
        live = [number for number, one in enumerate(said) if one.live]
        if lack <= 0 or not live:
            return False
        if self.coordinate.rank in live:
            assert isinstance(budget, SampleBudget)
            each, extra = divmod(lack, len(live))
            budget.enlarge(each + (live.index(self.coordinate.rank) < extra))
        return True

    def _begun(self, at: StreamCursor) -> StreamCursor:
        """Return the cursor with the epoch's list of shards, which all ranks have from rank 0."""
        if at.shards is None:
            given = self._shards
            if isinstance(given, ShardList):
                found = given
            else:
                found = ShardList.of(given()) if self.group.rank == 0 else ShardList(())
            at = replace(at, shards=self.group.from_rank(0, found))
        return at.regrouped(self.coordinate.world)

    def _units_of(self, at: StreamCursor) -> list[Unit]:
        """Return the epoch's units, in the order in which they are handed to ranks."""
        assert at.shards is not None
        if self._units is None or self._units[:2] != (at.epoch, at.shards):
            units = at.shards.units(self.unit)
            ordered = order(units, seed=self.seed, epoch=at.epoch, shuffled=self.shuffle > 1)
            self._units = (at.epoch, at.shards, ordered)
            self._readers.clear()
        return self._units[2]

    def _agree(self, draw: UnitDraw, budget: StepBudget) -> list[_Said]:
        """Tell the others what this rank has taken; return what each coordinate has."""
        own = _Said(
            draw.progress,
            samples=draw.samples,
            pieces=draw.pieces,
            weight=budget.weight,
            full=budget.full,
            live=draw.live,
            first=draw.first,
        )
        said = self.group.gather(own)
        numbers = self.coordinate.numbers
        speakers = [said[rank] for rank in self.coordinate.speakers]
        for rank, one in enumerate(said):
            if one != speakers[numbers[rank]]:
                raise ValueError(
                    f"rank {rank} has read something else than rank "
                    f"{self.coordinate.speakers[numbers[rank]]}, which has the same data-parallel "
                    "coordinate: expected the same samples in the same order each time that `read` "
                    "opens a shard"
                )
        return speakers

    @property
    def _by_samples(self) -> bool:
        return self.pack is None and self.max_tokens is None

    def _batches(
        self,
        draw: UnitDraw,
        budget: StepBudget,
        said: Sequence[_Said],
        spare: Callable[[], Any],
    ) -> list[_Batch]:
        parts = 1
        if self._by_samples and self.batch_size is not None:
            parts = max(-(-rank.samples // self.batch_size) for rank in said)
        total = sum(rank.weight for rank in said)
        needs_spare = self.pack is None and draw.samples < parts
        found = []
        for content, weight in budget.batches(parts, spare() if needs_spare else None):
            factor = weight * len(said) / max(1, total)
            samples = weight if self._by_samples else draw.samples
            found.append(_Batch(self._collated(content), factor, samples))
        return found

    def _collated(self, content: Any) -> Any:
        if not isinstance(content, list):
            return content  # rows of tokens
        if self._collate is not None:
            return self._collate(content)
        return content if self.max_tokens is not None else default_collate(content)

    def _spare(self, epoch: int, said: Sequence[_Said], units: Sequence[Unit]) -> Any:
        """Return a sample to take part in a step with, for a rank that has none; the same one
        whenever the step is made."""
        number = next(rank.first for rank in said if rank.first is not None)
        if self._spared is None or self._spared[0] != (epoch, number):
            reader = UnitReader(units[number], self._read, window=0, seed="", policy=self._policy)
            found = reader.sample(0)
            assert found is not None
            with kept_generators():
                sample = self._prepared(epoch, units[number].shard, *found)
            self._spared = ((epoch, number), sample)
        return copy_sample(self._spared[1])

    def _reader(self, epoch: int, number: int, unit: Unit) -> UnitReader:
        if (epoch, number) not in self._readers:
            self._readers[epoch, number] = UnitReader(
                unit,
                self._read,
                window=self.shuffle,
                seed=f"{self.seed}/{epoch}/{unit.shard}/{unit.start}",
                policy=self._policy,
            )
        return self._readers[epoch, number]

    def _forget(self, *cursors: StreamCursor) -> None:
        """Close what neither the present step nor the next one reads."""
        rank = self.coordinate.rank
        wanted = {(at.epoch, one.number) for at in cursors for one in at.open if one.owner == rank}
        for key in self._readers.keys() - wanted:
            del self._readers[key]

    def _prepared(self, epoch: int, shard: str, index: int, raw: Any) -> Any:
        if self._transform is None:
            # Packing only reads what it lays into rows.
            return raw if self.pack is not None else copy_sample(raw)
        seed_generators_by(f"{self.seed}/{epoch}/{shard}/{index}")
        return self._transform(copy_sample(raw))

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        return {**self.cursor.to_state(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved cursor, with any world, and any size of step but for `global_batch`.

        Raises:
            ValueError: it was saved for another kind of data, or another order of samples.
        """
        if "open" not in state:
            raise ValueError(
                "the saved cursor is an ElasticDataset's or ElasticSampler's, not an "
                "ElasticStream's: restore the former, or start in a new folder"
            )
        cursor = StreamCursor.from_state(state)
        begun = bool(cursor.next or cursor.open)
        for name, found in self._identity().items():
            if state[name] != found and (begun or name in ("seed", "global_batch")):
                raise ValueError(
                    f"the saved cursor is for {name}={state[name]}, this stream has {name}={found}"
                    f": {_WHY[name]}; restore the former"
                    + ("" if name in ("seed", "global_batch") else " until the epoch's end")
                    + ", or start in a new folder"
                )
        if any(one.part for one in cursor.open) and not (self.pack and self.pack.cut):
            raise ValueError(
                "the saved cursor is within samples that were cut: expected pack=Packing(…, "
                "cut=True) until the epoch's end"
            )
        self.cursor = cursor
        self._ahead = None
        self._readers.clear()

    def _identity(self) -> dict[str, int]:
        """Return the facts that a cursor means nothing without."""
        return {
            "seed": self.seed,
            "global_batch": self.global_batch or 0,
            "shuffle": self.shuffle,
            "unit": self.unit or 0,
        }


_WHY = {
    "seed": "samples would be lost or repeated",
    "global_batch": "steps would be of another size (0: batch_size times the world)",
    "shuffle": "samples would be lost or repeated",
    "unit": "samples would be lost or repeated",
}


@dataclass(frozen=True, slots=True)
class _Batch:
    content: Any
    weight: float
    samples: int


@dataclass(frozen=True, slots=True)
class _Said:
    """The samples that a coordinate has taken in a step."""

    progress: tuple[Progress, ...]
    samples: int
    pieces: int
    weight: int
    full: bool
    live: bool
    """It knows of a further sample."""
    first: int | None
    """The unit that its first sample came from."""
