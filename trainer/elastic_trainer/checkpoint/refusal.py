"""Models and optimizers whose state a commit can't hold, refused by name before training begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from elastic_trainer.checkpoint.split_state import SplitStates
from elastic_trainer.data.elastic_data import ElasticData

NCCL_ERRORS_VARIABLE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"


def backend() -> str:
    """Return the default process group's backends; empty where there is no group."""
    return dist.get_backend_config() if dist.is_initialized() else ""


def refuse_silent_aborts(backends: str, environment: Mapping[str, str]) -> None:
    """Raises ValueError if a collective that NCCL's watchdog aborts would seem to have ended well.

    Args:
        backends: of the process group, as torch names them: "nccl", "cpu:gloo,cuda:nccl".
        environment: of this process.
    """
    if "nccl" in backends and environment.get(NCCL_ERRORS_VARIABLE) == _CLEAN_UP_ONLY:
        raise ValueError(
            f"{NCCL_ERRORS_VARIABLE} is {_CLEAN_UP_ONLY}: after a lost peer the backward pass "
            "would return without an error, and half-reduced gradients would be applied and "
            "committed; unset it (3), so that the process ends instead"
        )


def refuse_fsdp1(model: torch.nn.Module) -> None:
    """Raises ValueError if a part of the model is wrapped in FullyShardedDataParallel (FSDP1)."""
    if any(isinstance(one, FullyShardedDataParallel) for one in model.modules()):
        raise ValueError(
            "the model is wrapped in FullyShardedDataParallel (FSDP1), whose state dict is a "
            "collective of all ranks and whose parts no other world can use: expected FSDP2, "
            "torch.distributed.fsdp.fully_shard(model), with Checkpointer (Lightning: "
            "ModelParallelStrategy; accelerate: fsdp_version 2)"
        )


def refuse_zero(optimizers: Iterable[object]) -> None:
    """Raises ValueError if one is a ZeroRedundancyOptimizer."""
    if any(isinstance(one, ZeroRedundancyOptimizer) for one in optimizers):
        raise ValueError(
            "ZeroRedundancyOptimizer communicates inside step(), so a lost peer can leave it half "
            "applied, and its state is on no rank as a whole: expected an optimizer of all of the "
            "model's parameters; to divide its state among the ranks, use "
            "torch.distributed.fsdp.fully_shard(model) and Checkpointer"
        )


def refuse_unsaved_in_backward(model: torch.nn.Module, saved: Iterable[object]) -> None:
    """Raises ValueError if torch's hooks step optimizers within backward that aren't `saved`."""
    known = {id(one) for one in saved}
    for name, parameter in model.named_parameters():
        for optimizer in getattr(parameter, "_in_backward_optimizers", ()):
            if id(optimizer) not in known:
                raise ValueError(
                    f"the parameter {name!r} is stepped within backward, by an optimizer "
                    f"({type(optimizer).__name__}) that would not be saved: expected one optimizer "
                    "that is stepped after backward; with Checkpointer, those that "
                    "_apply_optimizer_in_backward has made may be in extra instead"
                )


def refuse_sharded_extra(name: str, part: object) -> None:
    """Raises ValueError if a module or an optimizer, a state dict or a part of one, named so in
    `extra`, holds tensors that are divided among the ranks."""
    if sharded_tensors(part):
        raise ValueError(
            f"extra[{name!r}] holds sharded tensors (DTensor), and a commit has one rank's extra "
            "for all: expected what every rank has alike; or, beside a sharded model, a module, "
            "or an optimizer whose state is divided as its parameters are, of which each rank's "
            "part is saved"
        )


def sharded_tensors(part: object) -> list[DTensor]:
    """Return those of a module or an optimizer, a state dict or a part of one, that are divided
    among the ranks; of an optimizer its parameters."""
    return [one for one in _tensors(part) if isinstance(one, DTensor)]


def _tensors(part: object) -> Iterator[Any]:
    if isinstance(part, torch.nn.Module):
        yield from part.parameters()
        yield from part.buffers()
    elif isinstance(part, torch.optim.Optimizer):
        for group in part.param_groups:
            yield from group["params"]
    elif isinstance(part, Mapping):
        for one in part.values():
            yield from _tensors(one)
    elif isinstance(part, list | tuple):
        for one in part:
            yield from _tensors(one)
    elif isinstance(part, torch.Tensor):
        yield part


def refuse_unsaved_split(model: torch.nn.Module, states: SplitStates) -> None:
    """Raises TypeError if parts of the model are split over the ranks, and none of `states`, so
    that nobody would save them."""
    saved = {id(module) for one in states for module in one.modules}
    split = [one for one in model.modules() if hasattr(one, "make_split_state")]
    lost = [one for one in split if id(one) not in saved]
    if lost:
        raise TypeError(
            f"the model has {len(lost)} {type(lost[0]).__name__}, whose tables are split over "
            "the ranks and would not be saved: expected all of them in Checkpointer's "
            "tables=SplitTables([...]), or ElasticLoop, which finds them"
        )


def refuse_beside_split(states: SplitStates, extra: Mapping[str, object], *, sharded: bool) -> None:
    """Raises ValueError if there are tables, and the model is sharded by fully_shard, or a
    GradScaler would scale gradients that they apply themselves."""
    if not states:
        return
    if sharded:
        raise ValueError(
            "the model is sharded (fully_shard), and has tables: expected a model whose other "
            "parameters are replicated, as with DistributedDataParallel"
        )
    if any(isinstance(one, GradScaler) and one.is_enabled() for one in extra.values()):
        raise ValueError(
            "extra has a GradScaler, and the model tables that apply their gradients themselves, "
            "where it doesn't unscale them: expected torch.bfloat16 in autocast, which needs none"
        )


def refuse_interval(every: object) -> None:
    """Raises TypeError, ValueError unless this says how often to save."""
    if isinstance(every, bool) or not isinstance(every, int | timedelta | None):
        raise TypeError(f"every is {every!r}: expected a number of steps, or a timedelta")
    least = every if every is None or isinstance(every, int) else every.total_seconds()
    if least is not None and least <= 0:
        raise ValueError(f"every is {every}: expected a positive number of steps, or a time")


def refuse_other_data(data: object) -> None:
    """Raises TypeError for data that doesn't know what was consumed of it."""
    if not isinstance(data, ElasticData):
        raise TypeError(
            f"data is a {type(data).__name__}: expected the ElasticDataset or ElasticSampler "
            "that training iterates, which knows what was consumed; "
            "ElasticDataset(data, batch_size=…, epochs=…) makes one of a map-style dataset"
        )
