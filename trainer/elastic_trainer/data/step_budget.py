"""How much of its samples a rank takes in one step: so many, so many tokens, or rows full. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

IGNORED = -100
"""The label of what isn't predicted, as torch's cross_entropy ignores it."""


class StepBudget(Protocol):
    """Takes samples of a step until it is full."""

    full: bool

    def offer(self, sample: Any, part: int) -> int | None:
        """Take the sample, from its token `part` on. Return None if there is no room for it; else
        0, or the tokens of it that are taken where only its beginning found room.

        Raises:
            ValueError: it would find room in no step.
        """

    @property
    def weight(self) -> int:
        """The weight of this rank's part in the step's mean loss: samples, or tokens."""

    def batches(self, parts: int, spare: Any) -> list[tuple[Any, int]]:
        """Return the step's batches, as lists of samples or as rows, each with what it counts.

        Args:
            parts: how many.
            spare: a sample for a batch that would be empty, where samples are batched.
        """


class SampleBudget:
    """So many samples."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._taken: list[Any] = []
        self.full = samples == 0

    def enlarge(self, samples: int) -> None:
        """Take so many more, which another rank hasn't."""
        self._samples += samples
        self.full = len(self._taken) == self._samples

    def offer(self, sample: Any, part: int) -> int | None:
        if self.full:
            return None
        self._taken.append(sample)
        self.full = len(self._taken) == self._samples
        return 0

    @property
    def weight(self) -> int:
        return len(self._taken)

    def batches(self, parts: int, spare: Any) -> list[tuple[Any, int]]:
        taken = self._taken
        bounds = [len(taken) * part // parts for part in range(parts + 1)]
        cut = [taken[bounds[n] : bounds[n + 1]] for n in range(parts)]
        return [(batch or [spare], len(batch)) for batch in cut]


class TokenBudget:
    """Samples of so many tokens in all, at most."""

    def __init__(self, most: int, tokens: Callable[[Any], int]) -> None:
        self._most = most
        self._tokens = tokens
        self._taken: list[Any] = []
        self._sum = 0
        self.full = False

    def offer(self, sample: Any, part: int) -> int | None:
        tokens = self._tokens(sample)
        if not 0 < tokens <= self._most:
            raise ValueError(
                f"a sample of {tokens} tokens: expected 1 to max_tokens={self._most}; cut or leave "
                "it out in `read`, so that it is known which samples there are"
            )
        if self._sum + tokens > self._most:
            self.full = True
            return None
        self._taken.append(sample)
        self._sum += tokens
        self.full = self._sum == self._most
        return 0

    @property
    def weight(self) -> int:
        return self._sum

    def batches(self, parts: int, spare: Any) -> list[tuple[Any, int]]:
        return [(self._taken or [spare], self._sum)]


@dataclass(frozen=True, slots=True)
class Packing:
    """Samples of tokens, laid one after another into `rows` rows of `length` tokens.

        data = ElasticStream(shards, read=read, pack=Packing(rows=8, length=4096), epochs=1)

    A sample is a sequence of token ids, or a mapping with `input_ids` and perhaps `labels` of the
    same length. A batch is a dict of tensors [rows, length]:

    * `input_ids`, 0 where a row is not full;
    * `labels`, as models of Hugging Face want them, who predict label t+1 from input t: -100 at
      padding, and at the first token of each document, which nothing before it tells of;
    * `position_ids`, from 0 in each document, or part of one;
    * `document_ids`, from 1 in each row, and 0 at padding: who attends to whom.

    Args:
        rows: of a rank in each step.
        length: of a row.
        cut: True: a document goes on in the next row, or the next step, where a row is full: no
            padding but at an epoch's end. False: a document is never cut, and comes into the first
            row that has room; one that has more than `length` tokens is refused.
    """

    rows: int
    length: int
    cut: bool = True

    def __post_init__(self) -> None:
        if self.rows < 1 or self.length < 2:
            raise ValueError(
                f"Packing of {self.rows} rows of {self.length} tokens: expected at least 1 row, "
                "and 2 tokens, of which the second is predicted"
            )


class RowBudget:
    """Rows that are full, see Packing."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._rows: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        """Ids and labels of each row's documents."""
        self._free: list[int] = []
        self._targets = 0
        self.full = False

    def offer(self, sample: Any, part: int) -> int | None:
        ids, labels = _tokens(sample)
        packing = self._packing
        if packing.cut:
            return self._fill(ids, labels, part)
        if len(ids) > packing.length:
            raise ValueError(
                f"a document of {len(ids)} tokens: expected at most Packing(length="
                f"{packing.length}), or cut=True"
            )
        place = next((n for n, free in enumerate(self._free) if free >= len(ids)), None)
        if place is None:
            if len(self._rows) == packing.rows:
                self.full = True
                return None
            place = self._new_row()
        self._put(place, ids, labels)
        return 0

    def _fill(self, ids: torch.Tensor, labels: torch.Tensor, part: int) -> int | None:
        while part < len(ids):
            if not self._free or not self._free[-1]:
                if len(self._rows) == self._packing.rows:
                    self.full = True
                    return part or None
                self._new_row()
            stop = min(len(ids), part + self._free[-1])
            self._put(len(self._rows) - 1, ids[part:stop], labels[part:stop])
            part = stop
        self.full = len(self._rows) == self._packing.rows and not self._free[-1]
        return 0

    def _new_row(self) -> int:
        self._rows.append([])
        self._free.append(self._packing.length)
        return len(self._rows) - 1

    def _put(self, place: int, ids: torch.Tensor, labels: torch.Tensor) -> None:
        labels = labels.clone()
        labels[:1] = IGNORED
        self._rows[place].append((ids, labels))
        self._free[place] -= len(ids)
        self._targets += int((labels != IGNORED).sum())

    @property
    def weight(self) -> int:
        return self._targets

    def batches(self, parts: int, spare: Any) -> list[tuple[Any, int]]:
        batch = self._rows_as_tensors()
        if not self._targets:
            # It doesn't count, but a mean over nothing would be no number.
            batch["labels"][0, 1] = batch["input_ids"][0, 1]
        return [(batch, self._targets)]

    def _rows_as_tensors(self) -> dict[str, torch.Tensor]:
        shape = (self._packing.rows, self._packing.length)
        batch = {
            "input_ids": torch.zeros(shape, dtype=torch.int64),
            "labels": torch.full(shape, IGNORED, dtype=torch.int64),
            "position_ids": torch.zeros(shape, dtype=torch.int64),
            "document_ids": torch.zeros(shape, dtype=torch.int64),
        }
        for row, documents in enumerate(self._rows):
            at = 0
            for number, (ids, labels) in enumerate(documents, 1):
                stop = at + len(ids)
                batch["input_ids"][row, at:stop] = ids
                batch["labels"][row, at:stop] = labels
                batch["position_ids"][row, at:stop] = torch.arange(len(ids))
                batch["document_ids"][row, at:stop] = number
                at = stop
        return batch


def _tokens(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sample's token ids and labels."""
    given = sample["input_ids"] if isinstance(sample, Mapping) else sample
    ids = torch.as_tensor(given, dtype=torch.int64)
    labels = ids
    if isinstance(sample, Mapping) and "labels" in sample:
        labels = torch.as_tensor(sample["labels"], dtype=torch.int64)
    if ids.ndim != 1 or labels.shape != ids.shape:
        raise ValueError(
            f"a sample of token ids {tuple(ids.shape)} and labels {tuple(labels.shape)}: expected "
            "one sequence of token ids, or a mapping with input_ids and labels of the same length"
        )
    return ids, labels
