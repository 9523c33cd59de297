"""Fills in and refuses fields on a write, kind by kind."""

from __future__ import annotations

import base64
import contextlib
from ipaddress import IPv4Address
from typing import Any

from embedded_cluster.apiserver import builtin_rule, custom_resource, pod, schema
from embedded_cluster.apiserver.builtin import (
    CRD,
    NAMESPACE,
    NODE,
    POD,
    PRIORITY_CLASS,
    SERVICE,
)
from embedded_cluster.apiserver.builtin_type import DecodeError, decode
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.request import Target, WriteOptions
from embedded_cluster.apiserver.status import (
    Cause,
    bad_request,
    forbidden,
    invalid,
    not_found,
)
from embedded_cluster.apiserver.store import Store
from volcano_elastic.kube.resource import Object

CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def decoded(kind: Kind, body: Any, options: WriteOptions) -> Object:
    """`body` as its type takes it and as it is kept; unknown fields go to `options.unknown`.

    Raises:
        StatusError: 400, it is no object of this kind; 422 where a patch has made it so.
    """
    obj: Object = body
    if not isinstance(obj, dict):
        raise options.refuse(f"expected a {kind.kind} object, found a {type(obj).__name__}")
    api_version, name = obj.get("apiVersion"), obj.get("kind")
    if kind.custom and not (api_version and name):
        raise options.refuse(
            f"Object 'apiVersion' or 'Kind' is missing, found {api_version} and {name}"
        )
    if (api_version or kind.api_version) != kind.api_version or (name or kind.kind) != kind.kind:
        raise options.refuse(
            f"the object provided is unrecognized: expected {kind.api_version} {kind.kind}, "
            f"found {api_version} {name}"
        )
    if options.patched and not (api_version and name):
        raise bad_request(f"expected the apiVersion and kind of a {kind.kind}, found them removed")
    cannot = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
    try:
        obj, unknown = decode(kind, obj)
    except DecodeError as error:
        raise options.refuse(cannot + str(error)) from error
    options.unknown += unknown
    if not kind.custom:
        report_unknown(options, cannot)
    # The type in front, where lists can cut it off. Conversion by CRDs is of the name alone.
    typed = {"apiVersion": kind.storage_api_version, "kind": kind.kind}
    return typed | {name: value for name, value in obj.items() if name not in typed}


def applied(target: Target, body: Object, options: WriteOptions) -> Object:
    """A configuration to apply: as `decoded`, and without what this path cannot write.

    Raises:
        StatusError: as `decoded`; 422 for values of types that the CRD's schema doesn't have.
    """
    kind, configuration = target.kind, decoded(target.kind, body, options)
    wrong = schema.validate(configuration, kind.schema) if kind.schema else []
    if wrong := [cause for cause in wrong if cause.reason == "FieldValueTypeInvalid"]:
        raise invalid(kind, target.name, wrong)
    status_alone = target.subresource == "status"
    return {
        name: value
        for name, value in configuration.items()
        if name in ("apiVersion", "kind", "metadata")
        or not kind.status
        or (name == "status") == status_alone
    }


def report_unknown(options: WriteOptions, where: str = "") -> None:
    """Warn of the fields that nobody knows, or refuse them, as the client wishes.

    Raises:
        StatusError: 400 or 422, the validation is Strict.
    """
    unknown = [f'unknown field "{path}"' for path in options.unknown]
    options.unknown.clear()
    if unknown and options.field_validation == "Strict":
        raise options.refuse(f"{where}strict decoding error: {', '.join(unknown)}")
    if options.field_validation == "Warn":
        options.warnings += unknown


def prepare_create(kind: Kind, obj: Object, store: Store) -> None:
    """Fill in a new object, in place.

    Raises:
        StatusError: 403 where the object needs something that isn't there.
    """
    if kind.custom and kind.status:
        obj.pop("status", None)
    if kind.generation:
        obj["metadata"]["generation"] = 1
    fill_defaults(kind, obj, store)
    match kind.key:
        case POD.key if "spec" in obj:
            _admit_priority(obj, store)
            pod.begin(obj, obj["metadata"]["creationTimestamp"])
        case NAMESPACE.key:
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        case CRD.key:
            obj.pop("status", None)
        case NODE.key:
            if capacity := obj["status"].get("capacity"):
                obj["status"].setdefault("allocatable", dict(capacity))


