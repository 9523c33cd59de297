"""An immutable mapping of which each change makes another one, cheaply; pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

MOST_CHANGES = 64
"""That are kept beside the entries they change: each change copies these, and all of the entries
are copied once there are more."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class PersistentMap(Mapping[Key, Value], Generic[Key, Value]):
    """Iterates in the order of a dict that was changed in place."""

    __slots__ = ("_base", "_changes", "_size")

    def __init__(self, entries: Mapping[Key, Value] | None = None) -> None:
        self._base: dict[Key, Value] = dict(entries) if entries else {}
        self._changes: dict[Key, Value] = {}
        self._size = len(self._base)

    def __getitem__(self, key: Key) -> Value:
        if key in self._changes:
            return self._changes[key]
        return self._base[key]

    def __contains__(self, key: object) -> bool:
        return key in self._changes or key in self._base

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Key]:
        return iter(self.as_dict())

    def __repr__(self) -> str:
        return f"PersistentMap({self.as_dict()!r})"

    def as_dict(self) -> dict[Key, Value]:
        """Return all entries, to be read only."""
        if self._changes:
            # Whoever reads them all does so again before the next change.
            self._base, self._changes = {**self._base, **self._changes}, {}
        return self._base

    def with_entry(self, key: Key, value: Value) -> PersistentMap[Key, Value]:
        """Return the mapping with one entry added or replaced."""
        made: PersistentMap[Key, Value] = PersistentMap.__new__(PersistentMap)
        made._size = self._size + (key not in self)
        if len(self._changes) < MOST_CHANGES:
            made._base, made._changes = self._base, {**self._changes, key: value}
        else:
            made._base, made._changes = {**self._base, **self._changes, key: value}, {}
        return made

    def without(self, key: Key) -> PersistentMap[Key, Value]:
        """Return the mapping without an entry; copies all others."""
        left = {**self._base, **self._changes}
        del left[key]
        return PersistentMap(left)
