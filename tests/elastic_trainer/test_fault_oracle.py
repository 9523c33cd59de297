"""The fault harness's oracle tells a job that lost something from one that did not."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_trainer.data.audit import AuditLog, RunStart
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.fault_job import SAMPLES
from tests.elastic_trainer.fault_oracle import check_commits, check_last_step, check_samples
from tests.elastic_trainer.store.small_commits import commit


def make_run(folder: Path, run: int, parent: int, start: int, steps: int) -> None:
    """Return a run of an epoch in four steps."""
    size = SAMPLES // 4
    log = AuditLog(folder / "audit", RunStart(run, 1, 0, 1, start, parent))
    for step in range(start, start + steps):
        indices = range(step * size, (step + 1) * size)
        log.took(step=step + 1, epoch=0, indices=indices)
        log.applied(step + 1)
    log.close()


def test_a_rerun_that_finds_nothing_left_to_train_is_right(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 2)
    make_run(tmp_path, 2, 1, 2, 2)
    make_run(tmp_path, 3, 2, 4, 0)
    assert check_samples(tmp_path, 1).steps == 4
    check_commits(tmp_path, {(1, 2), (2, 4)}, set())


def test_a_rerun_that_trains_again_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 4)
    make_run(tmp_path, 2, 1, 3, 1)
    with pytest.raises(AssertionError, match="all made the last step"):
        check_samples(tmp_path, 1)


def test_lost_and_repeated_samples_are_told(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 3)
    with pytest.raises(AssertionError, match=f"lost={SAMPLES // 4}"):
        check_samples(tmp_path, 1)


def test_a_commit_that_an_older_one_won_over_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 3)
    make_run(tmp_path, 2, 1, 2, 2)
    check_commits(tmp_path, {(1, 3)}, damaged={(1, 3)})
    with pytest.raises(AssertionError, match="descend"):
        check_commits(tmp_path, {(1, 3)}, set())


def test_a_start_from_scratch_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 2)
    make_run(tmp_path, 2, 0, 0, 1)
    make_run(tmp_path, 3, 1, 2, 2)
    with pytest.raises(AssertionError, match="from scratch"):
        check_commits(tmp_path, {(1, 2)}, set())


def test_a_last_step_that_is_not_in_the_folder_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, 1, 0, 0, 4)
    report = check_samples(tmp_path, 1)
    storage = Storage(tmp_path / "commits")
    with pytest.raises(
        AssertionError, match="ended at step 4, its newest usable commit is of None"
    ):
        check_last_step(tmp_path, report)
    commit(storage, 3)
    with pytest.raises(AssertionError, match="ended at step 4, its newest usable commit is of 3"):
        check_last_step(tmp_path, report)
    commit(storage, 4)
    check_last_step(tmp_path, report)
