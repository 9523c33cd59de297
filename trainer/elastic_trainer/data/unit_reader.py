"""UnitReader: the samples of one unit, in an order that needs no memory of what was read."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from elastic_trainer.data.stream_cursor import Unit
from elastic_trainer.retry import RetryPolicy, describe
from elastic_trainer.shards.permutation import Permutation
from elastic_trainer.store.errors import StorageError, is_transient

Read = Callable[[str], Iterable[Any] | Sequence[Any]]

PLAIN_WINDOW = 64
"""Samples that are read in one go where none are shuffled."""


class ShardError(StorageError):
    """A shard can't be read, or isn't what was said of it."""


Window = list[tuple[int, Any]]
"""Samples with their indexes in the shard, in the order in which they are consumed."""


class UnitReader:
    """Gives the n-th sample of a unit. Samples are shuffled within windows of so many: the n-th one
    is known by its number alone, and going on from it costs reading one window again.

    The next window is read in the background. A window that was begun is kept, and the one before
    it, so that a step that is done again needs no second reading.

    Args:
        unit: what to read.
        read: opens a shard: its samples, always in the same order. What can be indexed and has a
            length is read by index, all else from its beginning.
        window: samples that are shuffled among themselves; 0: none are.
        seed: of that order.
        policy: for how long a shard that can't be read is tried again.

    Raises:
        ShardError: at a sample, it can't be read, or has more or fewer samples than the unit.
    """

    def __init__(
        self, unit: Unit, read: Read, *, window: int, seed: str, policy: RetryPolicy
    ) -> None:
        self.unit = unit
        self._read = read
        self._shuffled = window > 1
        self._size = max(1, window) if self._shuffled else PLAIN_WINDOW
        self._seed = seed
        self._policy = policy
        self._windows: dict[int, Window] = {}
        self._last: int | None = None
        """The window after which there is none."""
        self._ahead: tuple[int, _Answer] | None = None
        # Of whoever reads, one at a time:
        self._samples: Iterator[Any] | None = None
        self._at = 0
        """The number in the unit of the sample that comes next."""

    def sample(self, number: int) -> tuple[int, Any] | None:
        """Return the sample with its index in the shard; None beyond the unit's end."""
        place, within = divmod(number, self._size)
        window = self._window(place)
        return window[within] if within < len(window) else None

    def prepare(self, number: int) -> None:
        """Begin to read, in the background, where the n-th sample is."""
        self._start(number // self._size)

    def _window(self, place: int) -> Window:
        if self._last is not None and place > self._last:
            return []
        if place not in self._windows:
            if self._ahead is None or self._ahead[0] != place:
                if self._ahead is not None:
                    self._ahead[1].wait()
                self._ahead = (place, _Answer(lambda: self._load(place)))
            answer = self._ahead[1]
            self._ahead = None
            found = answer.result()
            self._windows = {place - 1: self._windows.get(place - 1, []), place: found}
            if not self._windows[place - 1]:
                del self._windows[place - 1]
            stop = self.unit.stop
            complete = stop is not None and (place + 1) * self._size >= stop - self.unit.start
            if len(found) < self._size or complete:
                self._last = place
            else:
                self._start(place + 1)
        return self._windows[place]

    def _start(self, place: int) -> None:
        if self._ahead is None and place not in self._windows:
            self._ahead = (place, _Answer(lambda: self._load(place)))

    def _load(self, place: int) -> Window:
        start = place * self._size
        try:
            samples = self._policy.call(
                lambda: self._samples_from(start),
                transient=is_transient,
                what=f"shard {self.unit.shard!r}",
            )
        except ShardError:
            raise
        except Exception as error:
            self._samples = None
            for_so_long = f", tried for {self._policy.seconds:g} s" if is_transient(error) else ""
            raise ShardError(
                f"shard {self.unit.shard!r} can't be read from sample {self.unit.start + start} on"
                f"{for_so_long}: {type(error).__name__}: {describe(error)}; expected what `read` "
                "opens to give the same samples each time: mend the shard or `read`, nothing is "
                "passed over"
            ) from error
        numbered = [(self.unit.start + start + n, sample) for n, sample in enumerate(samples)]
        if self._shuffled and len(samples) > 1:
            seed = hashlib.blake2b(f"{self._seed}/{place}".encode(), digest_size=8).digest()
            permutation = Permutation(len(samples), seed=int.from_bytes(seed, "little"), epoch=0)
            numbered = [numbered[n] for n in permutation.slice(0, len(samples)).tolist()]
        return numbered

    def _samples_from(self, start: int) -> list[Any]:
        unit = self.unit
        wanted = self._size
        if unit.stop is not None:
            wanted = max(0, min(wanted, unit.stop - unit.start - start))
        try:
            if self._samples is None or self._at != start:
                self._open(start)
            assert self._samples is not None
            samples = list(islice(self._samples, wanted))
        except Exception:
            self._samples = None  # the next try begins anew
            raise
        self._at = start + len(samples)
        if len(samples) < wanted and unit.stop is not None:
            raise ShardError(
                f"shard {unit.shard!r} ended after {unit.start + self._at} samples: expected "
                f"{unit.stop} at least, by the counts given with the list of shards"
            )
        if unit.ends and unit.stop == unit.start + self._at and self._more():
            raise ShardError(
                f"shard {unit.shard!r} has more than {unit.stop} samples: expected as many as the "
                "counts given with the list of shards say, or all others would be lost"
            )
        return samples

    def _more(self) -> bool:
        assert self._samples is not None
        self._at += 1
        return bool(list(islice(self._samples, 1)))

    def _open(self, start: int) -> None:
        opened: Any = self._read(self.unit.shard)
        begin = self.unit.start + start
        if hasattr(opened, "__getitem__") and hasattr(opened, "__len__"):
            self._samples = (opened[n] for n in range(begin, len(opened)))
        else:
            self._samples = iter(opened)
            skipped = sum(1 for _ in islice(self._samples, begin))
            if skipped < begin:
                raise ShardError(
                    f"shard {self.unit.shard!r} has {skipped} samples: expected more than {begin}, "
                    "which were consumed; is it another one than when the epoch began?"
                )
        self._at = start


class _Answer:
    """The result or error of a function called in a thread of its own."""

    def __init__(self, function: Callable[[], Window]) -> None:
        self._function = function
        self._found: Window = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._function()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Window:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found
