"""A sharded model's save that ElasticLoop trains on beside holds one step, or isn't used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_trainer.store.copier import OVERLAP_VARIABLE

from tests.elastic_trainer.checkpoint.sealing import SEALING
from tests.elastic_trainer.checkpoint.two_ranks import run_two_ranks

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

SCRIPT = """
import faulthandler, json, sys, threading, time
from datetime import timedelta
from pathlib import Path

faulthandler.dump_traceback_later(170, exit=True)
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.store.copier import copier_of
from elastic_trainer.store.slot import SlotError

rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
kind, width = sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
device, backends = torch.device("cpu"), "gloo"
if kind == "cuda":
    device, backends = torch.device("cuda", rank % torch.cuda.device_count()), "cpu:gloo,cuda:nccl"
    torch.cuda.set_device(device)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group(
    backends, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
"""
SCRIPT += SEALING
SCRIPT += """

class LazyCopy:
    "A copy that the device comes to as late as it may: as something has to come after it."

    def __init__(self, copy):
        self._copy, self._ended = copy, threading.Event()

    def done(self):
        return self._ended.is_set()

    def wait(self):
        if threading.current_thread() is threading.main_thread() and not self.done():
            self._copy()
            self._ended.set()
        self._ended.wait()

    precede = wait

    def seconds(self):
        return 1.0


class LazyCopier:
    def pin(self, name, memory):
        pass

    def start(self, copy):
        return LazyCopy(copy)


WorkerLink.from_environment = lambda **_: Sealing()


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(5, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, width),
        torch.nn.Tanh(), torch.nn.Linear(width, 1),
    ).to(device)


