"""Making: a sharded model and its optimizer, made anew by the script for each round's world.

A model that `fully_shard` has divided among the ranks of one world can't be given to another. So
the script says how it is made, and the loop fills it with the state that memory holds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import debug as tensor_debug

from elastic_trainer.checkpoint.model_state import Stateful

Made = (
    tuple[torch.nn.Module, torch.optim.Optimizer]
    | tuple[torch.nn.Module, torch.optim.Optimizer, Mapping[str, Stateful]]
)
"""A model, its optimizer, and what else is to be saved, by name."""

_EXAMPLE = (
    "a function that returns (model, optimizer), or (model, optimizer, extra), with "
    "fully_shard(model) before the optimizer is made"
)


def make_sharded(
    make: Callable[[], Made], seed: int
) -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Stateful]]:
    """Return what `make` makes for the world that there is. On all ranks, which all draw the same
    numbers in it, as parts of one beginning are to fit.

    Raises:
        TypeError: it returns something else.
        ValueError: the model isn't sharded.
    """
    gpus: Any = torch.cuda
    in_use = [gpus.current_device()] if gpus.is_initialized() else []
    with torch.random.fork_rng(in_use):
        torch.manual_seed(seed)
        made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise TypeError(f"make returned a {type(made).__name__}: expected {_EXAMPLE}")
    model, optimizer = made[:2]
    extra = dict(made[2]) if len(made) == 3 else {}
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"make returned a {type(model).__name__} as model: expected {_EXAMPLE}")
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            f"make returned a {type(model).__name__} that isn't sharded: expected {_EXAMPLE}; a "
            "model that every rank has whole is given as model=, with optimizer=, and made once"
        )
    return model, optimizer, extra


def warm_up_sharded(model: torch.nn.Module) -> None:
    """Shard a model over a world of one, and make a step with it."""
    spare_older()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 1, device="cpu")).sum().backward()
    optimizer.step()
    get_optimizer_state_dict(model, optimizer)
    del mesh, optimizer


def forget_world() -> None:
    """Let go of what a world's sharded tensors have left behind, once nothing holds them.

    torch keeps what it has found out about operations by the ranks that share a tensor, with the
    process groups of that time; a later world of equal ranks would be given those. A sharded model
    refers to itself, so only a collection frees it. What was there before it was made is left out
    of that, by `spare_older`: all modules, which take 0.2 s of CPU to look through.
    """
    # Private, and "for debugging" to torch, which knows of no second world in a process.
    for name in ("_clear_sharding_prop_cache", "_clear_python_sharding_prop_cache"):
        clear = getattr(tensor_debug, name, None)
        if clear is not None:
            clear()
            break
    else:
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    gc.collect()


def spare_older() -> None:
    """Leave what there is now out of collections, until `gc.unfreeze`."""
    gc.freeze()
