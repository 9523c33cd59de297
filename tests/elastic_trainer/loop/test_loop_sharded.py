"""ElasticLoop with sharded models: processes live on while the model is made for each world."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.launch.cuda import NVML_VARIABLE
from elastic_trainer.loop.loop import ElasticLoop
from elastic_trainer.loop.making import make_sharded

from tests.elastic_trainer.loop.devices import DEVICE, DEVICES, VARIABLE
from tests.elastic_trainer.torch_process import TorchProcess
from tests.elastic_trainer.torchrun_job import Job

SAMPLES = 480

SCRIPT = f"""
import os, sys, time
from pathlib import Path
import torch
from torch.distributed import get_world_size
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
{DEVICE}
inputs = torch.linspace(-1, 1, {SAMPLES} * 8, dtype=torch.float64).reshape({SAMPLES}, 8)

def make():
    global schedule
    net = torch.nn.Sequential(torch.nn.Linear(8, 17), torch.nn.Tanh(), torch.nn.Linear(17, 1))
    net.double().to(device)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    shape = (get_world_size() // local, local) if local > 1 else (get_world_size(),)
    names = ("replica", "shard")[-len(shape):]
    mesh = init_device_mesh(torch.device(device).type, shape, mesh_dim_names=names)
    for part in (net[0], net):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    return net, optimizer, {{"schedule": schedule}}

def apply():
    torch.nn.utils.clip_grad_norm_(loop.module.parameters(), 1.0)  # communicates, and may
    loop.optimizer.step()
    schedule.step()

data = ElasticDataset(
    TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)),
    global_batch=24, batch_size=8, epochs=1000, audit=folder / "audit",
)
loop = ElasticLoop(folder / "commits", make=make, data=data, apply=apply, every=4)
for x, y in loop:
    with loop.step():
        x, y = x.to(device), y.to(device)
        (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)  # so that all ranks end alike
    time.sleep(0.01)
    if loop.stepped and enough:
        data.epochs = data.cursor.epoch + (data.cursor.position > 0)
(folder / f"ended-{{os.getpid()}}").write_text(f"{{loop.steps}} {{data.epochs}}")
"""


@pytest.fixture(params=DEVICES)
def job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Job]:
    monkeypatch.setenv(VARIABLE, request.param)
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def end_well(job: Job, workers: int) -> None:
    """Have the job end on pods 0 and 1; all have made the same steps, with each sample once."""
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    ended = [path.read_text().split() for path in job.folder.glob("ended-*")]
    assert len(ended) == workers
    assert all(one == ended[0] for one in ended)
    report = verify(job.folder / "audit", SAMPLES, int(ended[0][1]))
    assert report.ok, (report, job.logs())


@pytest.mark.process
def test_processes_live_on_while_nodes_come_go_and_are_lost(job: Job) -> None:
    def first() -> int:
        pid: int = job.wait_for_status()["pids"]["0"][0]
        return pid

    job.start(0, 1)
    told = job.stepping(2)
    survivor = first()
    job.start(2)
    told = job.stepping(3, after_round=told["round"])
    joined = told["rounds"][-1]["first_step"]
    assert joined >= told["rounds"][-2]["last_step"], "no step is lost at an orderly change"
    job.agents[2].send_signal(signal.SIGTERM)
    told = job.stepping(2, after_round=told["round"])
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    told = job.stepping(2, after_round=told["round"])
    assert first() == survivor
    end_well(job, 2)


@pytest.mark.gpu
@pytest.mark.process
def test_replicas_of_two_ranks_come_go_and_are_lost_on_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HSDP: a node is a replica, and who stays has all of its shards."""
    monkeypatch.setenv(VARIABLE, "cuda")
    warm, two = {NVML_VARIABLE: "1"}, ("--nproc-per-node", "2")
    job = Job(tmp_path, SCRIPT)
    try:
        job.start(0, environment=warm, options=two)
        told = job.stepping(1)
        survivors = told["pids"]["0"]
        job.start(1, environment=warm, options=two)
        told = job.stepping(2, after_round=told["round"])
        joined, before = told["rounds"][-1]["first_step"], told["rounds"][-2]["last_step"]
        assert joined >= before, "no step is lost at an orderly change"
        os.kill(told["pids"]["1"][1], signal.SIGKILL)  # with it its node
        told = job.stepping(2, after_round=told["round"])
        assert told["pids"]["0"] == survivors
        end_well(job, 4)
    finally:
        job.close()


ALONE = """
import json, sys
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder, stop = sys.argv[1], int(sys.argv[2])

def make():
    net = torch.nn.Linear(2, 1)
    fully_shard(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)

values = torch.arange(20.0).reshape(10, 2)
data = ElasticDataset(TensorDataset(values), batch_size=5, epochs=4)
loop = ElasticLoop(folder, make=make, data=data)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).square().mean()).backward()
    if loop.steps == stop:
        loop.stop()
print(json.dumps([loop.steps, loop.module.weight.full_tensor().tolist()]))
"""


@pytest.mark.process
def test_alone_it_goes_on_from_its_commit(tmp_path: Path) -> None:
    def train(folder: str, stop: int) -> list[object]:
        output, errors = TorchProcess(ALONE, tmp_path / folder, stop).communicate(timeout=120)
        assert output, errors
        said: list[object] = json.loads(output)
        return said

    whole = train("whole", 0)
    assert whole[0] == 8
    assert train("halves", 3)[0] == 3
    assert train("halves", 0) == whole


def test_make_goes_alone_and_says_what_it_is_to_return(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    with pytest.raises(TypeError, match="goes without model="):
        ElasticLoop(tmp_path, model=net, make=lambda: (net, optimizer), data=data)
    with pytest.raises(TypeError, match="needs model= and optimizer="):
        ElasticLoop(tmp_path, model=net, data=data)
    with pytest.raises(ValueError, match="isn't sharded"):
        make_sharded(lambda: (net, optimizer), 0)
    with pytest.raises(TypeError, match="returned a Linear: expected a function"):
        make_sharded(lambda: net, 0)  # type: ignore[arg-type,return-value]