def make():
    global average, second, schedule
    model, average = make_model(), AveragedModel(make_model(), avg_fn=get_ema_avg_fn(0.9))
    mesh = init_device_mesh(device.type, (2,))
    for one in (model, average.module):
        fully_shard(one[2], mesh=mesh)
        fully_shard(one, mesh=mesh)
    weights = [one for one in model.parameters() if one.ndim > 1]
    second = torch.optim.SGD([one for one in model.parameters() if one.ndim == 1], 0.01, 0.9)
    optimizer = torch.optim.AdamW(weights, lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return model, optimizer, {"average": average, "second": second, "schedule": schedule}


def local(tensor):
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach().cpu().clone()


def content(state):
    "All tensors of a state that are here, in order."
    if isinstance(state, torch.Tensor):
        return [local(state)]
    if isinstance(state, dict):
        return [one for value in state.values() for one in content(value)]
    return [one for value in state for one in content(value)] if isinstance(state, list) else []


def parts_of(state):
    return content([state["model"], state["optimizer"], state["extra"]])


def apply():
    torch.nn.utils.clip_grad_norm_(loop.module.parameters(), 1.0)
    loop.optimizer.step()
    second.step()
    average.update_parameters(loop.module)
    schedule.step()


def saved():
    "By step, whether what memory holds is what there was."
    torch.cuda.synchronize() if kind == "cuda" else None
    found = {}
    for slot, label in loop.checkpointer._memory._slots.sealed().items():
        state = slot.read(loop.checkpointer.state.meshes)
        pairs = zip(parts_of(state), after[label.step], strict=True)
        found[label.step] = all(one.equal(other) for one, other in pairs)
    return found


values = torch.linspace(-1, 1, 160 * 5).reshape(160, 5)
data = ElasticDataset(
    TensorDataset(values, values.sin().sum(1, keepdim=True)), batch_size=4, epochs=9
)
loop = ElasticLoop(folder / "commits", make=make, data=data, apply=apply, every=1)
(folder / f"node-{rank}").mkdir()
memory = Memory(folder / f"node-{rank}", Sealing(), every_rank=True, copier=LazyCopier())
loop.checkpointer._memory = memory
after, told = {}, {}
batches = iter(loop)


def train(steps, between=lambda: None):
    "Make steps, of which each but the first has something done in its body."
    for number in range(steps):
        x, y = (one.to(device) for one in next(batches))
        with loop.step():
            (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
            if number:
                between()
        after[loop.steps] = parts_of(loop.checkpointer.state.take())


def weight():
    return loop.module[2].weight


# Copies that come late.

train(1)
memory = loop.checkpointer._memory
train(3)
told["before"] = saved()
loop.checkpointer.settle()
told["saved"] = saved()
told["overlaps"] = loop.checkpointer._saves._overlaps
loop.checkpointer._shards.await_mirrors()
told["mirrored"] = memory.mirror.kept[1]

# Copies that the script tears.


def spoil(change):
    "Return whether memory has a step whose weights were changed after it, and the next one whole."
    overlap()
    train(1)
    step = loop.steps
    train(2, change)
    loop.checkpointer.commit(stored=False, memory_stays=True)
    found = saved()
    return [step + 1 in found, all(found.values()) and step + 2 in found]


def overlap():
    "Go on as if none had been torn."
    saves = loop.checkpointer._saves
    saves._overlaps, saves._overlap_bytes = True, 0


def on_one_rank():
    with torch.no_grad():
        if rank == 1:
            weight().to_local().mul_(0.9)


def through_the_whole():
    with torch.no_grad():
        weight().mul_(0.9)


def for_an_evaluation():  # as libraries do with averages: torch counts no change
    before = weight().data.clone()
    weight().data.copy_(before * 0.9)
    loop.checkpointer._saves._under_way.snapshot._copy.wait()
    weight().data.copy_(before)


for change in (on_one_rank, through_the_whole, for_an_evaluation)[: 3 if kind == "cpu" else 2]:
    told[change.__name__] = spoil(change)

# One that is torn on one rank, of a step that all commit.

overlap()
memory.copier = LazyCopier()
train(1)
loop.checkpointer.save_if_due()
on_one_rank()
loop.checkpointer.commit(stored=False, memory_stays=True)
told["stored"] = loop.checkpointer.storage.newest().step == loop.steps

# Copies by the device's own copier.

overlap()
memory.copier = copier = copier_of(loop.module)
if kind == "cpu":  # as on a busy machine, or on simulated GPUs by --delay
    start = copier.start
    copier.start = lambda copy: start(lambda: [time.sleep(0.1), copy()])
told["copier"], told["by it"], first = type(copier).__name__, {}, loop.steps
for _ in range(4):
    train(2)
    told["by it"] |= {step: whole for step, whole in saved().items() if step > first}
loop.checkpointer.settle()
told["by it"] |= {step: whole for step, whole in saved().items() if step > first}
told["overlaps still"] = loop.checkpointer._saves._overlaps
loop.checkpointer._shards.await_mirrors()
told["mirrored last"] = memory.mirror.kept[1] - loop.steps

# A save that is under way as memory turns out too small for the next ones, as a restore's may be.


def too_small(blob):
    raise SlotError("no room, as a test would have it")


memory.copier, memory.prepare = LazyCopier(), too_small
train(1)
loop.checkpointer.save_if_due()
loop.checkpointer.make_room()
loop.checkpointer.settle()
told["without memory"] = loop.checkpointer._memory is None
told["kept"] = loop.steps in [label.step for label in memory._slots.sealed().values()]
print(json.dumps(told), flush=True)
dist.barrier()
"""


@pytest.mark.process
@pytest.mark.parametrize("device", DEVICES)
def test_each_copy_holds_its_step_and_one_that_the_script_tore_isnt_used(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAP_VARIABLE, "0")  # states this small, too
    outputs = run_two_ranks(SCRIPT, tmp_path, device, 513, timeout=160)
    for rank, output in enumerate(outputs):
        told = json.loads(output[output.index("{") :].splitlines()[0])
        assert all(told["before"].values()) and all(told["saved"].values()), told
        assert "3" in told["saved"], "apply has waited for it"
        assert (told["overlaps"], told["mirrored"]) == (True, 3)

        assert told["on_one_rank"] == [rank == 0, True]
        assert told["through_the_whole"] == [False, True]
        assert told.get("for_an_evaluation") == ([False, True] if device == "cpu" else None)
        assert output.count("isn't used") == 2 * rank + (2 if device == "cpu" else 1), output
        assert told["stored"], "as memory has not all of it"

        assert told["copier"] == {"cpu": "HostCopier", "cuda": "GpuCopier"}[device]
        assert len(told["by it"]) > 3 and all(told["by it"].values()), told
        assert (told["overlaps still"], told["mirrored last"]) == (True, -1), output

        assert told["without memory"] and told["kept"], told
