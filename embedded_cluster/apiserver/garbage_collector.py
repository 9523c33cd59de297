"""Carries a deletion on: to dependents of a gone owner, and contents of a namespace or a CRD."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from embedded_cluster.apiserver.builtin import CRD, NAMESPACE
from embedded_cluster.apiserver.kind import ResourceKey
from embedded_cluster.apiserver.registry import Registry
from embedded_cluster.apiserver.request import DeleteOptions, Target
from embedded_cluster.apiserver.rest import FOREGROUND, ORPHAN, Rest
from embedded_cluster.apiserver.status import StatusError
from embedded_cluster.apiserver.store import Change, Store, Stored
from embedded_cluster.apiserver.strategy import CRD_FINALIZER
from volcano_elastic.kube.resource import Object

_log = logging.getLogger(__name__)
Place = tuple[ResourceKey, str, str]
# Steps in one go, so that the end of a large owner doesn't hold up everybody's requests.
_BATCH = 100


class GarbageCollector:
    """Background, foreground and orphaning deletion by owner uid; namespaces; CRDs' objects.

    Level-triggered: a change only enqueues places to look at, and each look decides afresh.
    `later` is called with what is to run soon (an event loop's call_soon).
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        rest: Rest,
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._registry = registry
        self._rest = rest
        self._later = later
        self._alive: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._gone: set[str] = set()
        """Owners that were seen to go, while they have dependents."""
        # In order, each once.
        self._queue: dict[Place, None] = {}
        self._scheduled = False
        for resource, stored in store.everything():
            self._index(resource, stored.obj)
        for resource, stored in store.everything():
            self._enqueue(_place(resource, stored.obj))
        store.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        obj = change.stored.obj
        place = _place(change.resource, obj)
        if change.previous is not None:
            self._forget(change.resource, change.previous.obj)
        if change.type != "DELETED":
            self._index(change.resource, obj)
            meta = obj["metadata"]
            if meta.get("ownerReferences") or meta.get("deletionTimestamp"):
                self._enqueue(place)
            return
        if dependents := self._dependents.get(uid := obj["metadata"]["uid"]):
            self._gone.add(uid)
            for dependent in dependents:
                self._enqueue(dependent)
        for uid in _owner_uids(obj):
            if uid in self._alive:
                self._enqueue(self._alive[uid])
        self._enqueue((NAMESPACE.key, "", obj["metadata"].get("namespace", "")))
        self._enqueue((CRD.key, "", f"{change.resource[1]}.{change.resource[0]}"))

    def _index(self, resource: ResourceKey, obj: Object) -> None:
        place = _place(resource, obj)
        self._alive[obj["metadata"]["uid"]] = place
        for uid in _owner_uids(obj):
            self._dependents.setdefault(uid, set()).add(place)

    def _forget(self, resource: ResourceKey, obj: Object) -> None:
        place = _place(resource, obj)
        self._alive.pop(obj["metadata"]["uid"], None)
        for uid in _owner_uids(obj):
            dependents = self._dependents.get(uid, set())
            dependents.discard(place)
            if not dependents:
                self._dependents.pop(uid, None)
                self._gone.discard(uid)

    def _enqueue(self, place: Place) -> None:
        self._queue.setdefault(place)
        if not self._scheduled:
            self._scheduled = True
            self._later(self._drain)

    def _drain(self) -> None:
        for place in list(islice(self._queue, _BATCH)):
            del self._queue[place]
            stored = self._store.get(*place)
            if stored is None:
                continue
            try:
                self._look(place[0], stored)
            except Exception:
                # One object that cannot be dealt with must not stop the collection of all others.
                _log.exception("collecting %s", place)
        self._scheduled = bool(self._queue)
        if self._scheduled:
            self._later(self._drain)

    def _look(self, resource: ResourceKey, stored: Stored) -> None:
        meta = stored.obj["metadata"]
        if meta.get("deletionTimestamp"):
            finalizers = meta.get("finalizers") or ()
            if ORPHAN in finalizers:
                self._orphan_dependents(resource, stored)
            elif FOREGROUND in finalizers:
                self._delete_dependents(resource, stored)
            elif resource == NAMESPACE.key:
                self._empty_namespace(stored)
            elif resource == CRD.key and CRD_FINALIZER in finalizers:
                self._delete_custom_resources(stored)
        elif meta.get("ownerReferences"):
            self._check_owners(resource, stored)

    def _check_owners(self, resource: ResourceKey, stored: Stored) -> None:
        """Delete what has lost all its owners; forget the lost ones of what has others."""
        owners = stored.obj["metadata"]["ownerReferences"]
        lost = {one["uid"] for one in owners if self._is_lost(one)}
        if lost == _owner_uids(stored.obj):
            self._delete(resource, stored)
        elif lost and (kind := self._registry.of_resource(resource)):
            self._rest.disown(kind, stored, lost)

    def _is_lost(self, owner: Object) -> bool:
        """Return whether an owner is gone. An owner of a kind that isn't served (yet) counts as
        there."""
        if owner["uid"] in self._alive or owner["uid"] in self._gone:
            return owner["uid"] not in self._alive
        named = (owner["apiVersion"], owner["kind"])
        return any((kind.api_version, kind.kind) == named for kind in self._registry)

    def _delete_dependents(self, resource: ResourceKey, owner: Stored) -> None:
        """Foreground: the owner stays until the dependents that block it are gone."""
        uid, blocked = owner.obj["metadata"]["uid"], False
        for place, dependent in self._dependents_of(uid):
            self._delete(place[0], dependent)
            blocking = any(
                one["uid"] == uid and one.get("blockOwnerDeletion")
                for one in dependent.obj["metadata"]["ownerReferences"]
            )
            blocked = blocked or (blocking and self._store.get(*place) is not None)
        if not blocked:
            self._drop_finalizer(resource, owner, FOREGROUND)

    def _orphan_dependents(self, resource: ResourceKey, owner: Stored) -> None:
        uid = owner.obj["metadata"]["uid"]
        for place, dependent in self._dependents_of(uid):
            if kind := self._registry.of_resource(place[0]):
                self._rest.disown(kind, dependent, {uid})
        self._drop_finalizer(resource, owner, ORPHAN)

    def _empty_namespace(self, stored: Stored) -> None:
        name = stored.obj["metadata"]["name"]
        for resource, content in self._store.everything(name):
            self._delete(resource, content)
        current = self._store.get(NAMESPACE.key, "", name)
        if current is not None and not self._store.everything(name):
            self._store.remove(NAMESPACE.key, current.obj)

    def _delete_custom_resources(self, stored: Stored) -> None:
        spec = stored.obj["spec"]
        resource = (spec["group"], spec["names"]["plural"])
        for instance in self._store.all_of(resource):
            self._delete(resource, instance)
        if not self._store.all_of(resource):
            self._drop_finalizer(CRD.key, stored, CRD_FINALIZER)

    def _dependents_of(self, uid: str) -> list[tuple[Place, Stored]]:
        places = sorted(self._dependents.get(uid, ()))
        return [(place, found) for place in places if (found := self._store.get(*place))]

    def _drop_finalizer(self, resource: ResourceKey, stored: Stored, finalizer: str) -> None:
        current = self._store.get(*_place(resource, stored.obj))
        kind = self._registry.of_resource(resource)
        if kind and current:
            self._rest.drop_finalizer(kind, current, finalizer)

    def _delete(self, resource: ResourceKey, stored: Stored) -> None:
        kind, meta = self._registry.of_resource(resource), stored.obj["metadata"]
        if kind is None or meta.get("deletionTimestamp"):
            return
        try:
            self._rest.delete(
                Target(kind, meta.get("namespace", ""), meta["name"]),
                DeleteOptions(uid=meta["uid"]),
            )
        except StatusError as error:
            # Gone or replaced since it was read: what was to be deleted is.
            if error.code not in (404, 409):
                raise


def _place(resource: ResourceKey, obj: Object) -> Place:
    meta = obj["metadata"]
    return resource, meta.get("namespace", ""), meta["name"]


def _owner_uids(obj: Object) -> set[str]:
    return {one["uid"] for one in obj["metadata"].get("ownerReferences") or ()}
