"""The verbs: what happens to the store when somebody creates, changes or deletes an object."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from embedded_cluster.apiserver import (
    patch,
    pod,
    scale,
    server_side_apply,
    strategy,
    validation,
)
from embedded_cluster.apiserver.builtin import (
    CRD,
    EVENT,
    NAMESPACE,
    NAMESPACES,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
)
from embedded_cluster.apiserver.builtin_rule import schema_of
from embedded_cluster.apiserver.builtin_type import type_of
from embedded_cluster.apiserver.custom_resource import establish
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.request import DeleteOptions, Target, WriteOptions
from embedded_cluster.apiserver.status import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_value,
    modified,
    not_found,
    required,
    success,
    success_of,
)
from embedded_cluster.apiserver.store import Store, Stored
from volcano_elastic.api.moment import timestamp
from volcano_elastic.kube.resource import Object

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
# Typed clients read the answer of a deletion as the object for these, as a Status for the rest.
_RETURNED = (POD.key, SERVICE.key, ("", "serviceaccounts"))
# What a client may not set on an object that exists.
_KEPT = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "managedFields",
)


class Rest:
    """Every method runs to its end without waiting, so a read and its write are one step.

    All of them raise StatusError for what they refuse.
    """

    def __init__(
        self, store: Store, clock: Callable[[], datetime], randomness: random.Random
    ) -> None:
        self.store = store
        self._clock = clock
        self._random = randomness

    def get(self, target: Target) -> Stored:
        stored = self.store.get(target.kind.key, target.namespace, target.name)
        if stored is None:
            raise not_found(target.kind, target.name)
        return stored

    def create(self, kind: Kind, namespace: str, body: Any, options: WriteOptions) -> Stored:
        obj = self._incoming(kind, namespace, body, options)
        meta = obj["metadata"]
        if meta.get("resourceVersion"):
            why = "resourceVersion should not be set on objects to be created"
            raise bad_request(why)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = self._generated(kind, meta)
        if not meta.get("name"):
            why = "name or generateName is required"
            raise invalid(kind, "", [required("metadata.name", why)])
        strategy.check_namespace(kind, obj, self.store)
        now = timestamp(self._clock())
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(name, None)
        meta["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        meta["creationTimestamp"] = now
        strategy.prepare_create(kind, obj, self.store)
        options.unknown += strategy.shape(kind, obj)
        strategy.report_unknown(options)
        validation.check(kind, obj)
        if self.store.get(kind.key, namespace, meta["name"]) is not None:
            raise already_exists(kind, meta["name"])
        if kind.key == CRD.key:
            establish(obj, now)
        if options.dry_run:
            return Stored.of(obj)
        stored = self.store.put(kind.key, obj)
        if kind.key == NAMESPACE.key:
            account = {"metadata": {"name": "default"}}
            self.create(SERVICE_ACCOUNT, meta["name"], account, WriteOptions())
        return stored

    def update(
        self,
        target: Target,
        body: Any,
        options: WriteOptions,
        *,
        managed: list[Object] | None = None,
    ) -> Stored:
        """PUT of the object or of its status; `managed`: its managedFields from now on."""
        new = self._incoming(target.kind, target.namespace, body, options)
        if new["metadata"].get("name") != target.name:
            raise _misnamed(new, target)
        creates = target.kind.put_creates and not target.subresource
        if creates and self.store.get(target.kind.key, target.namespace, target.name) is None:
            # Whoever knows its uid means the one that has gone.
            _check_precondition(target, "UID", new["metadata"].get("uid"), "")
            new["metadata"].pop("resourceVersion", None)
            return self.create(target.kind, target.namespace, new, options)
        return self._change(target, self.get(target), new, options, managed=managed)

    def patch(self, target: Target, content_type: str, body: Any, options: WriteOptions) -> Stored:
        """PATCH by any of the four sorts; an apply patch creates what isn't there."""
        kind = target.kind
        if content_type == patch.APPLY:
            return self._apply(target, body, options)
        old = self.get(target)
        shown = old.shown_as(kind.api_version)
        # A merge shares what it leaves alone. Types read that anew; a CRD's schema would change it.
        mine = shown.copy() if kind.custom else shown.obj
        merged_by = None if kind.custom else schema_of(type_of(kind))
        changed = patch.patched(mine, content_type, body, merged_by)
        return self.update(target, changed, options)

    def scale(self, target: Target, wanted: Object, options: WriteOptions) -> Object:
        """PUT of a Scale; returns the Scale as it is then."""
        old = self.get(target)
        new = scale.scaled(target.kind, old.copy(), wanted)
        whole = Target(target.kind, target.namespace, target.name)
        written = self._change(whole, old, new, options)
        return scale.scale_of(target.kind, written.obj)

    def bind(self, target: Target, binding: Object, options: WriteOptions) -> Object:
        old = self.get(target)
        new = old.copy()
        pod.bind(new, binding, timestamp(self._clock()))
        if not options.dry_run:
            self.store.put(POD.key, new)
        return success_of(201)

    def delete(self, target: Target, options: DeleteOptions) -> Object:
        """Delete now, or mark as deleted what still has finalizers or a kubelet to end it.

        Returns the object if it still is there or its clients expect it, else a Status.
        """
        kind, stored = target.kind, self.get(target)
        meta = stored.obj["metadata"]
        # As there, a refused deletion names the kind, where others name the resource.
        _check_precondition(target, "UID", options.uid, meta["uid"], kind.kind)
        wanted, found = options.resource_version, meta["resourceVersion"]
        _check_precondition(target, "ResourceVersion", wanted, found, kind.kind)
        if kind.key == NAMESPACE.key and target.name in NAMESPACES[:3]:
            raise forbidden(kind, target.name, "this namespace may not be deleted")
        new, is_pod = stored.copy(), kind.key == POD.key
        grace = pod.grace_seconds(new, options.grace_seconds) if is_pod else 0
        self._mark(kind, new, grace, options.propagation)
        marked = new["metadata"]
        waits = marked.get("finalizers") or marked.get("deletionGracePeriodSeconds")
        if waits or kind.key == NAMESPACE.key:
            return new if options.dry_run else self._put_if_changed(kind, stored, new).obj
        # Of what goes at once, only pods are seen going.
        last = new if is_pod else stored.obj
        if not options.dry_run:
            removed = self.store.put(kind.key, new) if is_pod else stored
            final = self.store.remove(kind.key, removed.obj)
            last = removed.obj if is_pod else final.obj
        return last if kind.key in _RETURNED else success(kind, target.name, meta["uid"])

    def evict(self, target: Target, options: DeleteOptions) -> None:
        """Delete a pod, and have it say why as long as it is still there."""
        stored = self.get(target)
        new = stored.copy()
        if pod.grace_seconds(new, options.grace_seconds) and not options.dry_run:
            pod.evicted(new, timestamp(self._clock()))
            self.delete(target, replace(options, dry_run=True))
            self.store.put(POD.key, new)
            options = replace(options, resource_version=None)
        self.delete(target, options)

    def drop_finalizer(self, kind: Kind, stored: Stored, finalizer: str) -> None:
        """Take one finalizer off, and the object with it if that was the last."""
        new = _without(stored, "finalizers", lambda one: one == finalizer)
        self._settle(kind, stored, new)

    def disown(self, kind: Kind, stored: Stored, uids: set[str]) -> None:
        """Take the owner references to `uids` off."""
        new = _without(stored, "ownerReferences", lambda one: one["uid"] in uids)
        self._put_if_changed(kind, stored, new)

    def _apply(self, target: Target, body: Any, options: WriteOptions) -> Stored:
        kind = target.kind
        # What nobody knows can't be owned.
        strict = replace(options, field_validation="Strict")
        whole = replace(strict, patched=False)
        if not isinstance(body, dict) or not (body.get("apiVersion") and body.get("kind")):
            raise bad_request("an apply patch: expected an object with apiVersion and kind")
        configuration = strategy.applied(target, body, whole)
        named = "name" in configuration["metadata"]
        if configuration["metadata"].setdefault("name", target.name) != target.name:
            raise _misnamed(configuration, target)
        if configuration["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        stored = self.store.get(kind.key, target.namespace, target.name)
        now = timestamp(self._clock())
        if stored is None:
            if target.subresource:
                raise not_found(kind, target.name)
            if not named:
                raise bad_request("metadata.name must be provided for an object that is new")
            nothing: Object = {"metadata": {}}
            fresh = server_side_apply.apply(nothing, configuration, target, options, now)
            fresh["metadata"].pop("resourceVersion", None)
            return self.create(kind, target.namespace, fresh, whole)
        new = server_side_apply.apply(stored.copy(), configuration, target, options, now)
        managed = new["metadata"]["managedFields"]
        return self._change(target, stored, new, strict, managed=managed)

    def _incoming(
        self,
        kind: Kind,
        namespace: str,
        body: Any,
        options: WriteOptions,
    ) -> Object:
        """A copy of the body in its stored form, its type and namespace checked."""
        obj = strategy.decoded(kind, body, options)
        meta = obj["metadata"] = dict(obj.get("metadata") or {})
        if not kind.namespaced:
            meta.pop("namespace", None)
        elif meta.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the "
                f"request: {meta['namespace']!r} and {namespace!r}"
            )
        return obj

    def _generated(self, kind: Kind, meta: Object) -> str:
        alphabet = "bcdfghjklmnpqrstvwxz2456789"
        prefix = str(meta["generateName"])[: (63 if kind.key == POD.key else 253) - 5]
        while True:
            name = prefix + "".join(self._random.choices(alphabet, k=5))
            if self.store.get(kind.key, meta.get("namespace", ""), name) is None:
                return name

    def _change(
        self,
        target: Target,
        old: Stored,
        incoming: Object,
        options: WriteOptions,
        *,
        managed: list[Object] | None = None,
    ) -> Stored:
        kind, name = target.kind, target.name
        meta, before = incoming["metadata"], old.obj["metadata"]
        # 0 stands for none, there too.
        wanted = meta.get("resourceVersion") or "0"
        if kind.conditional and wanted == "0":
            cause = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            # As there, it is the resource that is named as the kind.
            raise invalid(replace(kind, kind=kind.plural), name, [cause])
        if wanted not in ("0", before["resourceVersion"]):
            raise modified(kind, name)
        for field in ("uid", "deletionTimestamp") if options.patched else ():
            if field in meta and meta[field] != before.get(field):
                cause = invalid_value(f"metadata.{field}", meta[field], "field is immutable")
                raise invalid(kind, name, [cause])
        _check_precondition(target, "UID", meta.get("uid"), before["uid"])
        new = self._merged(target, old, incoming)
        if managed:
            new["metadata"]["managedFields"] = managed
        elif managed is not None:
            new["metadata"].pop("managedFields", None)
        strategy.carry_over(kind, new, old.obj)
        strategy.fill_defaults(kind, new, self.store)
        options.unknown += strategy.shape(kind, new)
        strategy.report_unknown(options)
        if target.subresource == "resize":
            validation.check(kind, new, {**old.obj, "spec": new["spec"]})
            if causes := [*pod.resize_causes(new, old.obj)]:
                raise invalid(kind, name, causes)
        else:
            validation.check(kind, new, old.obj)
        if kind.key == POD.key:
            new.setdefault("status", {}).setdefault(
                "qosClass", (old.obj.get("status") or {}).get("qosClass")
            )
        if kind.generation and _counted(kind, new) != _counted(kind, old.obj):
            new["metadata"]["generation"] = int(before.get("generation", 1)) + 1
        if kind.key == CRD.key:
            establish(new, timestamp(self._clock()))
        if options.dry_run:
            return Stored.of(new)
        return self._settle(kind, old, new)

    def _merged(self, target: Target, old: Stored, incoming: Object) -> Object:
        """Return `old` with the fields of `incoming` that a write to this subresource may
        change."""
        kind, kept = target.kind, old.copy()
        if target.subresource == "resize":
            return pod.resized(kept, incoming)
        status_alone = target.subresource == "status"
        new, other = ({**kept}, incoming) if status_alone else ({**incoming}, kept)
        if kind.status:
            new.pop("status", None)
            if "status" in other:
                new["status"] = other["status"]
        if status_alone and kind.custom:
            return new
        if kind.key == NAMESPACE.key:
            new["spec"] = kept["spec"]
        # Built-in kinds let their status writer set labels, annotations and finalizers too.
        meta = new["metadata"] = {**incoming["metadata"]}
        owners = ("ownerReferences",) if status_alone and kind.key == POD.key else ()
        for name in (*_KEPT, *owners):
            meta.pop(name, None)
            if name in kept["metadata"]:
                meta[name] = kept["metadata"][name]
        new["apiVersion"], new["kind"] = kept["apiVersion"], kept["kind"]
        return new

    def _settle(self, kind: Kind, old: Stored, new: Object) -> Stored:
        """Write, unless nothing changed; remove what was only waiting for its last finalizer."""
        meta = new["metadata"]
        if (
            meta.get("deletionTimestamp")
            and not meta.get("finalizers")
            and meta.get("deletionGracePeriodSeconds", 0) == 0
            and kind.key != NAMESPACE.key
        ):
            self.store.remove(kind.key, new)
            # As there, answered as it would have been stored.
            return Stored.of(new)
        return self._put_if_changed(kind, old, new)

    def _put_if_changed(self, kind: Kind, old: Stored, new: Object) -> Stored:
        return old if new == old.obj else self.store.put(kind.key, new)

    def _mark(self, kind: Kind, obj: Object, grace: int, propagation: str) -> None:
        """Enter, in place, when the object is to be gone; a second deletion can only hurry."""
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or ())
        if kind.key == CRD.key and not meta.get("deletionTimestamp"):
            finalizers.append(strategy.CRD_FINALIZER)
        # Nothing waits for an event.
        waiting = {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]} if kind.key != EVENT.key else {}
        for finalizer in waiting.get(propagation, []):
            if finalizer not in finalizers and not meta.get("deletionTimestamp"):
                finalizers.append(finalizer)
        if finalizers:
            meta["finalizers"] = finalizers
        if meta.get("deletionTimestamp") and grace >= meta.get("deletionGracePeriodSeconds", 0):
            return
        if not meta.get("deletionTimestamp") and kind.generation and kind.key != CRD.key:
            meta["generation"] = int(meta.get("generation", 1)) + 1
        meta["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace))
        if kind.key not in (NAMESPACE.key, CRD.key):
            meta["deletionGracePeriodSeconds"] = grace
        if kind.key == NAMESPACE.key:
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}


def _check_precondition(
    target: Target, what: str, wanted: str | None, found: str, as_kind: str = ""
) -> None:
    if wanted and wanted != found:
        why = f"{what} in precondition: {wanted}, {what} in object meta: {found}"
        raise conflict(target.kind, target.name, f"Precondition failed: {why}", as_kind)


def _without(stored: Stored, field: str, drop: Callable[[Any], bool]) -> Object:
    """A copy whose list in the metadata lacks some, and is left out if none is left."""
    new = stored.copy()
    kept = [one for one in new["metadata"].pop(field, ()) if not drop(one)]
    if kept:
        new["metadata"][field] = kept
    return new


def _misnamed(obj: Object, target: Target) -> StatusError:
    return bad_request(
        f"the name of the object ({obj['metadata'].get('name', '')}) does not match the name on "
        f"the URL ({target.name})"
    )


def _counted(kind: Kind, obj: Object) -> Object:
    """Return the part of an object whose changes the generation counts."""
    return {
        name: value
        for name, value in obj.items()
        if name not in ("metadata", "description") and not (kind.status and name == "status")
    }
