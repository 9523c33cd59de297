"""A rank of one round of a sharded training, which may be lost at a chosen point of it."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import elastic_trainer.checkpoint.mirror as mirror_module
import elastic_trainer.checkpoint.parts as parts_module
import elastic_trainer.checkpoint.restorer as restorer_module
import torch
import torch.distributed as dist
from elastic_trainer import Checkpointer, ElasticDataset, WorkerLink
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.recovery import Recovery
from elastic_trainer.checkpoint.sharded import Shards
from elastic_trainer.link.message import StopAt
from elastic_trainer.link.order import Order
from elastic_trainer.parent_death import die_with
from elastic_trainer.store.slot import Slot
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import TensorDataset

GLOBAL_BATCH = 24
SAMPLES = 96
STEPS = 12
"""Steps of a whole training."""
SHOW_STACKS = signal.SIGUSR1
"""Has a rank write to its log where its threads are."""
NEVER_SECONDS = 1000.0
"""Longer than any training here takes."""
LATE = 5
"""The step after which the late expert gets its first gradient."""
POINTS = (
    "in a step",
    "stepped",
    "in memory",
    "sealed",
    "mirroring",
    "mirrored",
    "storing",
    "resharding",
    "restored",
)
"""Moments at which a node may be lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that is lost with its memory as one of its ranks comes to a point."""

    node: int
    point: str
    hits: int
    """How often the rank passes the point before."""


@dataclass(frozen=True, slots=True)
class Round:
    """A life of the processes.

    Args:
        number: in its job.
        nodes: names, in the order of their ranks.
        local: ranks of each node.
        shards: ranks in a row that a replica is divided among (HSDP); 0: all ranks (FSDP2).
        every: steps between saves.
        fence: the step at which the world changes; none if 0.
        leavers: nodes that leave there.
        loss: of a node, if any.
        mirror_seconds: how long a part takes to another node's memory, at least.
        mirrors: so many states come to other nodes' memory, before a rank's second step ends, and
            none after them; 0: all do.
        device: of the model: "cpu", or "cuda" for the process's current GPU.
    """

    number: int
    nodes: tuple[int, ...]
    local: int
    shards: int
    every: int
    fence: int = 0
    leavers: tuple[int, ...] = ()
    loss: Loss | None = None
    mirror_seconds: float = 0.0
    mirrors: int = 0
    device: str = "cpu"

    @property
    def world(self) -> int:
        return len(self.nodes) * self.local

    @property
    def all_leave(self) -> bool:
        return set(self.nodes) <= set(self.leavers)

    def node_of(self, rank: int) -> int:
        return self.nodes[rank // self.local]


def run_rank(folder: Path, round_: Round, rank: int, port: int, prefix: str) -> NoReturn:
    """Train as one rank of a round, in a process that was forked for it; ends the process."""
    die_with(os.getppid())
    output = os.open(folder / f"log-{round_.number}-{rank}", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    faulthandler.register(SHOW_STACKS)
    code = 1
    try:
        code = Rank(folder, round_, rank).train(port, prefix)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Agent(WorkerLink):
    """The link to an agent that verifies at once, and stops the round at a step known before."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(None)
        self._rank = rank
        self._leaving = rank.round.node_of(rank.rank) in rank.round.leavers
        commit = rank.round.all_leave
        self.told = StopAt(1, -1, self._leaving, commit, memory_stays=not self._leaving)

    def boundary(self, step: int, samples: int = 0, waited: float = 0.0) -> Order:
        if step != self._rank.round.fence:
            return Order.GO
        return Order.LEAVE if self._leaving else Order.FENCE

    def saved(self, path: str, *_: Any, **__: Any) -> None:
        self._rank.reach("in memory")
        assert Slot(Path(path)).verify() is not None
        self._rank.reach("sealed")

    def wait_at_fence(self, step: int, fence: int) -> bool:
        return True

    def fenced(self, step: int, order: Order) -> NoReturn:
        self._rank.log(kind="fenced", step=step)
        os._exit(0)


