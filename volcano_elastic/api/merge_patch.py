"""JSON merge patch (RFC 7386): the smallest one that turns one object into another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Empty if they are equal. Lists are replaced whole; keys that vanish become None."""
    patch: dict[str, Any] = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = difference(before, value)
            if inner:
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch
