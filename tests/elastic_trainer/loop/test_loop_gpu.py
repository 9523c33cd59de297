"""ElasticLoop on one GPU: NCCL's world of one, its abort, and copies beside work."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from elastic_trainer.launch.cuda import NVML_VARIABLE
from elastic_trainer.loop.device_clock import mark_on
from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.ranks.waiting import wait_in_round
from elastic_trainer.store.copier import GpuCopier
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess
from tests.elastic_trainer.torchrun_job import Job

pytestmark = [pytest.mark.gpu, pytest.mark.process]

ALONE = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
name = Path("/proc/self/comm").read_text().strip()
torch.manual_seed(0)
gpus = torch.cuda.device_count()
own = torch.device("cuda", gpus - 1)
net = torch.nn.Linear(1024, 1024).to(own)  # large enough to be copied beside the next step
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
data = ElasticDataset(TensorDataset(torch.randn(64, 1024)), batch_size=4, epochs=1)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=2)
for (x,) in loop:
    with loop.step():
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total)
        (loop.weight * loop.model(x.cuda()).square().mean()).backward()
(folder / "found.json").write_text(json.dumps({
    "started": name,
    "steps": loop.steps,
    "backends": dist.get_backend_config() if dist.is_initialized() else "",
    "total": total.item(),
    "pinned": len(loop.checkpointer._memory.copier._pinned),
    "others": [n for n in range(gpus) if n != own.index and torch._C._cuda_hasPrimaryContext(n)],
    "own": torch._C._cuda_hasPrimaryContext(own.index),
    "finite": all(one.isfinite().all().item() for one in net.parameters()),
}))
"""


def test_a_world_of_one_trains_by_nccl_from_a_warm_start_with_pinned_copies(tmp_path: Path) -> None:
    import json

    job = Job(tmp_path, ALONE, nodes="1")
    try:
        job.start(0, environment={NVML_VARIABLE: "1"})  # as the operator sets it
        assert job.wait(0) == 0, job.logs()
    finally:
        job.close()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["started"].startswith("ve-worker"), "the real driver leaves workers warm"
    assert (found["steps"], found["total"], found["finite"]) == (16, 1.0, True)
    assert found["pinned"] >= 2
    assert (found["own"], found["others"]) == (True, []), "a process touches its model's GPU alone"
    assert "cold" not in (tmp_path / "agent-0.log").read_text()


def test_torchrun_that_initialises_cuda_itself_is_told_so(tmp_path: Path) -> None:
    job = Job(tmp_path, "", nodes="1")
    try:
        job.start(0, environment={NVML_VARIABLE: "0"})
        assert job.wait(0) == 0, job.logs()
    finally:
        job.close()
    log = (tmp_path / "agent-0.log").read_text()
    assert "workers start cold, as a fork could not use a GPU: torchrun has" in log, log
    assert f"set {NVML_VARIABLE}=1" in log


STUCK = """
import sys, threading, time, types
import torch
import torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.device_collectives import NcclCollectives
from elastic_trainer.loop.round_member import RoundMember
from elastic_trainer.ranks.process_group import ProcessGroup

rank, port, devices = (int(argument) for argument in sys.argv[1:])
device = torch.device("cuda", rank % devices)
torch.cuda.set_device(device)
member = RoundMember()
member._device = NcclCollectives(device, agent=True)
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port), None)
member.group = ProcessGroup.current()
member._torch_group = dist.group.WORLD
values = torch.ones(1 << 20, device=device)
dist.all_reduce(values)
member.confirm()
patience = dist.group.WORLD._get_backend(device).options._timeout
print("confirmed", values[0].item(), patience == dist.default_pg_timeout, flush=True)
if rank == 1:
    sys.stdin.read()  # comes to no other collective
    sys.exit()
threading.Timer(1.0, member.break_collectives).start()
began = time.monotonic()
dist.all_reduce(values)  # its kernel waits for rank 1
ended = member._device.ended_well(dist.group.WORLD)
print("ended well" if ended else "aborted", flush=True)
member.disconnect(types.SimpleNamespace(agent=True))
print("left in time" if time.monotonic() - began < 30 else "left late", flush=True)
"""


