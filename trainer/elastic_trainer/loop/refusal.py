"""Models and optimizers that an ElasticLoop can't undo a step of, refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.distributed.tensor import DTensor

from elastic_trainer.checkpoint.refusal import refuse_fsdp1
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.stream import ElasticStream


def refuse_both(model: object, optimizer: object, make: object, *, beside: bool) -> None:
    """Raises TypeError unless there are either model and optimizer, or what makes them, and that
    with nothing `beside` it that would stay as it is."""
    if make is None and (model is None or optimizer is None):
        raise TypeError(
            "ElasticLoop needs model= and optimizer=, or, for a sharded model, make=, a function "
            "that returns both"
        )
    if make is not None and (model is not None or optimizer is not None or beside):
        raise TypeError(
            "make= goes without model=, optimizer=, extra= and wrap=, which would be of one world "
            "alone: expected make to return (model, optimizer, extra), each made for its ranks"
        )


def refuse_order(data: object) -> None:
    """Raises TypeError for data that hands no batches out by itself."""
    if not isinstance(data, ElasticDataset | ElasticStream):
        raise TypeError(
            f"data is a {type(data).__name__}: expected an ElasticDataset or an ElasticStream, "
            "whose batches the loop hands out"
        )


def refuse_closure(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for an optimizer whose `step` makes forward and backward passes itself."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS.step() needs a closure that makes forward and backward passes, so a lost peer "
            "could leave a step half applied: expected an optimizer that steps by the gradients "
            "there are, or Checkpointer in your own loop instead of ElasticLoop"
        )


def refuse_sharded(model: torch.nn.Module) -> None:
    """Raises ValueError if the model, or what `wrap` made of it, is divided among the ranks."""
    refuse_fsdp1(model)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            "the model is sharded over one world, and each round has another: give ElasticLoop "
            "make=, a function that makes model and optimizer, in place of model= and optimizer="
        )


def trained_parameters(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of those that have gradients."""
    return tuple(name for name, one in model.named_parameters() if one.requires_grad)


def refuse_unequal(trained: Sequence[tuple[str, ...]]) -> None:
    """Raises ValueError unless all ranks train the same parameters, each given by its rank."""
    for rank, names in enumerate(trained):
        if names != trained[0]:
            other = sorted(set(names) ^ set(trained[0]))
            raise ValueError(
                f"rank {rank} trains {len(names)} parameters, rank 0 {len(trained[0])}, so their "
                f"gradients can't be averaged: {', '.join(other[:3]) or 'in another order'}. A "
                "rank that joins makes the model anew: expected requires_grad as the script first "
                "set it, on all ranks and in all steps; give what shall stay as it is a learning "
                "rate of 0 instead"
            )


def refuse_unaveraged(model: torch.nn.Module, optimizers: Iterable[object]) -> None:
    """Raises ValueError if one of these optimizers steps parameters that the model hasn't."""
    ours = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            continue
        given = [one for group in optimizer.param_groups for one in group["params"]]
        others = [one for one in given if id(one) not in ours]
        if others:
            raise ValueError(
                f"an optimizer ({type(optimizer).__name__}) has {len(others)} of {len(given)} "
                "parameters that ElasticLoop's model lacks: only the model's gradients are "
                "averaged over the ranks, so each rank would train those by itself. Expected one "
                "module of all that is trained, whose forward gives the losses, as model=, or a "
                "wrap= that averages them too"
            )