def fill_defaults(kind: Kind, obj: Object, store: Store) -> None:
    """Defaults that an update gets as well."""
    if not kind.custom:
        builtin_rule.fill_defaults(kind, obj)
    match kind.key:
        case POD.key if "spec" in obj:
            pod.fill_defaults(obj["spec"])
            pod.tolerate_lost_nodes(obj["spec"])
            status = obj.get("status") or {}
            if status.get("podIP"):
                status.setdefault("podIPs", [{"ip": status["podIP"]}])
        case NAMESPACE.key:
            labels = obj["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
        case SERVICE.key:
            _service_defaults(obj, store)
        case ("", "secrets"):
            for key, value in obj.pop("stringData", {}).items():
                obj.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
        case CRD.key:
            custom_resource.fill_defaults(obj)


def carry_over(kind: Kind, new: Object, old: Object) -> None:
    """Copy fields that the server once chose, and an update may leave out, from the old object, in
    place."""
    chosen = {
        POD.key: ("priority", "preemptionPolicy", "priorityClassName"),
        SERVICE.key: ("clusterIP",),
    }.get(kind.key, ())
    if (spec := new.get("spec")) is not None:
        for name in chosen:
            if spec.get(name) is None and name in old["spec"]:
                spec[name] = old["spec"][name]


def shape(kind: Kind, obj: Object) -> list[str]:
    """Defaults and pruning of a custom resource, in place; returns the paths that were unknown."""
    if kind.schema is None:
        return []
    unknown = schema.prune(obj, kind.schema)
    schema.apply_defaults(obj, kind.schema)
    return unknown


def reread(kind: Kind, store: Store) -> None:
    """Show a kind's objects as it has them now: as there, whatever reads them drops what the kind
    doesn't know and finds its defaults in them, by the version they are kept in."""

    def read(obj: Object) -> None:
        if kind.custom:
            shape(kind, obj)
            return
        # Written by an earlier version of this server, which may have taken what this one doesn't.
        with contextlib.suppress(DecodeError):
            decoded, _ = decode(kind, obj)
            obj.clear()
            obj |= decoded
            fill_defaults(kind, obj, store)

    if not kind.custom or kind.version == kind.storage_version:
        store.reread(kind.key, read)


def _admit_priority(obj: Object, store: Store) -> None:
    spec, pod_name = obj["spec"], obj["metadata"].get("name", "")
    if name := spec.get("priorityClassName"):
        found = store.get(PRIORITY_CLASS.key, "", name)
        if found is None:
            raise forbidden(POD, pod_name, f"no PriorityClass with name {name} was found")
        chosen = found.obj
    else:
        classes = store.all_of(PRIORITY_CLASS.key)
        chosen = next((one.obj for one in classes if one.obj.get("globalDefault")), {})
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    value = chosen.get("value") or 0
    if spec.get("priority") not in (None, value):
        why = f"spec.priority must be absent or {value}, as its PriorityClass says"
        raise forbidden(POD, pod_name, f"{why}; found {spec['priority']}")
    spec["priority"] = value
    policy = chosen.get("preemptionPolicy") or "PreemptLowerPriority"
    spec.setdefault("preemptionPolicy", policy)


def _service_defaults(obj: Object, store: Store) -> None:
    spec = obj["spec"]
    for port in spec.get("ports") or ():
        port.setdefault("targetPort", port.get("port"))
    if not spec.get("clusterIP"):
        spec["clusterIP"] = _free_address(store)
    spec["clusterIPs"] = [spec["clusterIP"]]


def _free_address(store: Store) -> str:
    taken = {(one.obj.get("spec") or {}).get("clusterIP") for one in store.all_of(SERVICE.key)}
    base = int(IPv4Address("10.96.0.10"))
    return next(text for n in range(2**20) if (text := str(IPv4Address(base + n))) not in taken)


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
        raise not_found(NAMESPACE, namespace)
    if found.obj["metadata"].get("deletionTimestamp"):
        why = f"namespace {namespace} is being terminated"
        cause = Cause("metadata.namespace", "NamespaceTerminating", why)
        raise forbidden(kind, obj["metadata"].get("name", ""), why, cause)
