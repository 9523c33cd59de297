"""Scripts that benchmarks.trainer has each system train by."""

from __future__ import annotations

SYSTEMS = ("loop", "sharded", "checkpointer", "c10d", "torchft", "nvrx")
LOOP, SHARDED, CHECKPOINTER, C10D, TORCHFT, NVRX = SYSTEMS

MODEL = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(4096, 32)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))

class Net(nn.Module):
    def __init__(self, megabytes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
        # Each number of it has two of Adam's, so it takes 12 bytes.
        ballast = torch.zeros((megabytes << 20) // 12)
        self.ballast = nn.ParameterList(
            nn.Parameter(part.clone()) for part in ballast.split(1 << 20) if len(part)
        )

    def forward(self, inputs):
        return self.layers(inputs) + sum(one[0] for one in self.ballast)

net = Net(int(sys.argv[2]))
optimizer = torch.optim.Adam(net.parameters())
log = open(folder / f"steps-{os.getpid()}", "a", buffering=1)

def note(step, rank, world, round):
    log.write(f"{time.time()} {step} {rank} {world} {round}\\n")
    time.sleep(0.01)
"""

SCRIPTS = {
    LOOP: MODEL
    + """
from elastic_trainer import ElasticDataset, ElasticLoop

data = ElasticDataset(data, batch_size=16, epochs=10**6)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=100)
for x, y in loop:
    with loop.step():
        (loop.weight * mse_loss(loop.model(x), y)).backward()
    note(loop.steps, loop.rank, loop.world, loop.link.round)
""",
    SHARDED: MODEL
    + """
from torch.distributed.fsdp import fully_shard
from elastic_trainer import ElasticDataset, ElasticLoop

def make():
    net = Net(int(sys.argv[2]))
    fully_shard(net)
    return net, torch.optim.Adam(net.parameters())

del net, optimizer
data = ElasticDataset(data, batch_size=16, epochs=10**6)
every = int(os.environ.get("SHARDED_EVERY", "0")) or None
loop = ElasticLoop(folder / "commits", make=make, data=data, every=every)
for x, y in loop:
    with loop.step():
        (loop.weight * mse_loss(loop.model(x), y)).backward()
    note(loop.steps, loop.rank, loop.world, loop.link.round)
""",
    CHECKPOINTER: MODEL
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from elastic_trainer import Checkpointer, ElasticDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(net)
data = ElasticDataset(data, batch_size=16, epochs=10**6)
with Checkpointer(
    folder / "commits", model=model, optimizer=optimizer, data=data, every=100
) as checkpointer:
    for x, y in data:
        optimizer.zero_grad()
        (data.weight * mse_loss(model(x), y)).backward()
        optimizer.step()
        checkpointer.step()
        note(data.steps, dist.get_rank(), dist.get_world_size(), 0)
""",
    C10D: MODEL
    + """
from datetime import timedelta
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
saved = folder / "state.pt"
step = 0
if saved.exists():
    state = torch.load(saved)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
model = DistributedDataParallel(net)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(10**6):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step % 100 == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "state.new")
            os.replace(folder / "state.new", saved)
        note(step, dist.get_rank(), dist.get_world_size(), 0)
""",
    TORCHFT: MODEL
    + """
from datetime import timedelta
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def load(state):
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    load_state_dict=load,
    state_dict=lambda: {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
    min_replica_size=1,
    timeout=timedelta(seconds=10),
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    hostname="127.0.0.1",
    replica_id=f"node-{os.environ['VOLCANO_ELASTIC_POD_INDEX']}-",
)
model = DistributedDataParallel(manager, net)
committing = Optimizer(manager, optimizer)
loader = DataLoader(data, batch_size=16, shuffle=True)
step = 0
while True:
    for x, y in loader:
        committing.zero_grad()
        mse_loss(model(x), y).backward()
        committing.step()
        if manager.current_step() > step:
            step = manager.current_step()
            rank, world = manager.participating_rank(), manager.num_participants()
            note(step, -1 if rank is None else rank, world, manager._quorum_id)
""",
    NVRX: MODEL
    + """
from datetime import timedelta
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from torch.nn.parallel import DistributedDataParallel

step, tenth = 0, timedelta(seconds=0.1)

@inprocess.Wrapper(
    store_kwargs={"host_name": "127.0.0.1", "port": int(os.environ["MASTER_PORT"])},
    monitor_thread_interval=tenth,
    monitor_process_interval=tenth,
    heartbeat_interval=tenth,
    heartbeat_timeout=timedelta(seconds=1),
    progress_watchdog_interval=tenth,
    last_call_wait=tenth,
)
def train(call: inprocess.CallWrapper = None):
    global step
    rank, world, made = call.state.rank, call.state.world_size, call.iteration
    store = dist.FileStore(str(folder / f"store-{made}"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=30)
    )
    model = DistributedDataParallel(net)
    while True:
        x, y = data[torch.randint(0, len(data), (16,))]
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        note(step, rank, world, made)

train()
""",
}
