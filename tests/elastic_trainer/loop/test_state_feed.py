"""Newcomers follow the state of those that train, and join with it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.data.audit import verify
from elastic_trainer.loop.state_feed import FOLLOW_VARIABLE

from tests.elastic_trainer.loop.devices import DEVICE, DEVICES, VARIABLE
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SAMPLES, EPOCHS = 2048, 100

SCRIPT = f"""
import json, logging, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.store.digest import digest_of_replicated

logging.basicConfig(level=logging.INFO)
folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn({SAMPLES}, 8)
{DEVICE}
net = torch.nn.Sequential(
    torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1)
).to(device)
average = torch.optim.swa_utils.AveragedModel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**5)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)),
    batch_size=8, epochs={EPOCHS}, audit=folder / "audit",
)


class Dawdler:  # takes its time where a test wants that of one that follows
    def state_dict(self):
        return {{}}

    def load_state_dict(self, state):
        pod = os.environ["VOLCANO_ELASTIC_POD_INDEX"]
        if os.environ["RANK"] == "-1" and (folder / f"slow-{{pod}}").exists():
            (folder / f"following-{{pod}}").write_text(str(os.getpid()))
            time.sleep(0.4)


def apply():
    dawdler.load_state_dict({{}})
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    average.update_parameters(net)
    schedule.step()


dawdler = Dawdler()
loop = ElasticLoop(
    folder / "commits", model=net, optimizer=optimizer, data=data, every=50, apply=apply,
    extra={{"average": average, "schedule": schedule, "dawdler": dawdler}},
)
for x, y in loop:
    with loop.step():
        x, y = x.to(device), y.to(device)
        (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)  # so that all ranks end alike
    time.sleep(0.01)
    if enough:
        data.epochs = data.cursor.epoch + (data.cursor.position > 0)
(folder / f"end-{{loop.rank}}.json").write_text(json.dumps({{
    "steps": loop.steps,
    "digest": digest_of_replicated(loop.checkpointer.state.take()),
    "average": sum(one.double().sum().item() for one in average.parameters()),
    "schedule": schedule.state_dict()["last_epoch"],
    "epoch": data.cursor.epoch - (data.cursor.position == 0),
}}))
"""


@pytest.fixture(params=DEVICES)
def job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Job]:
    monkeypatch.setenv(VARIABLE, request.param)
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def test_newcomers_follow_and_join_with_the_others_state(job: Job) -> None:
    environment = {FOLLOW_VARIABLE: "0"}
    job.start(0, 1, environment=environment)
    told = job.stepping(2)

    job.start(2, environment=environment)
    told = job.stepping(3, after_round=told["round"])
    assert followed(job, 2) == 1, job.logs()

    os.kill(told["pids"]["1"][0], signal.SIGKILL)  # its agent starts another, a newcomer again
    told = job.stepping(3, after_round=told["round"])
    assert followed(job, 1) == 1, job.logs()

    end_well(job, 0, 1, 2)


def end_well(job: Job, *indexes: int) -> None:
    """Have the job end on these pods; all have the same state, and used each sample once."""
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in indexes] == [0] * len(indexes), job.logs()
    ends = [json.loads(path.read_text()) for path in job.folder.glob("end-*.json")]
    assert len(ends) == len(indexes) and all(end == ends[0] for end in ends)
    assert ends[0]["steps"] == ends[0]["schedule"]
    report = verify(job.folder / "audit", SAMPLES, ends[0]["epoch"] + 1)
    assert report.ok, report


def followed(job: Job, index: int) -> int:
    """Return how often a worker of this pod came with the state that others trained."""
    log = (job.folder / f"agent-{index}.log").read_text()
    assert "could not be followed" not in log, log
    return len(re.findall("this newcomer has followed the others up to step", log))
