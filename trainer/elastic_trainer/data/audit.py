"""Proof that no sample was lost or repeated: what each rank took, and what of it counts.

A *run* is one life of a set of worker processes between two rendezvous rounds; runs are numbered
across the whole life of the folder, whatever becomes of the coordinator. Each rank of a run appends
to a file of its own:

    {"run", "round", "rank", "world", "start_step", "parent"}   first line
    {"round", "step", "rank", "epoch", "indices"}               a batch was handed out for this step
    {"round", "step", "rank", "epoch", "shards"}                the same of a stream's shards
    {"applied": step}                                           the optimizer has applied the step

`parent` is the run whose commit this one continues, and `start_step` that commit's step. So the
history of the final model is a chain from the last run back: of each run count the steps after its
own start, up to the start of the run that continues it. All else was undone by a rollback.

The batch's line is written *before* the batch is used, not after the step: a step can't be applied
(nor committed by rank 0) until every rank has contributed its gradient, hence its line. A rank
killed between the all-reduce and the end of its step therefore leaves a complete record.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FILE = re.compile(r"run-(\d+)-rank-(\d+)\.jsonl")


class AuditError(Exception):
    """The record can't be read, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The first line of a rank's file."""

    run: int
    round: int
    rank: int
    world: int
    start_step: int
    parent: int
    """The run whose commit of `start_step` this run continues; 0: it began from nothing."""


class AuditLog:
    """One rank's record of one run. Lines reach the kernel at once: SIGKILL loses none."""

    def __init__(self, folder: Path, start: RunStart) -> None:
        """Raises AuditError: the folder can't be written, or this rank of the run has a record."""
        path = folder / f"run-{start.run:06d}-rank-{start.rank:05d}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise AuditError(
                f"cannot start the audit record {path}: {error.strerror}; "
                "give ElasticDataset(audit=...) a folder that this process can write"
            ) from error
        self._start = start
        self._append(asdict(start))

    def took(
        self,
        *,
        step: int,
        epoch: int,
        indices: Sequence[int] = (),
        shards: Mapping[str, list[int]] | None = None,
    ) -> None:
        """A batch was handed out for the step that will be number `step`.

        Args:
            shards: of a stream, the indexes by shard; in place of `indices`.
        """
        line = {"round": self._start.round, "step": step, "rank": self._start.rank}
        if shards is None:
            self._append({**line, "epoch": epoch, "indices": list(indices)})
        else:
            self._append(
                {**line, "epoch": epoch, "shards": {k: list(v) for k, v in shards.items()}}
            )

    def applied(self, step: int) -> None:
        self._append({"applied": step})

    def close(self) -> None:
        self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[self._file.write(text) :]


def last_run(folder: Path) -> int:
    """The highest run number with a record in the folder; 0 if there is none."""
    if not folder.is_dir():
        return 0
    found = (_FILE.fullmatch(entry.name) for entry in folder.iterdir())
    return max((int(match[1]) for match in found if match), default=0)


@dataclass(frozen=True, slots=True)
class Report:
    epochs: int
    samples: int
    """Samples of one epoch."""
    seen: int
    """Pairs (epoch, sample) that the final model has seen; epochs * samples is all of them."""
    lost: int
    """Pairs (epoch, sample) never seen."""
    repeated: int
    """Times that a sample was seen again in an epoch that already had it."""
    unexpected: int
    """Samples seen that are outside the data or beyond the last epoch."""
    undone: int
    """Samples whose step was applied, then undone by a rollback."""
    steps: int
    runs: int

    @property
    def ok(self) -> bool:
        return not (self.lost or self.repeated or self.unexpected)


@dataclass(frozen=True, slots=True)
class _Run:
    start: RunStart
    files: tuple[Path, ...]
    applied: int
    """The last step that any of its ranks applied."""


def verify(
    folder: Path, samples: int, epochs: int, shards: Mapping[str, int] | None = None
) -> Report:
    """Count every index of every epoch in the history of the final model.

    Args:
        shards: of a stream, how many samples each shard has, in all `samples`; one of another name
            is unexpected.

    Raises:
        AuditError: no record in the folder, or one that can't be right.
    """
    runs = _runs(folder)
    until = _history(runs)
    counts: NDArray[np.uint32] = np.zeros((epochs, samples), dtype=np.uint32)
    unexpected = undone = 0
    starts = first_numbers(shards or {})
    for number, run in runs.items():
        for file in run.files:
            for step, epoch, indices in _batches(file, run.applied, starts):
                if not run.start.start_step < step <= until.get(number, -1):
                    undone += indices.size
                    continue
                inside = indices[(indices >= 0) & (indices < samples)]
                if not 0 <= epoch < epochs:
                    inside = inside[:0]
                else:
                    np.add.at(counts[epoch], inside, 1)
                unexpected += indices.size - inside.size
    seen = int(np.count_nonzero(counts))
    return Report(
        epochs=epochs,
        samples=samples,
        seen=seen,
        lost=epochs * samples - seen,
        repeated=int(counts.sum()) - seen,
        unexpected=int(unexpected),
        undone=int(undone),
        steps=max(until.values(), default=0),
        runs=len(runs),
    )


