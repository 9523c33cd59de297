"""A rank of a training whose world changes again and again, as a script for TorchProcess.

    argv: device, back end of torch.compile (empty: none), number of this process, of all, the seed,
    the port for all, a port for each round

After each change the gradients that the ranks agree on are compared with those of one process that
has the whole global batch. Prints the largest difference and what was seen.
"""

SCRIPT = """
import copy, random, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed import TCPStore
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.device_collectives import collectives_of
from elastic_trainer.loop.round_member import RoundMember, data_parallel
from elastic_trainer.ranks.process_group import ProcessGroup

device, backend = sys.argv[1:3]
me, processes, seed, common, *ports = (int(argument) for argument in sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(1300, 6)
net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)).to(device)
if backend:
    net.compile(backend=backend)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
data = ElasticDataset(
    TensorDataset(inputs, inputs.prod(1, keepdim=True)), global_batch=13, batch_size=4, epochs=9
)
link, member, chance = WorkerLink(None), RoundMember(), random.Random(seed)
store = TCPStore("127.0.0.1", common, is_master=False, timeout=timedelta(seconds=300))
worst, worlds, steps = 0.0, [], 0


class Agent:
    agent = True  # its rounds' groups are left


def gradients(model):
    return [one.grad.detach().clone() for one in model.parameters()]


def train_step(model, batches):
    # One step as ElasticLoop makes it, and the same by one process with all that the ranks had.
    alone = copy.deepcopy(net)
    optimizer.zero_grad()
    mine = []
    while True:
        x, y = (one.to(device) for one in next(batches))
        with data.micro_batch(model):
            (data.weight * mse_loss(model(x), y)).backward()
        if data.weight:
            mine.append((x.cpu(), y.cpu()))
        if data.last:
            break
    member.confirm()
    told = [pair for said in member.group.gather(mine) for pair in said]
    x, y = (torch.cat(parts).to(device) for parts in zip(*told))
    mse_loss(alone(x), y).backward()
    pairs = zip(gradients(net), gradients(alone))
    found = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    optimizer.step()
    data.applied()
    return found


for number, port in enumerate(ports):
    members = chance.sample(range(processes), chance.randint(1, processes))
    store.add(f"{number}", 1)
    while store.add(f"{number}", 0) < processes:
        time.sleep(0.001)
    if me not in members:
        continue
    place = Place(number + 1, members.index(me), len(members), "127.0.0.1", port)
    member._device = collectives_of(net, agent=True)
    member._connect(link, place, None)
    member._torch_group = dist.group.WORLD
    member.group = ProcessGroup.current()
    data.regroup(member.group)
    # Who was in the last round has the state; the others take it.
    newest = max(member.group.gather((data.steps, net.state_dict(), data.state_dict())),
                 key=lambda said: said[0])
    net.load_state_dict(newest[1])
    data.load_state_dict(newest[2])
    model = data_parallel(net) if len(members) > 1 else net
    batches = iter(data)
    for _ in range(2):
        worst = max(worst, train_step(model, batches))
        steps += 1
    worlds.append(len(members))
    batches.close()
    del model, batches
    member.disconnect(Agent)
print(worst, steps, *worlds, flush=True)
"""
