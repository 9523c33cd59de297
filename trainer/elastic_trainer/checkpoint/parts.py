"""A sharded state from the memory of all ranks into another world; `reshard.py` says what goes
where."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from elastic_trainer.checkpoint.messages import Messages
from elastic_trainer.checkpoint.model_state import MismatchError, ModelState
from elastic_trainer.checkpoint.reshard import (
    Box,
    Boxes,
    Move,
    UncoveredError,
    plan_moves,
    shard_box,
)
from elastic_trainer.checkpoint.sharded_extra import Described, join, take_apart
from elastic_trainer.checkpoint.sharded_optimizer import NotedState, join_noted, note_shards
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import ShardPart, encode_placement
from elastic_trainer.store.slot import SlotError

_SHARDED = ("model", "optimizer")
"""Parts of a state that hold DTensors; of the others `extra` may."""
_STATE = "optimizer.state"
_EXTRA = "extra"


class UnreadablePartsError(SlotError):
    """Some ranks can't read parts that they hold.

    Args:
        owners: ranks of the earlier world, whose parts these are.
    """

    def __init__(self, problem: str, owners: frozenset[int]) -> None:
        super().__init__(problem)
        self.owners = owners


@dataclass(frozen=True, slots=True)
class _Rest:
    """The parts that aren't sharded, of the first of the earlier ranks whose part is there."""

    values: dict[str, Any]
    """Values of model and optimizer, by name."""
    others: dict[str, Any]
    """The state less model and optimizer, with notes of what is sharded in `extra`."""
    kinds: dict[str, Described]
    """By the name of what is sharded."""
    model: dict[str, Described]
    optimizer: NotedState
    groups: Any
    """The optimizer's."""


def load_parts(
    state: ModelState,
    read: Callable[[int], dict[str, Any]],
    holders: Mapping[int, int],
    group: ProcessGroup,
    moved: Callable[[int], None],
) -> None:
    """Give every rank its part of a state that was sharded over another world. On all ranks.

    Args:
        state: of the model that it is for, which is written to.
        read: returns the part of one of the earlier ranks, which this rank holds; raises SlotError.
        holders: by rank of the earlier world, the rank that has its part now.
        group: of this world.
        moved: called with the bytes of each message.

    Raises:
        UnreadablePartsError: on every rank, if parts can't be read.
        SlotError: on every rank, if not all is there.
        MismatchError: on every rank: it is another model's.
    """
    mine = [owner for owner, holder in holders.items() if holder == group.rank]
    parts: dict[int, dict[str, Any]] = {}
    problems: dict[int, str] = {}
    for owner in mine:
        try:
            parts[owner] = read(owner)
        except SlotError as error:
            problems[owner] = str(error)
    problems = {owner: why for of_rank in group.gather(problems) for owner, why in of_rank.items()}
    if problems:
        raise UnreadablePartsError("; ".join(problems.values()), frozenset(problems))
    first = min(holders)
    rest = group.from_rank(holders[first], _take_rest(parts[first]) if first in parts else None)
    assert rest is not None
    state.compare_model(rest.model)
    noted = _note_all(rest.optimizer, parts, group)
    kinds = rest.kinds | {
        f"{_STATE}.{name}.{key}": kind
        for name, of_parameter in noted.kinds.items()
        for key, kind in of_parameter.items()
    }
    whole = state.targets(noted, rest.groups)
    wanted = {name: leaf for name, leaf in _leaves(whole) if isinstance(leaf, DTensor)}
    targets = state.extra_targets(rest.others[_EXTRA], _under(_EXTRA, kinds))
    wanted |= {f"{_EXTRA}.{name}": target for name, target in targets.items()}
    for name, leaf in wanted.items():
        if kinds.get(name) != (tuple(leaf.shape), leaf.dtype):
            raise MismatchError(
                f"{name}: expected {leaf.dtype} of shape {tuple(leaf.shape)}, found "
                f"{kinds.get(name, 'none')}"
            )
    locals_ = {owner: _parts(part) for owner, part in parts.items()}
    said = group.gather(
        (
            {name: _wanted_box(leaf) for name, leaf in wanted.items()},
            {owner: _held_boxes(owner, shards) for owner, shards in locals_.items()},
        )
    )
    held = {owner: boxes for _, of_rank in said for owner, boxes in of_rank.items()}
    # A parameter that had no gradient yet in some of the parts has no state there.
    everywhere = set.intersection(*(set(boxes) for boxes in held.values()))
    partial = {name for name in wanted.keys() - everywhere if name.startswith(f"{_STATE}.")}
    for name in partial:
        wanted[name].to_local().zero_()
    try:
        moves = plan_moves([boxes for boxes, _ in said], held, holders, partial)
    except UncoveredError as error:
        raise SlotError(str(error)) from None

    messages = Messages(moved)

    def give_and_take() -> None:
        for move in moves:
            _carry_out(move, messages, group.rank, wanted, locals_, said[move.taker][0], held)
        messages.flush()

    messages.run(give_and_take, group.over or (lambda: False))
    values = dict(_walk(_STATE, noted.values)) | rest.values
    loaded = {key: _replace_values(whole[key], key, values) for key in _SHARDED}
    extra = join(rest.others[_EXTRA], targets)
    state.give({**loaded, **rest.others, _EXTRA: extra}, owned=True)
    if group.rank == first == 0:
        state.give_generators(rest.others)


