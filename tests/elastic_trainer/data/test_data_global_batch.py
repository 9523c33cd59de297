"""A constant global batch in ElasticLoop, under real torchrun agents, is one process's training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from elastic_trainer.data.audit import verify

from tests.elastic_trainer.small_training import train, training
from tests.elastic_trainer.torchrun_job import Job

SCRIPT = f"""
import json, sys, time
from pathlib import Path
import torch
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.elastic_trainer.small_training import train, training
folder = Path(sys.argv[1])
torch.set_num_threads(1)
loop = training(
    folder / "commits", epochs=100_000, batch_size=4, audit=folder / "audit", num_workers=1
)
def each_step():
    time.sleep(0.01)
    # All ranks see the same step of the same file, so all end alike.
    if (folder / "enough").exists() and loop.steps >= int((folder / "enough").read_text() or 10**9):
        loop.data.epochs = loop.data.cursor.epoch + (loop.data.cursor.position > 0)
parameters = train(loop, each_step)
if loop.rank == 0:
    (folder / "result.json").write_text(json.dumps([loop.data.cursor.epoch, parameters]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


@pytest.mark.process
def test_the_model_is_that_of_one_process(job: Job, tmp_path: Path) -> None:
    job.start(0, 1)
    told = job.stepping(2)
    job.start(2)
    told = job.stepping(3, after_round=told["round"])
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    told = job.stepping(3, after_round=told["round"])
    (job.folder / "soon").write_text(str(told["step"] + 100))
    (job.folder / "soon").rename(job.folder / "enough")
    assert [job.wait(index) for index in (0, 1, 2)] == [0, 0, 0], job.logs()

    epochs, parameters = json.loads((job.folder / "result.json").read_text())
    report = verify(job.folder / "audit", 500, epochs)
    assert report.ok, report
    assert report.steps == epochs * 25  # the same steps, whatever the world
    alone = training(tmp_path / "alone", epochs=epochs)
    torch.testing.assert_close(
        torch.tensor(parameters), torch.tensor(train(alone)), rtol=1e-7, atol=1e-9
    )


def test_a_step_of_several_batches_is_applied_once(tmp_path: Path) -> None:
    whole = train(training(tmp_path / "whole", epochs=2))
    parts = train(training(tmp_path / "parts", epochs=2, batch_size=6))
    assert len(list((tmp_path / "parts").glob("step-*"))) > 0
    torch.testing.assert_close(torch.tensor(parts), torch.tensor(whole), rtol=1e-9, atol=1e-12)