def test_a_kernel_that_waits_for_a_lost_rank_is_aborted_and_its_result_not_used() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=120))
    devices = torch.cuda.device_count()
    ranks = [TorchProcess(STUCK, rank, store.port, devices) for rank in range(2)]
    try:
        found = ranks[0].communicate(timeout=180)
        assert found[0].splitlines() == [
            "confirmed 2.0 True",  # as of gloo's; not that of connecting
            "aborted",
            "left in time",
        ], found[1]
    finally:
        for rank in ranks:
            rank.kill()


LOST = """
import os, sys, threading, types
import torch
import torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.device_collectives import NcclCollectives
from elastic_trainer.loop.round_member import RoundMember

class Lost(NcclCollectives):
    def connect(self, *_):
        os._exit(0)

rank, port, devices = (int(argument) for argument in sys.argv[1:])
device = torch.device("cuda", rank % devices)
torch.cuda.set_device(device)
member, link = RoundMember(), WorkerLink(None, 1)
member._device = (Lost if rank == 2 else NcclCollectives)(device, agent=True)

def hear_of_the_end():
    link._over_round = 1
    member.break_collectives()

threading.Timer(0.5, hear_of_the_end).start()
try:
    member._connect(link, Place(1, rank, 3, "127.0.0.1", port), None)
    dist.all_reduce(torch.ones(1, device=device))
except RuntimeError as error:
    print("left:", error, file=sys.stderr)
    member.disconnect(types.SimpleNamespace(agent=True))
    print("left", flush=True)
"""


@pytest.mark.parametrize("torchs", ["reconfiguration", "older"])
def test_a_rank_lost_before_the_first_collective_holds_no_other_in_its_round(torchs: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=120))
    devices = torch.cuda.device_count()
    environment = {**os.environ, "TORCH_DIST_USE_NCCL2": "0" if torchs == "older" else "1"}
    ranks = [
        TorchProcess(LOST, rank, store.port, devices, environment=environment) for rank in range(3)
    ]
    try:
        for rank in ranks[:2]:
            found = rank.communicate(timeout=180)
            assert found[0].splitlines() == ["left"], found[1]
    finally:
        for rank in ranks:
            rank.kill()


def test_a_copy_goes_on_beside_what_the_gpu_computes_by_its_own_events() -> None:
    device = torch.device("cuda", 0)
    copier = GpuCopier(device)
    state = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    target = torch.zeros(64 << 20, dtype=torch.uint8)
    copier.pin("target", target)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(500_000_000)  # cycles: the step, a quarter of a second
    state.fill_(1)
    copy = copier.start(lambda: target.copy_(state, non_blocking=True))
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    ended.record()
    copy.wait()
    assert not ended.query(), "the copy has ended while the GPU still computes"
    copy.precede()
    state.zero_()
    torch.cuda.synchronize(device)
    assert target.eq(1).all(), "the state was changed after its copy"
    print(f"copy {copy.seconds() * 1000:.1f} ms, beside {began.elapsed_time(ended):.0f} ms of work")


def test_a_thread_that_gives_a_state_away_comes_after_the_step_on_a_stream_of_the_scripts() -> None:
    state = torch.zeros(1 << 20, device=torch.device("cuda", 0))
    torch.cuda.synchronize(state.device)
    with torch.cuda.stream(torch.cuda.Stream(state.device)):  # type: ignore[no-untyped-call]
        torch.cuda._sleep(1_000_000_000)  # cycles: the step, half a second
        state.fill_(1)
        read = in_callers_stream(lambda: state.cpu())
        found = wait_in_round(read, lambda: False, "a copy")
    assert found.eq(1).all()


def test_memory_that_cant_be_pinned_ends_no_later_kernel() -> None:
    device = torch.device("cuda", 0)
    copier, memory = GpuCopier(device), torch.zeros(1 << 20, dtype=torch.uint8)
    copier.pin("slot", memory)
    copier.pin("the same memory again", memory)
    assert list(copier._pinned) == ["slot"], "CUDA pins nothing twice"
    torch.cuda.synchronize(device)
    assert torch.ones(3, device=device).add_(1).sum().item() == 6


def test_a_mark_is_on_the_models_gpu_whichever_is_the_current_one() -> None:
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    with torch.cuda.device(0):
        mark = mark_on(device)
        assert mark is not None
        began: torch.Event = mark()  # type: ignore[assignment]
        torch.ones(1, device=device).add_(1)
        ended: torch.Event = mark()  # type: ignore[assignment]
        torch.cuda.synchronize(device)
    assert began.device == ended.device == device
    assert began.elapsed_time(ended) >= 0
