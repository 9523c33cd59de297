"""Gives a sharded model's optimizer its state without the step of nothing that torch has it make.

A fresh optimizer has no state. Asked for one, or given one, torch first has it make a step with
gradients of zero, for the tensors' sake. Here they are made like the parameters that they are of,
where all of a saved state's are divided as those are; any other optimizer makes torch's step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from elastic_trainer.checkpoint.sharded_extra import Described, empty_like, join, take_apart
from elastic_trainer.store.blob import ShardPart


def note_shards(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the optimizer's part of a state with notes in place of its sharded tensors, named
    within their parameters'; None where one of them isn't divided as its parameter is.

    Args:
        state: one rank's part of it, as `Slot.read_parts` returns it.
    """
    noted = {}
    for name, values in state["optimizer"]["state"].items():
        parameter = state["model"].get(name)
        noted[name], shards = take_apart(values)
        for shard in shards.values():
            if not isinstance(parameter, ShardPart) or _layout(shard) != _layout(parameter):
                return None
    groups, shards = take_apart({"": state["optimizer"]["param_groups"]})
    return None if shards else {"state": noted, "param_groups": groups[""]}


def empty_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    noted: Mapping[str, Any],
    likes: Mapping[str, Any],
    described: Mapping[str, Described],
) -> dict[str, Any] | None:
    """Return a saved state with this world's tensors in place of the notes, to load those into;
    None where this optimizer may be of another kind, or brings its state back in a way of its own.

    Args:
        noted: what `note_shards` returned.
        likes: the model's state, whose tensors this world's are divided like.
        described: by name, from `state` on, what the sharded tensors are.
    """
    if not _is_plain(optimizer):
        return None
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = {name for group in _name_groups(model, optimizer) for name in group["params"]}
    options = [group.keys() for group in optimizer.param_groups]
    if (
        names != noted["state"].keys()
        or not all(parameter.requires_grad for parameter in trained)
        or options != [group.keys() for group in noted["param_groups"]]
    ):
        return None
    state = {}
    for name, values in noted["state"].items():
        like = likes[name]
        if not isinstance(like, DTensor):
            return None
        start = f"state.{name}."
        state[name] = join(
            values,
            {
                key.removeprefix(start): empty_like(like, dtype)
                for key, (_, dtype) in described.items()
                if key.startswith(start)
            },
        )
    return {**noted, "state": state}


def load_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Give an optimizer a state, whose tensors it keeps."""
    marked = _mark(optimizer)
    try:
        set_optimizer_state_dict(model, optimizer, dict(state))
    except BaseException:
        if marked:
            optimizer.state.clear()
        raise


def _name_groups(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the optimizer's groups, with their parameters' names."""
    marked = _mark(optimizer)
    try:
        found: list[dict[str, Any]] = get_optimizer_state_dict(model, optimizer)["param_groups"]  # type: ignore[assignment]
        return found
    finally:
        if marked:
            optimizer.state.clear()


def _mark(optimizer: torch.optim.Optimizer) -> bool:
    """Have torch take an optimizer for one that has its state; return whether that was needed."""
    first = next((one for group in optimizer.param_groups for one in group["params"]), None)
    if optimizer.state or first is None or not _is_plain(optimizer):
        return False
    optimizer.state[first] = {}
    return True


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    kind, base = type(optimizer), torch.optim.Optimizer
    return (kind.state_dict, kind.load_state_dict) == (base.state_dict, base.load_state_dict)


def _layout(part: ShardPart) -> Any:
    return part.mesh, part.placements, part.shape
