"""Takes and gives a sharded model's optimizer state without torch's step of nothing.

An optimizer has a state of those parameters that have had a gradient, a fresh one none. Asked for a
state, or given one, torch first has a fresh one make a step with gradients of zero, for the
tensors' sake, and then wants a state of every parameter. Here a state is taken as it is, and its
tensors are made like the parameters that they are of, where all of them are divided as those are;
any other optimizer makes torch's step. Parameters without a state, such as those of an expert that
no sample came to, have none afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import xxhash
from torch.distributed.checkpoint.state_dict import (
    _get_fqns,
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from elastic_trainer.checkpoint.sharded_extra import (
    Described,
    empty_like,
    is_sharded,
    join,
    take_apart,
)
from elastic_trainer.store.blob import ShardPart

_SHOWN = 3


class OptimizerMismatchError(ValueError):
    """The checkpoint's optimizer is another one than this script's."""


@dataclass(frozen=True, slots=True)
class NotedState:
    """An optimizer's state with notes in place of its sharded tensors."""

    values: dict[str, Any]
    """By parameter; notes have the tensors' names within their parameter's."""
    kinds: dict[str, dict[str, Described]]
    """By parameter and name within it, what the sharded tensors are."""
    alike: bool
    """Each sharded tensor is divided as its parameter is."""


def note_shards(state: Mapping[str, Any], names: Collection[str]) -> NotedState:
    """Return the optimizer's state of these parameters.

    Args:
        state: one rank's part of it, as `ModelState.take`, `Slot.read` or `Slot.read_parts` return
            it.
    """
    noted, kinds, alike = {}, {}, True
    for name in names:
        parameter = state["model"].get(name)
        noted[name], shards = take_apart(state["optimizer"]["state"][name])
        kinds[name] = {
            key: (
                tuple(shard.shape),
                (shard.local if isinstance(shard, ShardPart) else shard).dtype,
            )
            for key, shard in shards.items()
        }
        alike &= all(
            is_sharded(parameter) and _layout(shard) == _layout(parameter)
            for shard in shards.values()
        )
    return NotedState(noted, kinds, alike)


def join_noted(noted: Sequence[NotedState]) -> NotedState:
    """Return them as one; of a parameter that several have, the first one's."""
    values: dict[str, Any] = {}
    kinds: dict[str, dict[str, Described]] = {}
    for one in reversed(noted):
        values |= one.values
        kinds |= one.kinds
    return NotedState(values, kinds, all(one.alike for one in noted))


def take_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state by its parameters' names, which another world knows, too."""
    marked = _mark(optimizer)
    try:
        found = cast(dict[str, Any], get_optimizer_state_dict(model, optimizer))
    finally:
        if marked:
            optimizer.state.clear()
    return {**found, "state": {}} if marked else found


