"""Rounds whose live state others may have gone on from, before they ended without a word."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.store.errors import SupersededError

from tests.elastic_trainer.checkpoint.test_checkpoint import EPOCHS, SAMPLES, Script


def train_apart(folder: Path) -> tuple[Script, Script]:
    """Return a script at step 3, and others' that went on from step 2 to 6, committed."""
    script = Script(folder, to=f"{folder}/commits", every=2, storage_patience=timedelta(0))
    script.train(3)
    others = Script(folder, to=f"{folder}/commits", every=1, wall=lambda: time.time() + 60)
    others.train(4)
    assert (script.data.steps, others.data.steps) == (3, 6)
    return script, others


def begin_round(script: Script, *, contested: bool) -> None:
    link = WorkerLink(None)
    link._on_place(Place(2, 0, 1, "", 0, contested=contested))
    script.checkpointer._restorer._link = link
    script.checkpointer.restore((script.checkpointer.run, script.data.steps))


def test_a_live_state_gives_way_to_what_others_committed_before_they_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, others = train_apart(tmp_path)
    begin_round(script, contested=True)
    assert script.data.steps == 6
    assert all(map(torch.equal, script.parameters, others.parameters))
    assert "step 3 of run" in caplog.text and "gave way to step 6 of run" in caplog.text
    script.train()
    report = verify(tmp_path / "audit", SAMPLES, EPOCHS)
    assert report.ok and report.undone, "step 3, made twice, counts once"


def test_a_live_state_that_is_newer_than_all_commits_goes_on(tmp_path: Path) -> None:
    script = Script(tmp_path, every=2)
    script.train(3)
    begin_round(script, contested=True)
    assert script.data.steps == 3
    script.train()
    assert verify(tmp_path / "audit", SAMPLES, EPOCHS).ok


def test_without_an_answer_of_storage_it_goes_on_but_no_commit_of_it_hides_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, _ = train_apart(tmp_path)
    (tmp_path / "commits").rename(tmp_path / "unmounted")
    begin_round(script, contested=True)
    assert script.data.steps == 3 and "no later commit will be taken" in caplog.text
    (tmp_path / "unmounted").rename(tmp_path / "commits")
    with pytest.raises(SupersededError, match="was taken over by run"):
        script.train(2)
    # Whoever lives on asks in the next round, which is not contested by itself.
    begin_round(script, contested=False)
    assert script.data.steps == 6
    script.train()
    assert verify(tmp_path / "audit", SAMPLES, EPOCHS).ok
