"""What is filled in and refused on a write, kind by kind."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import custom_resource, pod, schema
from volcano_elastic.local.apiserver.builtin import CRD, NAMESPACE, POD, PRIORITY_CLASS, SERVICE
from volcano_elastic.local.apiserver.builtin_schema import type_errors
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.status import (
    Cause,
    StatusError,
    bad_request,
    forbidden,
    forbidden_field,
    invalid,
    invalid_value,
    required,
)
from volcano_elastic.local.apiserver.store import Store

CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_ANNOTATIONS_LIMIT = 256 * 1024
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


def check_types(kind: Kind, obj: Any) -> None:
    """Refuse what could not even be decoded.

    Raises:
        StatusError: 400.
    """
    if not isinstance(obj, dict):
        raise bad_request(f"expected a {kind.kind} object, found a {type(obj).__name__}")
    if not isinstance(obj.get("metadata", {}), dict):
        raise bad_request(f"{kind.kind}: metadata must be an object")
    if causes := type_errors(kind, obj):
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            + "; ".join(map(str, causes))
        )


def prepare_create(kind: Kind, obj: Object, store: Store) -> None:
    """Fill in a new object, in place.

    Raises:
        StatusError: 403 where the object needs something that isn't there.
    """
    if kind.custom and kind.status:
        obj.pop("status", None)
    if kind.generation:
        obj["metadata"]["generation"] = 1
    match kind.key:
        case POD.key:
            spec = obj.get("spec")
            if isinstance(spec, dict):
                pod.fill_defaults(spec)
                _admit_priority(obj, store)
                obj["status"] = pod.initial_status(spec)
        case NAMESPACE.key:
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj[
                "metadata"
            ]["name"]
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        case CRD.key:
            custom_resource.fill_defaults(obj)
            obj["metadata"]["finalizers"] = [CRD_FINALIZER]
            obj.pop("status", None)
        case PRIORITY_CLASS.key:
            obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    fill_defaults(kind, obj, store)


def fill_defaults(kind: Kind, obj: Object, store: Store) -> None:
    """Defaults that an update gets as well."""
    match kind.key:
        case POD.key:
            if isinstance(obj.get("spec"), dict):
                pod.fill_defaults(obj["spec"])
        case SERVICE.key:
            _service_defaults(obj, store)
        case ("", "secrets"):
            obj.setdefault("type", "Opaque")
            if plain := obj.pop("stringData", None):
                encoded = {
                    key: base64.b64encode(str(value).encode()).decode()
                    for key, value in plain.items()
                }
                obj["data"] = {**(obj.get("data") or {}), **encoded}
        case CRD.key:
            custom_resource.fill_defaults(obj)
        case ("autoscaling", "horizontalpodautoscalers"):
            if isinstance(obj.get("spec"), dict):
                obj["spec"].setdefault("minReplicas", 1)


def carry_over(kind: Kind, new: Object, old: Object) -> None:
    """What the server once chose and an update may leave out, from the old object, in place."""
    chosen = {
        POD.key: ("priority", "preemptionPolicy", "priorityClassName"),
        SERVICE.key: ("clusterIP",),
    }.get(kind.key, ())
    spec = new.get("spec")
    if isinstance(spec, dict):
        for name in chosen:
            if spec.get(name) is None and name in old["spec"]:
                spec[name] = old["spec"][name]


def shape_custom(kind: Kind, obj: Object) -> list[str]:
    """Defaults and pruning by the CRD's schema, in place; returns the paths that were unknown."""
    if kind.schema is None:
        return []
    unknown = schema.prune(obj, kind.schema)
    schema.apply_defaults(obj, kind.schema)
    return unknown


def check(kind: Kind, obj: Object) -> None:
    """Refuse an object that is wrong in itself.

    Raises:
        StatusError: 422, with every field that is wrong.
    """
    if kind.key == CRD.key:
        custom_resource.check(obj)
    causes = [*_metadata_causes(kind, obj["metadata"])]
    if kind.custom and kind.schema is not None:
        causes += schema.validate(obj, kind.schema)
    match kind.key:
        case POD.key:
            causes += pod.causes(obj.get("spec"))
        case PRIORITY_CLASS.key:
            value = obj.get("value") or 0
            if value > 1000000000:
                causes.append(forbidden_field("value", "maximum allowed value is 1000000000"))
        case SERVICE.key:
            causes += _service_causes(obj.get("spec"))
        case ("", "secrets"):
            for key, value in (obj.get("data") or {}).items():
                try:
                    base64.b64decode(value or "", validate=True)
                except binascii.Error as error:
                    raise bad_request(f"Secret: data.{key} is not base64: {error}") from error
        case ("autoscaling", "horizontalpodautoscalers"):
            spec = obj.get("spec") or {}
            if not spec.get("maxReplicas"):
                causes.append(required("spec.maxReplicas"))
    if causes:
        raise invalid(kind, obj["metadata"].get("name", ""), causes)


