"""Clipping, a loss scale, an average of weights and a schedule in apply=, under torchrun agents."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.elastic_trainer.torch_process import TorchProcess
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import hashlib, json, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
NAMES = ("RANK", "ROLE_RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE",
         "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
half = os.environ["HALF"] == "1"
STEPS, BREAK = int(os.environ["STEPS"]), 12
told = open(folder / f"told-{os.getpid()}", "a", buffering=1)
started = {"start": os.environ.get("RANK"), "round": os.environ.get("VOLCANO_ELASTIC_ROUND")}
told.write(json.dumps(started) + "\\n")
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(240, 6)
net = torch.nn.Sequential(
    torch.nn.Linear(6, 16), torch.nn.Dropout(0.2 if half else 0.0), torch.nn.Tanh(),
    torch.nn.Linear(16, 1),
)
targets = inputs.square().sum(1, keepdim=True)
if not half:
    net, inputs, targets = net.double(), inputs.double(), targets.double()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
average = torch.optim.swa_utils.AveragedModel(
    net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
)
scaler = torch.amp.GradScaler("cpu", growth_interval=7)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
data = ElasticDataset(
    TensorDataset(inputs, targets), global_batch=24, batch_size=6,
    epochs=int(os.environ.get("EPOCHS", "100000")),
)

def apply():
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    average.update_parameters(net)
    schedule.step()

loop = ElasticLoop(
    folder / "commits", model=net, optimizer=optimizer, data=data, apply=apply, every=5,
    extra={"average": average, "scaler": scaler, "schedule": schedule},
)
bodies = 0
for x, y in loop:
    with loop.step():
        bodies += 1
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            error = torch.nn.functional.mse_loss(loop.model(x).to(y.dtype), y)
        scaler.scale(loop.weight * error).backward()
        while half and loop.rank == 1 and loop.steps == BREAK and not (folder / "broken").exists():
            time.sleep(0.02)  # the other one waits for this one's gradients
    if loop.stepped:
        told.write(json.dumps({name: os.environ[name] for name in NAMES} | {
            "rank": loop.rank, "world": loop.world, "step": loop.steps}) + "\\n")
        if not half and "EPOCHS" not in os.environ:
            time.sleep(0.02)
            # All ranks see the same step of the same file, so all end alike.
            if (folder / "enough").exists() and loop.steps >= int((folder / "enough").read_text()):
                data.epochs = data.cursor.epoch + (data.cursor.position > 0)
state = [net.state_dict(), average.state_dict(), optimizer.state_dict()["state"]]
flat = torch.cat([value.detach().double().flatten() for value in [
    *state[0].values(), *state[1].values(),
    *(value for one in state[2].values() for value in one.values())]])
(folder / f"result-{loop.rank}.json").write_text(json.dumps({
    "steps": loop.steps, "bodies": bodies, "scale": scaler.get_scale(),
    "schedule": schedule.last_epoch, "rate": optimizer.param_groups[0]["lr"],
    "digest": hashlib.sha256(flat.numpy().tobytes()).hexdigest(), "values": flat.tolist()[:100],
}))
"""


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Job]]:
    """Two jobs of two nodes each, no fewer."""
    jobs = []
    for name in ("undisturbed", "interrupted"):
        (tmp_path / name).mkdir()
        jobs.append(Job(tmp_path / name, SCRIPT, nodes="2:2"))
    yield jobs
    for job in jobs:
        job.close()


def result(job: Job, rank: int = 0) -> dict[str, Any]:
    return dict(json.loads((job.folder / f"result-{rank}.json").read_text()))


def test_an_interrupted_run_is_the_undisturbed_run_bit_for_bit(folders: list[Job]) -> None:
    environment = {"HALF": "1", "STEPS": "30", "EPOCHS": "3"}
    undisturbed, interrupted = folders
    (undisturbed.folder / "broken").touch()
    undisturbed.start(0, 1, environment=environment)
    assert [undisturbed.wait(index) for index in (0, 1)] == [0, 0], undisturbed.logs()

    interrupted.start(0, 1, environment=environment)
    told = interrupted.until("it waits in a step", lambda told: told.get("step", -1) == 12)
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    (interrupted.folder / "broken").touch()
    assert [interrupted.wait(index) for index in (0, 1)] == [0, 0], interrupted.logs()

    expected = result(undisturbed)
    assert expected["steps"] == expected["schedule"] == 30
    assert expected["scale"] > 1.0
    for rank in (0, 1):
        found = result(interrupted, rank)
        same = ("steps", "scale", "schedule", "rate", "digest")
        assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    survivor = result(interrupted, 0)
    assert survivor["bodies"] > expected["bodies"]  # one was undone


def test_a_resized_run_is_one_process_training_and_the_environment_is_true(
    tmp_path: Path,
) -> None:
    (tmp_path / "elastic").mkdir()
    (tmp_path / "alone").mkdir()
    environment = {"HALF": "0", "STEPS": "240"}
    job = Job(tmp_path / "elastic", SCRIPT)
    try:
        job.start(0, 1, environment=environment)
        told = job.stepping(2)
        job.start(2, environment=environment)
        told = job.stepping(3, after_round=told["round"])
        os.kill(told["pids"]["1"][0], signal.SIGKILL)  # rank 2 is rank 1 until it is back
        told = job.until("a later round", lambda now: now["round"] > told["round"])
        told = job.until("its steps", lambda now: now["step"] > told["step"])
        (job.folder / "soon").write_text(str(told["step"] + 100))
        (job.folder / "soon").rename(job.folder / "enough")
        assert [job.wait(index) for index in (0, 1, 2)] == [0, 0, 0], job.logs()
    finally:
        job.close()
    told_lines = [
        json.loads(line)
        for path in job.folder.glob("told-*")
        for line in path.read_text().splitlines()
    ]
    newcomers = [line for line in told_lines if line.get("round") == "0"]
    assert newcomers
    assert all(line["start"] == "-1" for line in newcomers)
    steps = [line for line in told_lines if "step" in line]
    assert {line["world"] for line in steps} >= {2, 3}
    for line in steps:
        for name in ("RANK", "ROLE_RANK", "GROUP_RANK"):
            assert line[name] == str(line["rank"]), line
        for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"):
            assert line[name] == str(line["world"]), line
        assert (line["LOCAL_RANK"], line["LOCAL_WORLD_SIZE"]) == ("0", "1")

    found = result(job)
    environment["EPOCHS"] = str(found["steps"] // 10)
    process = TorchProcess(
        SCRIPT,
        tmp_path / "alone",
        environment={**os.environ, **environment, **dict.fromkeys(_NAMES, "1"), "RANK": "0"}
        | dict.fromkeys(("ROLE_RANK", "GROUP_RANK", "LOCAL_RANK"), "0"),
    )
    try:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    finally:
        process.kill()
    alone = json.loads((tmp_path / "alone" / "result-0.json").read_text())
    for name in ("steps", "scale", "schedule", "rate"):
        assert found[name] == alone[name]
    assert found["values"] == pytest.approx(alone["values"], rel=1e-6, abs=1e-8)


_NAMES = ("WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
