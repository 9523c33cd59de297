"""Validates built-in objects beyond their schema, kind by kind; returns field errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from embedded_cluster.apiserver import (
    builtin_rule,
    cel,
    custom_resource,
    json_path,
    pod,
    schema,
)
from embedded_cluster.apiserver.builtin import (
    CRD,
    NAMESPACE,
    NODE,
    POD,
    PRIORITY_CLASS,
    SERVICE,
    SYSTEM_PRIORITIES,
)
from embedded_cluster.apiserver.kind import Kind, ResourceKey
from embedded_cluster.apiserver.status import (
    Cause,
    forbidden_field,
    invalid,
    invalid_value,
    required,
)
from volcano_elastic.kube.resource import Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE, _QUALIFIED = builtin_rule.PATTERNS["labelValue"], builtin_rule.PATTERNS["qualified"]
_DATA_KEY = re.compile(r"(?!\.\.|\.$)[-._a-zA-Z0-9]{1,253}")
_ANNOTATIONS_LIMIT = 256 * 1024
# Whose finalizers need no domain, as those of custom resources don't.
_FREE_FINALIZERS = ("admissionregistration.k8s.io", "apiextensions.k8s.io", "coordination.k8s.io")
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_SECRET: ResourceKey = ("", "secrets")
# Fields that stand still once they are set.
_IMMUTABLE: dict[ResourceKey, Sequence[str]] = {
    PRIORITY_CLASS.key: ("preemptionPolicy",),
    _SECRET: ("type",),
    CRD.key: ("spec.scope", "spec.group", "spec.names.plural", "spec.names.kind"),
}


def check(kind: Kind, obj: Object, old: Object | None = None) -> None:
    """Refuse an object that is wrong in itself, or must not be what `old` becomes.

    Raises:
        StatusError: 422, with every field that is wrong.
    """
    causes = [*_metadata(kind, obj["metadata"])]
    if kind.custom and kind.schema is not None:
        causes += _custom(kind, obj, old)
    if not kind.custom:
        causes += builtin_rule.causes(kind, obj)
    spec = obj.get("spec") or {}
    match kind.key:
        case POD.key:
            causes += pod.causes(spec)
            causes += _labels("spec.nodeSelector", spec.get("nodeSelector"))
        case CRD.key:
            causes += custom_resource.causes(obj)
        case SERVICE.key:
            causes += _service(spec)
            causes += _labels("spec.selector", spec.get("selector"))
        case PRIORITY_CLASS.key:
            causes += _priority_class(obj)
        case ("", "configmaps") | ("", "secrets"):
            causes += _data(obj)
        case ("", "events"):
            causes += _event(obj)
        case ("autoscaling", "horizontalpodautoscalers"):
            most, least = spec.get("maxReplicas") or 0, spec.get("minReplicas") or 1
            if most < least:
                why = "must be greater than or equal to `minReplicas`"
                causes.append(invalid_value("spec.maxReplicas", most, why))
    if old is not None and not causes:
        causes = [*_changes(kind, obj, old)]
    if causes:
        raise invalid(kind, obj["metadata"].get("name", ""), causes)


def _changes(kind: Kind, new: Object, old: Object) -> Iterator[Cause]:
    """Return the errors for changed fields that must not change."""
    before = {*(old["metadata"].get("finalizers") or ())}
    added = [one for one in new["metadata"].get("finalizers") or () if one not in before]
    if added and old["metadata"].get("deletionTimestamp"):
        why = f"no new finalizers can be added if the object is being deleted, found {added}"
        yield forbidden_field("metadata.finalizers", why)
    for path in _IMMUTABLE.get(kind.key, ()):
        if (now := _at(new, path)) != _at(old, path):
            yield invalid_value(path, now, "field is immutable")
    for path in ("spec.podCIDR", "spec.providerID") if kind.key == NODE.key else ():
        if (was := _at(old, path)) and _at(new, path) != was:
            yield forbidden_field(path, "may not be changed once it is set")
    match kind.key:
        case POD.key:
            yield from pod.update_causes(new, old)
        case PRIORITY_CLASS.key:
            if new.get("value", 0) != old.get("value", 0):
                yield forbidden_field("value", "may not be changed in an update.")
        case SERVICE.key:
            yield from _address(new.get("spec") or {}, old.get("spec") or {})
        case ("", "namespaces"):
            leaving = (new.get("status") or {}).get("phase") == "Terminating"
            if leaving and not old["metadata"].get("deletionTimestamp"):
                why = "may only be 'Active' if `deletionTimestamp` is empty"
                yield invalid_value("status.Phase", "Terminating", why)
        case ("", "configmaps") | ("", "secrets"):
            yield from _frozen(new, old)


def _at(obj: Object, path: str) -> Any:
    return next(iter(json_path.find(path, obj)), None)


def _custom(kind: Kind, obj: Object, old: Object | None) -> list[Cause]:
    assert kind.schema is not None
    causes = schema.validate(obj, kind.schema)
    if kind.scale is not None:
        replicas = _at(obj, path := kind.scale["specReplicasPath"])
        if isinstance(replicas, int) and replicas < 0:
            causes.insert(0, invalid_value(path, replicas, "should be a non-negative integer"))
    return [*causes, *cel.causes(obj, old, kind.schema, causes)]


def _metadata(kind: Kind, meta: Object) -> Iterator[Cause]:
    form = {SERVICE.key: _SERVICE, NAMESPACE.key: _LABEL}.get(kind.key, _SUBDOMAIN)
    limit = 253 if form is _SUBDOMAIN else 63
    if not form.fullmatch(meta["name"]) or len(meta["name"]) > limit:
        why = f"must match '{form.pattern}' and have at most {limit} characters"
        yield invalid_value("metadata.name", meta["name"], why)
    reserved = kind.key == PRIORITY_CLASS.key and meta["name"].startswith("system-")
    if reserved and meta["name"] not in SYSTEM_PRIORITIES:
        why = "priority class names with 'system-' prefix are reserved for system use only"
        yield forbidden_field("metadata.name", why)
    yield from _labels("metadata.labels", meta.get("labels"))
    annotations = meta.get("annotations") or {}
    for key in annotations:
        yield from _qualified("metadata.annotations", key.lower())
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        why = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        yield Cause("metadata.annotations", "FieldValueTooLong", why)
    for number, finalizer in enumerate(meta.get("finalizers") or ()):
        yield from _qualified(f"metadata.finalizers[{number}]", finalizer)
        free = kind.custom or kind.group in _FREE_FINALIZERS
        if not (free or "/" in finalizer or finalizer in _STANDARD_FINALIZERS):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid_value(f"metadata.finalizers[{number}]", finalizer, why)
    owners = meta.get("ownerReferences") or ()
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        why = "Only one reference can have Controller set to true"
        yield invalid_value("metadata.ownerReferences", owners, why)
    for owner in owners:
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield invalid_value(f"metadata.ownerReferences.{name}", "", "must not be empty")


def _labels(field: str, labels: Object | None) -> Iterator[Cause]:
    for key, value in (labels or {}).items():
        yield from _qualified(field, key)
        if not _LABEL_VALUE.fullmatch(value):
            yield invalid_value(field, value, f"must match '{_LABEL_VALUE.pattern}'")


def _qualified(field: str, key: str) -> Iterator[Cause]:
    if not _QUALIFIED.fullmatch(key):
        yield invalid_value(field, key, f"must match '{_QUALIFIED.pattern}'")


def _data(obj: Object) -> Iterator[Cause]:
    for key in {**(obj.get("data") or {}), **(obj.get("binaryData") or {})}:
        if not _DATA_KEY.fullmatch(key):
            yield invalid_value(f"data[{key}]", key, f"must match '{_DATA_KEY.pattern}'")


def _frozen(new: Object, old: Object) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    why = "field is immutable when `immutable` is set"
    if not new.get("immutable"):
        yield forbidden_field("immutable", why)
    for field in ("data", "binaryData"):
        if new.get(field) != old.get(field):
            yield forbidden_field(field, why)


def _event(obj: Object) -> Iterator[Cause]:
    namespace = obj["metadata"].get("namespace", "")
    about = (obj.get("involvedObject") or {}).get("namespace", "")
    if about != namespace and (about or namespace != "default"):
        why = "does not match event.namespace"
        yield invalid_value("involvedObject.namespace", about, why)


def _priority_class(obj: Object) -> Iterator[Cause]:
    reserved = obj["metadata"]["name"].startswith("system-")
    if (obj.get("value") or 0) > 1000000000 and not reserved:
        why = "maximum allowed value of a user defined priority is 1000000000"
        yield forbidden_field("value", why)


def _service(spec: Object) -> Iterator[Cause]:
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None":
        yield required("spec.ports")
    for number, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield required(f"spec.ports[{number}].name")


def _address(new: Object, old: Object) -> Iterator[Cause]:
    before = old.get("clusterIP")
    if before and new.get("clusterIP") != before:
        why = "may not change once set"
        yield invalid_value("spec.clusterIPs[0]", [new.get("clusterIP")], why)