def check_update(kind: Kind, new: Object, old: Object) -> None:
    """Refuse a change of what must not change.

    Raises:
        StatusError: 422.
    """
    causes: list[Cause] = []
    if old["metadata"].get("deletionTimestamp"):
        before = old["metadata"].get("finalizers") or ()
        added = [one for one in new["metadata"].get("finalizers") or () if one not in before]
        if added:
            causes.append(
                forbidden_field(
                    "metadata.finalizers",
                    f"no new finalizers can be added if the object is being deleted, found new "
                    f"finalizers {added}",
                )
            )
    match kind.key:
        case POD.key:
            causes += pod.update_causes(new, old)
        case PRIORITY_CLASS.key:
            if new.get("value", 0) != old.get("value", 0):
                causes.append(forbidden_field("value", "may not be changed in an update."))
        case ("", "configmaps") | ("", "secrets"):
            if old.get("immutable") and _contents(new) != _contents(old):
                causes.append(forbidden_field("data", "field is immutable when `immutable` is set"))
        case CRD.key:
            for path in (("scope",), ("group",), ("names", "plural"), ("names", "kind")):
                if _at(new["spec"], path) != _at(old["spec"], path):
                    causes.append(
                        invalid_value(
                            f"spec.{'.'.join(path)}", _at(new["spec"], path), "field is immutable"
                        )
                    )
    if causes:
        raise invalid(kind, old["metadata"]["name"], causes)


def _contents(obj: Object) -> tuple[Any, ...]:
    return obj.get("data"), obj.get("binaryData"), obj.get("immutable")


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part)
    return value


def _metadata_causes(kind: Kind, meta: Object) -> Iterator[Cause]:
    name = meta["name"]
    short = kind.key in (SERVICE.key, NAMESPACE.key)
    form, limit = (_LABEL, 63) if short else (_SUBDOMAIN, 253)
    if not form.fullmatch(name) or len(name) > limit:
        words = "RFC 1123 label" if short else "RFC 1123 subdomain"
        yield invalid_value(
            "metadata.name",
            name,
            f"a lowercase {words} must consist of lower case alphanumeric characters, '-' "
            f"{'' if short else 'or . '}and must start and end with an alphanumeric character, "
            f"in at most {limit} characters",
        )
    for key, value in (meta.get("labels") or {}).items():
        if not _LABEL_KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield invalid_value("metadata.labels", key, "is not a qualified name")
        if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            yield invalid_value(
                "metadata.labels",
                value,
                "a valid label must be an empty string or consist of at most 63 alphanumeric "
                "characters, '-', '_' or '.', and start and end with an alphanumeric character",
            )
    annotations = meta.get("annotations") or {}
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        yield Cause(
            "metadata.annotations",
            "FieldValueTooLong",
            f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes",
        )


def _admit_priority(obj: Object, store: Store) -> None:
    spec = obj["spec"]
    name, policy = spec.get("priorityClassName"), None
    if name in _SYSTEM_PRIORITIES:
        value = _SYSTEM_PRIORITIES[name]
    elif name:
        found = store.get(PRIORITY_CLASS.key, "", name)
        if found is None:
            raise forbidden(
                POD,
                obj["metadata"].get("name", ""),
                f"no PriorityClass with name {name} was found",
            )
        value, policy = found.obj.get("value") or 0, found.obj.get("preemptionPolicy")
    else:
        default = next(
            (one.obj for one in store.all_of(PRIORITY_CLASS.key) if one.obj.get("globalDefault")),
            {},
        )
        value, policy = default.get("value") or 0, default.get("preemptionPolicy")
        if default:
            spec["priorityClassName"] = default["metadata"]["name"]
    if spec.get("priority") not in (None, value):
        raise forbidden(
            POD,
            obj["metadata"].get("name", ""),
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy or "PreemptLowerPriority")


def _service_defaults(obj: Object, store: Store) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = obj["spec"] = {}
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if spec["type"] != "ExternalName":
        if not spec.get("clusterIP"):
            spec["clusterIP"] = _free_address(store)
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
    obj.setdefault("status", {"loadBalancer": {}})


def _free_address(store: Store) -> str:
    taken = {(one.obj.get("spec") or {}).get("clusterIP") for one in store.all_of(SERVICE.key)}
    base = int(IPv4Address("10.96.0.10"))
    return next(text for n in range(2**20) if (text := str(IPv4Address(base + n))) not in taken)


def _service_causes(spec: Any) -> Iterator[Cause]:
    headless = spec.get("clusterIP") == "None" or spec["type"] == "ExternalName"
    if not spec.get("ports") and not headless:
        yield required("spec.ports")
    for number, port in enumerate(spec.get("ports") or ()):
        if not isinstance(port["port"], int) or not 1 <= port["port"] <= 65535:
            yield invalid_value(
                f"spec.ports[{number}].port", port["port"], "must be between 1 and 65535, inclusive"
            )
        if len(spec["ports"]) > 1 and not port.get("name"):
            yield required(f"spec.ports[{number}].name")


def check_namespace(kind: Kind, obj: Object, store: Store) -> None:
    """Refuse a new object whose namespace isn't there or is going.

    Raises:
        StatusError: 404 or 403.
    """
    namespace = obj["metadata"].get("namespace")
    if not kind.namespaced or not namespace:
        return
    found = store.get(NAMESPACE.key, "", namespace)
    if found is None:
        raise StatusError(
            404,
            "NotFound",
            f'namespaces "{namespace}" not found',
            {"name": namespace, "kind": "namespaces"},
        )
    if found.obj["metadata"].get("deletionTimestamp"):
        raise forbidden(
            kind,
            obj["metadata"].get("name", ""),
            f"unable to create new content in namespace {namespace} because it is being terminated",
        )
