"""Values of a state: in a form that every file and process can read, and back as they were.

A commit is read by processes that lack the script's classes (the agent, a notebook), and by
torch's closed unpickler. So what a state holds beside tensors, numbers, strings, dicts, lists,
tuples, sets, OrderedDicts and Counters is replaced by a dict that describes it:

    {"elastic_trainer.value": "namedtuple", "class": "train:Ema", "fields": [...], "items": [...]}
"""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from elastic_trainer.store.blob import flat

MARK = "elastic_trainer.value"

_FACTORIES = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (int, float, str, list, dict, set, bool, tuple, collections.Counter)
}
_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, set}
    | {type(None), torch.Size, torch.device, torch.dtype}
)


class StateValueError(ValueError):
    """The state holds a value that no commit can bring back."""


def to_plain(value: Any) -> Any:
    """Return `value` in a form that can be saved; `value` itself where that is one.

    Raises:
        StateValueError: it holds something that couldn't be brought back, said by its type.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if kind in (dict, collections.OrderedDict, collections.Counter):
        changed = {key: plain for key, one in value.items() if (plain := to_plain(one)) is not one}
        if MARK in value:
            return {MARK: "dict", "items": [[key, to_plain(one)] for key, one in value.items()]}
        if not changed:
            return value
        replaced = copy.copy(value)  # with its attributes: a module's state has `_metadata`
        for key, plain in changed.items():
            dict.__setitem__(replaced, key, plain)
        return replaced
    if kind in (list, tuple):
        items = _items(value)
        same = all(plain is one for plain, one in zip(items, value, strict=True))
        return value if same else kind(items)
    return _described(value)


def from_plain(value: Any, memory: dict[Any, torch.Tensor] | None = None) -> Any:
    """Return what `to_plain` was given; it shares no memory with `value`.

    Args:
        memory: what was copied already: tensors of the same memory stay tensors of the same memory.

    Raises:
        StateValueError: this script lacks a class that the value is of.
    """
    memory = {} if memory is None else memory
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return own(value, memory)
    if isinstance(value, dict):
        if MARK in value:
            return _restored(value, memory)
        copied = copy.copy(value)
        for key, one in value.items():
            dict.__setitem__(copied, key, from_plain(one, memory))
        return copied
    if kind in (list, tuple):
        return kind(from_plain(one, memory) for one in value)
    return copy.copy(value) if kind in (set, bytearray) else value


def own(tensor: torch.Tensor, memory: dict[Any, torch.Tensor]) -> torch.Tensor:
    """Return a copy of equal strides; `memory` has the copies that were made before."""
    whole = None if isinstance(tensor, DTensor) else flat(tensor.detach())
    if whole is None or not whole.numel():
        return tensor.detach().clone()
    key = (whole.device, whole.data_ptr(), whole.numel() * whole.element_size())
    if key not in memory:
        memory[key] = whole.view(torch.uint8).clone()
    return memory[key].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _items(values: Iterable[Any]) -> list[Any]:
    return [to_plain(one) for one in values]


def _described(value: Any) -> Any:
    kind = type(value)
    if kind is collections.defaultdict:
        factory = value.default_factory
        name = next((name for name, known in _FACTORIES.items() if known is factory), None)
        if factory is None or name is not None:
            items = [[key, to_plain(one)] for key, one in value.items()]
            return {MARK: "defaultdict", "factory": name, "items": items}
    if kind is collections.deque:
        return {MARK: "deque", "maxlen": value.maxlen, "items": _items(value)}
    if kind is frozenset:
        return {MARK: "frozenset", "items": list(value)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        place = f"{kind.__module__}:{kind.__qualname__}"
        if _class(place) is kind:
            fields = list(kind._fields)
            return {MARK: "namedtuple", "class": place, "fields": fields, "items": _items(value)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return {
            MARK: "array" if isinstance(value, np.ndarray) else "number",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "bytes": torch.from_numpy(content.copy()),
        }
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise StateValueError(
        f"the state holds a {name}: expected tensors, numbers, strings, dicts, lists, tuples, "
        "sets, the kinds of them in `collections`, and NumPy's numbers; leave it out of "
        "state_dict()"
    )


def _restored(value: dict[str, Any], memory: dict[Any, torch.Tensor]) -> Any:
    kind = value[MARK]
    if kind in ("dict", "defaultdict"):
        pairs = {key: from_plain(one, memory) for key, one in value["items"]}
        if kind == "dict":
            return pairs
        name = value["factory"]
        return collections.defaultdict(None if name is None else _FACTORIES[name], pairs)
    if kind in ("array", "number"):
        content = value["bytes"].detach().cpu().numpy().copy()
        array = content.view(np.dtype(value["dtype"])).reshape(value["shape"])
        return array if kind == "array" else array[()]
    items = [from_plain(one, memory) for one in value["items"]]
    if kind == "deque":
        return collections.deque(items, value["maxlen"])
    if kind == "frozenset":
        return frozenset(items)
    found = _class(value["class"]) if kind == "namedtuple" else None
    fields = None if found is None else list(getattr(found, "_fields", ()))
    if found is None or not issubclass(found, tuple) or fields != value["fields"]:
        raise StateValueError(
            f"the checkpoint holds a {value.get('class', kind)} of {value.get('fields')}: this "
            f"script has {'none' if found is None else fields}; restore the script that wrote it"
        )
    return tuple.__new__(found, items)


def _class(place: str) -> type | None:
    """Return the class that is imported from there; nothing is imported for it."""
    module, _, name = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
