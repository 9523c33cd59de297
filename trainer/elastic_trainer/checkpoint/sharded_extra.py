"""Tells the sharded tensors in `extra` from what every rank has alike, and joins them again.

A commit has one rank's `extra` for all. So tensors in it that are divided among the ranks are kept
apart, each rank's part as those of model and optimizer are, and a note of their names in their
place. Names are their ways through the states, such as `average.module.0.weight`, and
`second.state.3.exp_avg` for an optimizer, whose parameters have numbers in every world.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch.distributed.tensor import DTensor

from elastic_trainer.store.blob import ShardPart

NOTE = "elastic_trainer.sharded"
"""Key of a note, whose value is the tensor's name."""

Described = tuple[tuple[int, ...], torch.dtype]
"""A whole tensor's shape, and its dtype."""
_Way = tuple[Any, ...]


class ExtraMismatchError(ValueError):
    """The checkpoint's `extra` is sharded in another way than this script's."""


def is_sharded(value: Any) -> TypeGuard[DTensor | ShardPart]:
    return isinstance(value, DTensor | ShardPart)


def take_apart(extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `extra` with notes in place of sharded tensors, and those by name.

    Raises:
        ValueError: two of them have one name.
    """
    sharded: dict[str, Any] = {}

    def note(way: _Way, tensor: Any) -> dict[str, str]:
        name = _name(way)
        if name in sharded:
            raise ValueError(
                f"extra has two sharded tensors named {name}: expected names of its parts without "
                "dots"
            )
        sharded[name] = tensor
        return {NOTE: name}

    return _replaced(extra, (), is_sharded, note), sharded


def join(noted: Mapping[str, Any], sharded: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `extra` with sharded tensors in place of the notes of them; a note stays where
    there is no tensor, as of a part that the script has no more."""
    joined: dict[str, Any] = _replaced(
        noted, (), _is_note, lambda _, note: sharded.get(note[NOTE], note)
    )
    return joined


def empty_targets(
    noted: Mapping[str, Any], parts: Mapping[str, Any], described: Mapping[str, Described]
) -> dict[str, DTensor]:
    """Return tensors to load the sharded ones into, by name, divided as this world's parts of
    `extra` are.

    Args:
        noted: a state's `extra`, with notes.
        parts: this script's, by name.
        described: by name, what the checkpoint has.

    Raises:
        ExtraMismatchError: they are sharded in another way.
    """
    found: dict[str, DTensor] = {}
    likes = {name: _likes(part) for name, part in parts.items()}
    for way, _ in _walk(noted, (), is_sharded):
        if way[0] in parts:  # as commits were written that held one rank's extra as it was
            raise ExtraMismatchError(
                f"extra's {_name(way)} is one rank's part in the checkpoint, which lacks the "
                f"others': expected no {way[0]!r} in extra"
            )
    for way, note in _walk(noted, (), _is_note):
        if way[0] not in parts:
            continue
        name = str(note[NOTE])
        like = likes[way[0]](way[1:])
        if name not in described or like is None or tuple(like.shape) != described[name][0]:
            here = "none" if like is None else f"one of shape {tuple(like.shape)}"
            there = described[name][0] if name in described else "none"
            raise ExtraMismatchError(
                f"extra's {name} is sharded in the checkpoint, of shape {there}: expected a "
                f"sharded tensor to load it into, found {here}"
            )
        found[name] = empty_like(like, described[name][1])
    for name, part in parts.items():
        if not isinstance(part, torch.nn.Module):
            continue
        lacking = [
            _name((name, key))
            for key, value in part.state_dict().items()
            if isinstance(value, DTensor) and _name((name, key)) not in found
        ]
        if lacking and name in noted:
            raise ExtraMismatchError(
                f"extra's {', '.join(lacking[:3])} is sharded here: expected it to be so in the "
                "checkpoint, too"
            )
    return found


def find_unplaced(part: Any, state: Any) -> str | None:
    """Return the name of a sharded tensor in the state of a part of `extra` that another world
    couldn't place; None if there is none."""
    like = (lambda way: None) if isinstance(part, torch.nn.Module) else _likes(part)
    for way, tensor in _walk(state, (), lambda value: isinstance(value, DTensor)):
        if isinstance(part, torch.nn.Module) and len(way) == 1:
            continue
        parameter = like(way)
        if parameter is None or _layout(parameter) != _layout(tensor):
            return _name(way)
    return None


def _likes(part: Any) -> Callable[[_Way], DTensor | None]:
    """Return what finds this world's tensor that the one at a place of a part's state is divided
    like: a module's own, or the parameter that an optimizer's state is of."""
    given: Mapping[Any, Any] = {}
    if isinstance(part, torch.nn.Module):
        given = {(key,): value for key, value in part.state_dict().items()}
    elif isinstance(part, torch.optim.Optimizer):
        parameters = [one for group in part.param_groups for one in group["params"]]
        given = {("state", number): one for number, one in enumerate(parameters)}

    def find(way: _Way) -> DTensor | None:
        found = given.get(way[:2])
        return found if isinstance(found, DTensor) else None

    return find


def _layout(tensor: DTensor) -> Any:
    return tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape)


def empty_like(like: DTensor, dtype: torch.dtype) -> DTensor:
    """Return a tensor that is divided like another; its memory isn't written."""
    return DTensor.from_local(
        torch.empty_like(like.to_local(), dtype=dtype),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _is_note(value: Any) -> bool:
    return isinstance(value, dict) and NOTE in value


def _name(way: _Way) -> str:
    return ".".join(str(one) for one in way)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif type(value) in (list, tuple):
        yield from enumerate(value)


def _walk(value: Any, way: _Way, wanted: Callable[[Any], bool]) -> Iterator[tuple[_Way, Any]]:
    if wanted(value):
        yield way, value
        return
    for key, one in _items(value):
        yield from _walk(one, (*way, key), wanted)


def _replaced(
    value: Any, way: _Way, wanted: Callable[[Any], bool], other: Callable[[_Way, Any], Any]
) -> Any:
    """Return a copy of nested values with others in place of those that are wanted."""
    if wanted(value):
        return other(way, value)
    if isinstance(value, dict):
        copied = copy.copy(value)  # with its attributes: a module's state has `_metadata`
        for key, one in value.items():
            dict.__setitem__(copied, key, _replaced(one, (*way, key), wanted, other))
        return copied
    if type(value) in (list, tuple):
        items = (_replaced(one, (*way, key), wanted, other) for key, one in enumerate(value))
        return type(value)(items)
    return value