def empty_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    noted: NotedState,
    groups: Any,
    likes: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return a saved state with this world's tensors in place of the notes, to load those into;
    None where this optimizer may be of another kind, or brings its state back in a way of its own.

    Args:
        noted: of all parameters that have a state.
        groups: the saved `param_groups`.
        likes: the model's state, whose tensors this world's are divided like.
    """
    here = take_state(model, optimizer)["param_groups"] if _is_plain(optimizer) else []
    names = {name for group in here for name in group["params"]}
    options = [group.keys() for group in here]
    sharded = any(is_sharded(value) for value in take_apart({"": groups})[1].values())
    if (
        not noted.alike
        or sharded
        or not noted.values.keys() <= names
        or options != [group.keys() for group in groups]
        or not all(isinstance(likes.get(name), DTensor) for name in noted.values)
    ):
        return None
    return {"state": _made_like(noted, noted.values, likes), "param_groups": groups}


def stepped_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, names: Collection[str] | None
) -> dict[str, Any]:
    """Return the state that torch makes of an optimizer without one, to load a saved one into.

    Args:
        names: the parameters that it is to be of; None: all.

    Raises:
        OptimizerMismatchError: it has none of one of them.
    """
    parameters = {
        name: parameter
        for key, parameter in model.named_parameters()
        for name in _get_fqns(model, key)
    }
    frozen = [  # no others: a state of all of a large model may be too much for the device
        parameter
        for name, parameter in parameters.items()
        if name in (names or ()) and not parameter.requires_grad
    ]
    # Where there are some, as after a script's trial step, torch makes no step.
    gradients = [(parameter, parameter.grad) for parameter in parameters.values()]
    if _is_plain(optimizer):
        optimizer.state.clear()
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        for parameter, _ in gradients:
            parameter.grad = None
        found = cast(dict[str, Any], get_optimizer_state_dict(model, optimizer))
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for parameter in frozen:
            parameter.requires_grad_(False)
    if names is None:
        return found
    if lacking := sorted(set(names) - found["state"].keys()):
        raise OptimizerMismatchError(
            f"the checkpoint has an optimizer's state of {_few(lacking)}: expected this "
            f"{type(optimizer).__name__} to make one of it, found none"
        )
    return {**found, "state": {name: found["state"][name] for name in names}}


def load_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Give an optimizer a state, whose tensors it keeps, and no other.

    Raises:
        OptimizerMismatchError: it is of other parameters, or of other groups of them.
    """
    here = [group["params"] for group in take_state(model, optimizer)["param_groups"]]
    saved = list(state["param_groups"])
    groups = []
    for names in here:
        found = next((one for one in saved if set(one["params"]) == set(names)), None)
        if found is None:
            raise OptimizerMismatchError(
                f"the checkpoint's optimizer has no parameter group of {_few(names)}: expected one "
                f"for each of this {type(optimizer).__name__}'s {len(here)}, found "
                f"{', '.join(_few(one['params']) for one in state['param_groups'])}"
            )
        saved.remove(found)
        groups.append({**found, "params": names})
    if saved:
        raise OptimizerMismatchError(
            f"the checkpoint's optimizer has a parameter group of {_few(saved[0]['params'])}: "
            f"expected this {type(optimizer).__name__}'s {len(here)}, found one more"
        )
    optimizer.load_state_dict({**state, "param_groups": groups})


def even_out(state: Mapping[str, Any], gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Return the optimizer's part of a state with zeros for what other ranks have a state of and
    this one hasn't, as commits hold all of a tensor.

    Args:
        state: this rank's part.
        gather: returns, on all ranks, what each gave it, by rank.
    """
    optimizer: dict[str, Any] = state["optimizer"]
    own = frozenset(optimizer["state"])
    if len(set(gather(xxhash.xxh3_64_hexdigest(repr(sorted(own)).encode())))) == 1:
        return optimizer
    everyones: list[frozenset[str]] = gather(own)
    partial = frozenset().union(*everyones) - frozenset.intersection(*everyones)
    noted = join_noted(gather(note_shards(state, own & partial)))
    likes = {name: one for name, one in state["model"].items() if isinstance(one, DTensor)}
    lacking = _made_like(noted, (partial - own) & likes.keys(), likes)
    for name in lacking:
        for tensor in take_apart(lacking[name])[1].values():
            tensor.to_local().zero_()
    return {**optimizer, "state": {**optimizer["state"], **lacking}}


def _made_like(
    noted: NotedState, names: Collection[str], likes: Mapping[str, DTensor]
) -> dict[str, Any]:
    made = {}
    for name in names:
        tensors = {
            key: empty_like(likes[name], dtype) for key, (_, dtype) in noted.kinds[name].items()
        }
        made[name] = join(noted.values[name], tensors)
    return made


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


def _layout(part: ShardPart | DTensor) -> Any:
    spread = part.mesh if isinstance(part, ShardPart) else part.device_mesh
    return spread, tuple(part.placements), tuple(part.shape)


def _few(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
