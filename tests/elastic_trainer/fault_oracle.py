"""Says whether a job that went through faults lost, repeated or forgot anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from elastic_trainer.data.audit import Report, _runs, verify
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.fault_job import MODEL, SAMPLES, SEED
from tests.elastic_trainer.fault_replay import deviation, history

Identity = tuple[int, int]
"""Run and step of a commit."""


def check_samples(folder: Path, epochs: int, shards: Mapping[str, int] | None = None) -> Report:
    """Every sample of every epoch once, nothing from scratch, and the last step made once."""
    report = verify(folder / "audit", SAMPLES, epochs, shards)
    assert report.ok, report
    runs = _runs(folder / "audit")
    last = max(run.applied for run in runs.values())
    makers = [n for n, run in runs.items() if run.start.start_step < last == run.applied]
    assert len(makers) == 1, f"runs {makers} all made the last step, {last}"
    return report


def check_commits(folder: Path, seen: Collection[Identity], damaged: Collection[Identity]) -> None:
    """The final model descends from each commit, and no run began from nothing beside one."""
    _, until = history(folder / "audit")
    lost = sorted(
        (run, step) for run, step in set(seen) - set(damaged) if step > until.get(run, -1)
    )
    assert not lost, f"the final model doesn't descend from {len(lost)} of {len(seen)}: {lost}"
    if not seen:
        return
    first = min(run for run, _ in seen)
    runs = _runs(folder / "audit")
    scratch = [n for n, run in runs.items() if n > first and not run.start.parent]
    assert not scratch, f"runs {scratch} began from scratch, after run {first} had a commit"


def check_last_step(folder: Path, report: Report) -> None:
    """The final model's last step is in the folder, in the newest of its usable commits."""
    newest = Storage(folder / "commits").newest()
    found = newest.step if newest is not None else None
    assert found == report.steps, (
        f"the job ended at step {report.steps}, its newest usable commit is of {found}"
    )


def check_model(
    folder: Path,
    report: Report,
    tolerance: float,
    shards: Mapping[str, int] | None = None,
    model: str = MODEL,
    device: str = "cpu",
) -> float:
    """The final model, and what was exported, is what its own steps give in one process."""
    steps, _ = history(folder / "audit", shards)
    difference, batches = deviation(model, SEED, steps, folder, device)
    assert difference <= tolerance, f"the model differs from a replay of its steps by {difference}"
    assert batches == report.steps, f"batch norm counted {batches} of {report.steps} steps"
    return difference
