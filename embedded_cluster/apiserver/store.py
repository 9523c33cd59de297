"""All objects, in memory, with one history a resource for watches to replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import orjson

from embedded_cluster.apiserver.journal import SqliteJournal
from embedded_cluster.apiserver.kind import ResourceKey
from embedded_cluster.apiserver.status import bad_request
from volcano_elastic.kube.resource import Object

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
# How many changes of a resource, and of how much JSON, are kept for watches that resume or are
# behind; older ones get 410.
_HISTORY = 10_000
_HISTORY_BYTES = 32 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Stored:
    """An object and its JSON. Neither is ever changed: a write makes a new Stored."""

    obj: Object
    raw: bytes

    @classmethod
    def of(cls, obj: Object) -> Stored:
        """Raises StatusError, 400, for an object that is nested too deeply to be told."""
        try:
            return cls(obj, orjson.dumps(obj))
        except TypeError as error:
            raise bad_request(f"the object can't be told as JSON: {error}") from error

    @property
    def place(self) -> tuple[str, str]:
        """Namespace ("" for cluster scope) and name."""
        meta = self.obj["metadata"]
        return meta.get("namespace", ""), meta["name"]

    def shown_as(self, api_version: str) -> Stored:
        """Return the object as a client of this version sees it; itself where nothing differs."""
        if self.obj.get("apiVersion") == api_version:
            return self
        return Stored.of({**self.obj, "apiVersion": api_version})

    def copy(self) -> Object:
        """A copy that may be changed."""
        copied: Object = orjson.loads(self.raw)
        return copied


@dataclass(slots=True, eq=False)
class Change:
    """One write, as watches see it. `previous` is None for an object that is new."""

    revision: int
    type: ChangeType
    resource: ResourceKey
    stored: Stored
    previous: Stored | None


@dataclass(slots=True, eq=False)
class _Collection:
    by_namespace: dict[str, dict[str, Stored]] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    history_bytes: int = 0
    # The newest revision whose change is no longer in the history.
    compacted: int = 0
    watchers: set[Callable[[Change], None]] = field(default_factory=set)


class Store:
    """Objects by resource, namespace and name ("" for cluster scope).

    Not thread-safe: every method runs to its end in the event loop, which is what makes a read
    and the write that follows it atomic.
    """

    def __init__(self, *, revision: int, journal: SqliteJournal | None = None) -> None:
        self.revision = revision
        self._first_revision = revision
        self._journal = journal
        self._collections: dict[ResourceKey, _Collection] = {}
        self._listeners: list[Callable[[Change], None]] = []

    def load(self, resource: ResourceKey, obj: Object) -> None:
        """Enter an object from the journal, without a change for anybody to see."""
        stored = Stored.of(obj)
        namespace, name = stored.place
        self._collection(resource).by_namespace.setdefault(namespace, {})[name] = stored

    def reread(self, resource: ResourceKey, shape: Callable[[Object], object]) -> None:
        """Show what is kept as `shape` changes it from now on; nothing is written, nobody told."""
        for objects in self._collection(resource).by_namespace.values():
            for name, stored in objects.items():
                shape(obj := stored.copy())
                if obj != stored.obj:
                    objects[name] = Stored.of(obj)

    def on_change(self, listener: Callable[[Change], None]) -> None:
        """Have `listener` called after every write to any resource."""
        self._listeners.append(listener)

    def get(self, resource: ResourceKey, namespace: str, name: str) -> Stored | None:
        return self._collection(resource).by_namespace.get(namespace, {}).get(name)

    def all_of(self, resource: ResourceKey, namespace: str | None = None) -> list[Stored]:
        """Ordered by namespace and name; None means every namespace."""
        kept = self._collection(resource).by_namespace
        namespaces = sorted(kept) if namespace is None else [namespace]
        found = (kept.get(one, {}) for one in namespaces)
        return [objects[name] for objects in found for name in sorted(objects)]

    def as_of(
        self, resource: ResourceKey, namespace: str | None, revision: int
    ) -> list[Stored] | None:
        """Return `all_of` as of `revision`; None if the changes since are not all known any
        more."""
        changes = self.since(resource, revision)
        if not changes:
            return None if changes is None else self.all_of(resource, namespace)
        found = {one.place: one for one in self.all_of(resource, namespace)}
        for change in reversed(changes):
            place = change.stored.place
            if change.previous is None:
                found.pop(place, None)
            elif namespace in (None, place[0]):
                found[place] = change.previous
        return [found[place] for place in sorted(found)]

    def everything(self, namespace: str | None = None) -> list[tuple[ResourceKey, Stored]]:
        """All objects of a namespace; None means wherever they are."""
        return [
            (key, stored) for key in self._collections for stored in self.all_of(key, namespace)
        ]

    def put(self, resource: ResourceKey, obj: Object) -> Stored:
        """Write `obj` (which now belongs to the store) under a new resourceVersion."""
        revision = self.revision + 1
        obj["metadata"]["resourceVersion"] = str(revision)
        stored = Stored.of(obj)
        namespace, name = stored.place
        # The journal first: what it refuses must not be seen by anybody.
        if self._journal:
            self._journal.write(revision, resource, stored.place, stored.raw)
        self.revision = revision
        objects = self._collection(resource).by_namespace.setdefault(namespace, {})
        previous = objects.get(name)
        objects[name] = stored
        self._publish(
            Change(revision, "MODIFIED" if previous else "ADDED", resource, stored, previous)
        )
        return stored

    def remove(self, resource: ResourceKey, obj: Object) -> Stored:
        """Delete; returns the object with the resourceVersion of its deletion.

        `obj` may differ from what is kept: it is what watches see last.
        """
        revision = self.revision + 1
        final = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
        last = Stored.of(final)
        namespace, name = last.place
        if self._journal:
            self._journal.write(revision, resource, last.place, None)
        self.revision = revision
        by_namespace = self._collection(resource).by_namespace
        previous = by_namespace[namespace].pop(name)
        if not by_namespace[namespace]:
            del by_namespace[namespace]
        self._publish(Change(revision, "DELETED", resource, last, previous))
        return last

    def since(self, resource: ResourceKey, revision: int) -> list[Change] | None:
        """The changes after `revision`; None if they are not all known any more.

        A revision of the future comes from another server's life, and is not known either.
        """
        collection = self._collection(resource)
        if not collection.compacted <= revision <= self.revision:
            return None
        changes: list[Change] = []
        for change in reversed(collection.history):
            if change.revision <= revision:
                break
            changes.append(change)
        changes.reverse()
        return changes

    def compacted(self, resource: ResourceKey) -> int:
        """The newest revision whose change is no longer known."""
        return self._collection(resource).compacted

    def subscribe(self, resource: ResourceKey, watcher: Callable[[Change], None]) -> None:
        self._collection(resource).watchers.add(watcher)

    def unsubscribe(self, resource: ResourceKey, watcher: Callable[[Change], None]) -> None:
        self._collection(resource).watchers.discard(watcher)

    def _collection(self, resource: ResourceKey) -> _Collection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = _Collection(compacted=self._first_revision)
            self._collections[resource] = collection
        return collection

    def _publish(self, change: Change) -> None:
        collection = self._collection(change.resource)
        collection.history.append(change)
        collection.history_bytes += len(change.stored.raw)
        while len(collection.history) > _HISTORY or collection.history_bytes > _HISTORY_BYTES:
            oldest = collection.history.popleft()
            collection.history_bytes -= len(oldest.stored.raw)
            collection.compacted = oldest.revision
        for watcher in tuple(collection.watchers):
            watcher(change)
        for listener in self._listeners:
            listener(change)