class Rank:
    def __init__(self, folder: Path, round_: Round, rank: int) -> None:
        self.folder, self.round, self.rank = folder, round_, rank
        self._hits = self._mirrored = 0
        self._restoring = True
        self.reads = 0
        """Files of states in storage that were opened to restore one."""
        self._found: Recovery | None = None
        self._said = open(folder / f"said-{round_.number}-{rank}", "w", buffering=1)  # noqa: SIM115

    def log(self, **said: Any) -> None:
        self._said.write(json.dumps(said) + "\n")

    def reach(self, point: str) -> None:
        loss = self.round.loss
        if loss is None or loss.point != point or loss.node != self.round.node_of(self.rank):
            return
        if self._hits == loss.hits:
            os.kill(os.getpid(), signal.SIGKILL)
        self._hits += 1

    def train(self, port: int, prefix: str) -> int:
        self._watch()
        torch.set_num_threads(1)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(prefix, store),
            rank=self.rank,
            world_size=self.round.world,
            timeout=timedelta(seconds=60),
        )
        model, optimizer, extra, data, checkpointer = self._make()
        self.reach("restored")
        self._restoring = False
        assert self._found is not None
        identity = (checkpointer.parent, data.steps)
        self.log(
            kind="restored",
            identity=identity,
            sources=sorted({source.name for source in self._found.sources}),
            reads=self.reads,
            digest=digest(model, optimizer, extra),
        )
        # A node may have been lost after the last step, which was saved.
        for inputs, wanted in data if data.steps < STEPS else ():
            with data.micro_batch(model):
                train_late(model, data.steps)
                given = model(inputs, data.steps)
                (data.weight * torch.nn.functional.mse_loss(given, wanted)).backward()
            if not data.last:
                continue
            self.reach("in a step")
            apply(model, optimizer, extra, data.steps + 1)
            made = (checkpointer.run, data.steps + 1)
            self.log(kind="made", identity=made, digest=digest(model, optimizer, extra))
            self.reach("stepped")
            checkpointer.step()
            if data.steps == STEPS:
                break
        checkpointer.finish()
        if self.rank == 0:
            torch.save(whole(model, optimizer, extra), self.folder / "final.new")
            os.rename(self.folder / "final.new", self.folder / "final")
        else:
            whole(model, optimizer, extra)
        self.log(kind="finished")
        dist.barrier()
        return 0

    def _make(self) -> tuple[Any, Any, Any, Any, Any]:
        model, optimizer, extra = make_all(self.round)
        data = make_data()
        mine = self.folder / f"node-{self.round.node_of(self.rank)}"
        mine.mkdir(exist_ok=True)
        agent = _Agent(self)
        local = self.round.local
        memory = Memory(
            mine, agent, every_rank=True, local_rank=self.rank % local, local_world=local
        )
        checkpointer = Checkpointer(
            self.folder / "commits",
            model=model,
            optimizer=optimizer,
            extra=extra,
            data=data,
            every=self.round.every,
            memory=memory,
            link=agent,
        )
        return model, optimizer, extra, data, checkpointer

    def _watch(self) -> None:
        """Come to points, and count what is read of storage."""
        commits = str(self.folder / "commits")

        def opened(event: str, arguments: tuple[Any, ...]) -> None:
            if event != "open" or not self._restoring:
                return
            path, _, flags = arguments
            reads = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
            states = (".distcp", ".pt", ".metadata")
            if reads and str(path).startswith(commits) and str(path).endswith(states):
                self.reads += 1

        sys.addaudithook(opened)

        def before(module: Any, name: str, point: str) -> None:
            original = getattr(module, name)

            def reached(*arguments: Any, **named: Any) -> Any:
                self.reach(point)
                return original(*arguments, **named)

            setattr(module, name, reached)

        receive = mirror_module._receive

        def slowly(*arguments: Any) -> None:
            over = 0 < self.round.mirrors <= self._mirrored
            time.sleep(NEVER_SECONDS if over else self.round.mirror_seconds)
            receive(*arguments)

        mirror_module._receive = slowly
        before(mirror_module, "_receive", "mirroring")
        before(parts_module, "_carry_out", "resharding")
        before(Shards, "_write", "storing")
        write = Shards.write

        def waited(*arguments: Any, **named: Any) -> None:
            self.log(kind="waited for storage", step=named["step"])
            write(*arguments, **named)

        Shards.write = waited  # type: ignore[method-assign]
        keep, choose = mirror_module.Mirror.keep, restorer_module.choose_recovery_source

        def kept(mirror: Any, slot: Any, label: Any, peers: Any) -> bool:
            done = keep(mirror, slot, label, peers)
            if mirror.kept == label.identity:
                self._mirrored += 1
                self.log(kind="kept", identity=label.identity)
                self.reach("mirrored")
            return done

        def chose(*arguments: Any, **named: Any) -> Recovery:
            self._found = choose(*arguments, **named)
            return self._found

        mirror_module.Mirror.keep = kept  # type: ignore[method-assign]
        restorer_module.choose_recovery_source = chose