def _runs(folder: Path) -> dict[int, _Run]:
    if not folder.is_dir():
        raise AuditError(f"no audit folder at {folder}: expected what ElasticDataset(audit=) wrote")
    starts: dict[int, RunStart] = {}
    files: dict[int, list[Path]] = {}
    applied: dict[int, int] = {}
    for path in sorted(folder.iterdir()):
        if not _FILE.fullmatch(path.name):
            continue
        lines = _lines(path)
        first = next(lines, None)
        if first is None:
            continue  # killed within its first write, so before its first batch
        try:
            start = RunStart(**first)
        except TypeError as error:
            raise AuditError(f"{path}:1: not the first line of a record: {error}") from None
        known = starts.setdefault(start.run, start)
        if (known.start_step, known.parent, known.world) != (
            start.start_step,
            start.parent,
            start.world,
        ):
            raise AuditError(f"{path}: ranks {known.rank} and {start.rank} disagree on the run")
        files.setdefault(start.run, []).append(path)
        done = max((line["applied"] for line in lines if "applied" in line), default=0)
        applied[start.run] = max(applied.get(start.run, start.start_step), done)
    if not starts:
        raise AuditError(f"no audit record in {folder}: expected run-*-rank-*.jsonl files")
    return {run: _Run(starts[run], tuple(files[run]), applied[run]) for run in starts}


def _history(runs: dict[int, _Run]) -> dict[int, int]:
    """The last step that counts, of each run that the final model descends from."""
    number = max(runs)
    until = {number: runs[number].applied}
    while parent := runs[number].start.parent:
        if parent not in runs or parent >= number:
            raise AuditError(
                f"run {number} continues run {parent}, which has no record here that is older: "
                "was a part of the folder deleted?"
            )
        until[parent] = runs[number].start.start_step
        number = parent
    return until


def first_numbers(shards: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the number of each shard's first sample, where they are counted through in this order,
    and how many it has."""
    starts = accumulate(shards.values(), initial=0)
    return {
        name: (start, count) for (name, count), start in zip(shards.items(), starts, strict=False)
    }


def _batches(
    path: Path, applied: int, starts: Mapping[str, tuple[int, int]] | None = None
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(step, epoch, indices) of every step up to `applied` that this rank took part in.

    A batch handed out twice before its step was applied (the script iterated anew) counts once.
    """
    waiting: dict[int, dict[str, Any]] = {}
    for line in _lines(path):
        if "indices" in line or "shards" in line:
            waiting[line["step"]] = line
        if "applied" in line:
            for step in [step for step in waiting if step <= line["applied"]]:
                yield _batch(waiting.pop(step), starts or {})
    # Left over: this rank was killed before it could say so, while another rank did apply the step.
    for step in sorted(waiting):
        if step <= applied:
            yield _batch(waiting[step], starts or {})


def _batch(
    line: dict[str, Any], starts: Mapping[str, tuple[int, int]]
) -> tuple[int, int, NDArray[np.int64]]:
    indices = line.get("indices")
    if indices is None:
        indices = []
        for shard, found in line["shards"].items():
            start, count = starts.get(shard, (0, 0))
            indices += [start + index if index < count else -1 for index in found]
    return line["step"], line["epoch"], np.asarray(indices, dtype=np.int64)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """A line without its newline is one that SIGKILL cut short: nothing after it happened."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            try:
                yield json.loads(text)
            except ValueError as error:
                raise AuditError(f"{path}:{number}: not JSON: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.data.audit",
        description="Count every sample of every epoch in an audit folder. Exit code 0: each seen "
        "exactly once; 1: some lost or repeated; 2: the record can't be read.",
    )
    parser.add_argument("folder", type=Path)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--samples", type=int, help="samples of one epoch")
    size.add_argument(
        "--shards", type=Path, help='of a stream: a JSON file, {"name of a shard": its samples}'
    )
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line")
    options = parser.parse_args(arguments)
    shards = None
    if options.shards is not None:
        try:
            shards = {str(k): int(v) for k, v in json.loads(options.shards.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            parser.error(f'--shards {options.shards}: expected {{"name": samples}}: {error}')
    samples = options.samples if shards is None else sum(shards.values())
    if samples < 1 or options.epochs < 1:
        parser.error("samples and --epochs: expected at least 1")
    try:
        report = verify(options.folder, samples, options.epochs, shards)
    except AuditError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({**asdict(report), "ok": report.ok}))
    else:
        print(
            f"{report.epochs} epochs of {report.samples} samples in {report.steps} steps and "
            f"{report.runs} runs: {report.lost} lost, {report.repeated} repeated, "
            f"{report.unexpected} unexpected ({report.undone} undone by rollbacks and done again)"
        )
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
