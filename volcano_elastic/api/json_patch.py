"""JSON patch (RFC 6902): the operations that turn one object into another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def difference(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[Operation]:
    """Empty if they are equal. Lists are replaced whole."""
    return list(_difference(old, new, path))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for key in old:
        if key not in new:
            yield {"op": "remove", "path": _below(path, key)}
    for key, value in new.items():
        at = _below(path, key)
        if key not in old:
            yield {"op": "add", "path": at, "value": value}
        elif isinstance(value, Mapping) and isinstance(old[key], Mapping):
            yield from _difference(old[key], value, at)
        elif old[key] != value or isinstance(old[key], bool) != isinstance(value, bool):
            yield {"op": "replace", "path": at, "value": value}


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