def train_alone(to: Path) -> None:
    """Train without shards, commits or peers, and save the tensors that it ends with."""
    (model, optimizer, extra), data = make_all(None), make_data()
    for inputs, wanted in data:
        train_late(model, data.steps)
        torch.nn.functional.mse_loss(model(inputs, data.steps), wanted).backward()
        apply(model, optimizer, extra, data.steps + 1)
        data.applied()
        if data.steps == STEPS:
            break
    torch.save(_tensors(model, optimizer, extra), to)


Extra = dict[str, Any]


def make_all(round_: Round | None) -> tuple[torch.nn.Module, torch.optim.Optimizer, Extra]:
    """Return model, optimizer and extra, divided among a round's ranks, if there is one: `extra`
    has an average of the model's weights, an optimizer of its biases, and the sum of all steps'
    numbers in each of its own."""
    device = "cpu" if round_ is None else round_.device
    model = make_model().to(device)
    average = AveragedModel(make_model().to(device), avg_fn=get_ema_avg_fn(0.9))
    sums = torch.nn.Linear(5, 1).double().to(device)
    torch.nn.init.zeros_(sums.weight)
    if round_ is not None:
        shard(model, round_)
        shard(average.module, round_)
        fully_shard(sums)  # over all ranks, also where the model has replicas
    weights = [one for name, one in model.named_parameters() if name.endswith("weight")]
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    second = torch.optim.SGD(biases, lr=0.01, momentum=0.9)
    extra = {"average": average, "second": second, "sums": sums}
    return model, torch.optim.AdamW(weights, lr=0.01), extra


def apply(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Extra, step: int
) -> None:
    """Make that step. The second optimizer is without a state until the second one."""
    optimizer.step()
    if step % 2 == 0:
        extra["second"].step()
    extra["average"].update_parameters(model)
    with torch.no_grad():
        for number in extra["sums"].parameters():
            number.add_(step)
    for one in (optimizer, extra["second"]):
        one.zero_grad()


class Model(torch.nn.Module):
    """Has an expert that no sample ever comes to, and one that is used later than the others, and
    trained from then on: neither optimizer has a state of parameters without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 13)
        self.last = torch.nn.Linear(13, 1)
        self.late = torch.nn.Linear(13, 1).requires_grad_(False)
        self.unused = torch.nn.Linear(13, 1)

    def forward(self, inputs: torch.Tensor, steps: int) -> torch.Tensor:
        """Return what the model gives after so many steps."""
        hidden = self.first(inputs).tanh()
        given: torch.Tensor = self.last(hidden)
        return given + self.late(hidden) if steps >= LATE else given


def train_late(model: torch.nn.Module, steps: int) -> None:
    """Have the late expert trained, if so many steps were made."""
    for parameter in model.get_submodule("late").parameters():
        parameter.requires_grad_(steps >= LATE)


def make_model() -> Model:
    torch.manual_seed(1)
    return Model().double()


def shard(model: Model, round_: Round) -> None:
    """Divide a model among a round's ranks."""
    mesh = None
    if round_.shards:
        shape = (round_.world // round_.shards, round_.shards)
        mesh = init_device_mesh(round_.device, shape, mesh_dim_names=("replica", "shard"))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)


def make_data() -> ElasticDataset:
    values = torch.linspace(-1, 1, SAMPLES * 6, dtype=torch.float64).reshape(SAMPLES, 6)
    samples = TensorDataset(values, values.sin().sum(1, keepdim=True))
    return ElasticDataset(samples, global_batch=GLOBAL_BATCH, epochs=STEPS)


def whole(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Extra
) -> list[torch.Tensor]:
    """Return all parameters, moments and averages, on all ranks; on the CPU."""
    tensors = _tensors(model, optimizer, extra)
    return [(one.full_tensor() if isinstance(one, DTensor) else one).cpu() for one in tensors]


def _tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Extra
) -> list[torch.Tensor]:
    tensors = []
    for parameter in model.parameters():
        tensors.append(parameter.detach())
        for held in (optimizer, extra["second"]):
            state = held.state.get(parameter, {})
            names = ("exp_avg", "exp_avg_sq", "momentum_buffer")
            tensors += [state[name] for name in names if state.get(name) is not None]
    tensors += [one.detach() for one in extra["average"].parameters()]
    tensors += [one.detach() for one in extra["sums"].parameters()]
    return [*tensors, extra["average"].n_averaged]


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Extra) -> str:
    digest = hashlib.sha256()
    for tensor in whole(model, optimizer, extra):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
