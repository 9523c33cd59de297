"""The end of a job of real processes: what its script does after training counts, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

TRAIN = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop, Checkpointer

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(TensorDataset(torch.ones(32, 3)), batch_size=4, epochs=1)

def tell(what):
    path = folder / f"{what}-{os.environ['VOLCANO_ELASTIC_POD_INDEX']}"
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    return len(path.read_text().split())
"""

LOOP = (
    TRAIN
    + """
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).mean()).backward()
    if loop.stepped:
        tell("step")
rank = loop.rank
"""
)

CHECKPOINTER = (
    TRAIN
    + """
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(net)
with Checkpointer(folder / "commits", model=model, optimizer=optimizer, data=data) as checkpointer:
    for (x,) in data:
        optimizer.zero_grad()
        (data.weight * model(x).mean()).backward()
        optimizer.step()
        tell("step")
        checkpointer.step()
"""
)

PLAIN = (
    TRAIN
    + """
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
)

EXPORT = """
tries = tell("export")
if rank == 0:
    time.sleep(1.0)  # the other node's script has ended long before
    if tries == 1:
        torch.save(net.state_dict(), "/nonexistent/model.pt")
    torch.save(net.state_dict(), folder / "model.pt")
tell("end")
"""

SCRIPTS = {"loop": LOOP, "checkpointer": CHECKPOINTER, "plain": PLAIN}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(script: str, *, nodes: str = "2:2", restarts: int = 3) -> Job:
        jobs.append(Job(tmp_path, script, nodes))
        jobs[0].start(0, 1, restarts=restarts)
        return jobs[0]

    yield begin
    for job in jobs:
        job.close()


def lines(job: Job, name: str) -> int:
    path = job.folder / name
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_export_that_fails_once_is_done_again_and_the_job_succeeds(
    kind: str, start: Callable[..., Job]
) -> None:
    job = start(SCRIPTS[kind] + EXPORT)
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert (job.folder / "model.pt").exists(), job.logs()
    assert lines(job, "export-0") == 2 and lines(job, "end-0") == 1
    assert lines(job, "end-1") == 2, "one that had ended runs its tail again with the other"
    if kind != "plain":
        assert lines(job, "step-0") == lines(job, "step-1") == 4, "nothing was trained twice"


@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_export_that_always_fails_fails_the_job(kind: str, start: Callable[..., Job]) -> None:
    script = SCRIPTS[kind] + EXPORT.replace("tries == 1", "True")
    job = start(script, restarts=1)
    assert job.wait(0) == 1, job.logs()
    assert not (job.folder / "model.pt").exists() and lines(job, "end-0") == 0
    if kind == "plain":
        assert job.agents[1].poll() != 0, "it waits for the other, and the coordinator, to be back"
    else:
        assert job.wait(1) == 1, job.logs()
        assert lines(job, "step-0") == lines(job, "step-1") == 4


def test_a_worker_killed_after_the_loop_is_started_again(start: Callable[..., Job]) -> None:
    job = start(LOOP + "if tell('tail') == 1 and rank == 1:\n    os.kill(os.getpid(), 9)\n")
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert lines(job, "tail-1") == 2 and lines(job, "step-1") == 4


def test_a_node_has_ended_once_all_of_its_workers_have(tmp_path: Path) -> None:
    tail = """
if rank == 1:
    tell("end")
else:
    while not (folder / "end-0").exists():
        time.sleep(0.05)
    time.sleep(1.0)  # the other's process has ended
    if tell("export") == 1:
        raise OSError("no room for the export")
    (folder / "model.pt").touch()
"""
    job = Job(tmp_path, LOOP + tail, "1:1")
    try:
        job.start(0, options=("--nproc-per-node", "2"))
        assert job.wait(0) == 0, job.logs()
        assert (tmp_path / "model.pt").exists(), job.logs()
        assert lines(job, "export-0") == lines(job, "end-0") == 2
    finally:
        job.close()


def test_a_node_lost_after_the_loop_leaves_its_tail_to_the_others(
    start: Callable[..., Job],
) -> None:
    wait = "while tell('tail') == 1 and rank == 1:\n    time.sleep(3600)\ntell('end')\n"
    # One node is enough, so the first may begin alone: its script lets the round be begun anew.
    both = (
        "import os, sys, time\n"
        "while os.environ['WORLD_SIZE'] == '1' and not os.path.exists(sys.argv[1] + '/tail-0'):\n"
        "    time.sleep(0.05)\n"
    )
    job = start(both + LOOP + wait, nodes="1:2")
    job.until("worker 0 has ended", lambda _: lines(job, "end-0") == 1)
    job.until("worker 1 is in its tail", lambda _: lines(job, "tail-1") == 1)
    job.until("the round is over in all workers", lambda told: told["phase"] == "completing")
    os.killpg(job.agents[1].pid, signal.SIGKILL)
    assert job.wait(0) == 0, job.logs()
    assert lines(job, "end-0") == 2, job.logs()


def test_a_worker_that_starts_when_all_others_have_gone_is_sent_home(tmp_path: Path) -> None:
    late = """
if os.environ["VOLCANO_ELASTIC_POD_INDEX"] == "1":
    tell("came")
    while not (folder / "go").exists():
        time.sleep(0.05)
"""
    waits = """        while not (folder / "came-1").exists():
            time.sleep(0.05)
"""
    begin, end = LOOP.split("loop = ")
    job = Job(tmp_path, begin + late + "loop = " + end.replace("rank = ", waits + "rank = "), "1:2")
    try:
        job.start(0)
        job.until("worker 0 trains", lambda told: bool(told["pids"].get("0")))
        job.start(1)
        assert job.wait(0) == 0, job.logs()
        (tmp_path / "go").touch()
        assert job.wait(1) == 0, job.logs()
        assert lines(job, "step-0") == 8 and lines(job, "step-1") == 0, job.logs()
    finally:
        job.close()