def _carry_out(
    move: Move,
    messages: Messages,
    rank: int,
    wanted: Mapping[str, DTensor],
    locals_: Mapping[int, Mapping[str, ShardPart]],
    wanted_boxes: Boxes,
    held: Mapping[int, Boxes],
) -> None:
    source = target = None
    if move.giver == rank:
        local = locals_[move.owner][move.name].local
        source = _cut(local, held[move.owner][move.name], move.box)
    if move.taker == rank:
        target = _cut(wanted[move.name].to_local(), wanted_boxes[move.name], move.box)
    if source is not None and target is not None:
        target.copy_(source)
    elif source is not None:
        messages.send(source, move.taker)
    elif target is not None:
        messages.expect(target, move.giver)


def _cut(local: torch.Tensor, held: Box, box: Box) -> torch.Tensor:
    """Return what of a box a rank's tensor, which holds the box `held`, has."""
    for dimension, ((begin, end), (offset, _)) in enumerate(zip(box, held, strict=True)):
        local = local.narrow(dimension, begin - offset, end - begin)
    return local


def _wanted_box(leaf: DTensor) -> Box:
    coordinate = leaf.device_mesh.get_coordinate()
    if coordinate is None:
        return ((0, 0),) * leaf.ndim
    placements = [encode_placement(placement) for placement in leaf.placements]
    return shard_box(leaf.shape, placements, leaf.device_mesh.mesh.shape, coordinate)


def _held_boxes(owner: int, shards: Mapping[str, ShardPart]) -> dict[str, Box]:
    boxes = {}
    for name, part in shards.items():
        _, mesh_shape, ranks, _ = part.mesh
        if owner not in ranks:
            continue
        place = ranks.index(owner)
        coordinate: list[int] = []
        for size in reversed(mesh_shape):
            place, index = divmod(place, size)
            coordinate.insert(0, index)
        boxes[name] = shard_box(part.shape, part.placements, mesh_shape, coordinate)
    return boxes


def _take_rest(part: dict[str, Any]) -> _Rest:
    values, model = {}, {}
    for name, leaf in _leaves(part):
        if not isinstance(leaf, ShardPart):
            values[name] = leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
        if name.startswith("model.") and isinstance(leaf, ShardPart | torch.Tensor):
            dtype = leaf.local.dtype if isinstance(leaf, ShardPart) else leaf.dtype
            model[name.removeprefix("model.")] = (tuple(leaf.shape), dtype)
    others = {key: value for key, value in part.items() if key not in _SHARDED}
    others[_EXTRA], _ = take_apart(part[_EXTRA])
    kinds = {name: (shard.shape, shard.local.dtype) for name, shard in _parts(part).items()}
    noted = note_shards(part, part["optimizer"]["state"])
    return _Rest(values, others, kinds, model, noted, part["optimizer"]["param_groups"])


def _note_all(
    first: NotedState, parts: Mapping[int, Mapping[str, Any]], group: ProcessGroup
) -> NotedState:
    """Return the first part's, and on all ranks what other parts have a state of beside."""
    others = [
        note_shards(part, part["optimizer"]["state"].keys() - first.values.keys())
        for _, part in sorted(parts.items())
    ]
    return join_noted([first, *group.gather(join_noted(others))])


def _parts(state: Mapping[str, Any]) -> dict[str, ShardPart]:
    found = {name: leaf for name, leaf in _leaves(state) if isinstance(leaf, ShardPart)}
    _, extra = take_apart(state[_EXTRA])
    return found | {f"{_EXTRA}.{name}": part for name, part in extra.items()}


def _under(key: str, kinds: Mapping[str, Described]) -> dict[str, Described]:
    """Return those of one part of a state, by their names in it."""
    start = f"{key}."
    return {name.removeprefix(start): one for name, one in kinds.items() if name.startswith(start)}


def _leaves(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of model and optimizer."""
    for key in _SHARDED:
        yield from _walk(key, state[key])


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _walk(f"{name}.{key}", one)
    elif type(value) in (list, tuple):
        for number, one in enumerate(value):
            yield from _walk(f"{name}.{number}", one)
    else:
        yield name, value


def _replace_values(value: Any, name: str, values: Mapping[str, Any]) -> Any:
    """Return a state with other values in place of what isn't sharded.

    Raises:
        MismatchError: there is none for one of them.
    """
    if isinstance(value, dict):
        replaced = copy.copy(value)  # with its attributes: a module's state has `_metadata`
        for key, one in value.items():
            dict.__setitem__(replaced, key, _replace_values(one, f"{name}.{key}", values))
        return replaced
    if type(value) in (list, tuple):
        items = (_replace_values(one, f"{name}.{n}", values) for n, one in enumerate(value))
        return type(value)(items)
    if isinstance(value, DTensor):
        return value
    if name not in values:
        raise MismatchError(f"{name}: expected a value of it in the checkpoint, found none")
    return values[name]
