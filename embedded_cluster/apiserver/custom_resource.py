"""From a CustomResourceDefinition to the kinds it makes the server serve."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from embedded_cluster.apiserver import cel, schema
from embedded_cluster.apiserver.builtin import BUILTIN
from embedded_cluster.apiserver.kind import Column, Kind
from embedded_cluster.apiserver.status import Cause, forbidden_field, invalid_value, required
from volcano_elastic.kube.resource import Object

_CONDITIONS = (
    ("NamesAccepted", "NoConflicts", "no conflicts found"),
    ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
)
# Of OpenAPI, but not of CRDs.
_FORBIDDEN = ("$ref", "definitions", "dependencies", "patternProperties", "uniqueItems")


def kinds_of(crd: Object) -> list[Kind]:
    """One Kind for each served version of a valid CRD."""
    spec = crd["spec"]
    names = spec["names"]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    kinds = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        subresources = version.get("subresources") or {}
        kinds.append(
            Kind(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                singular=names.get("singular") or names["kind"].lower(),
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                status=subresources.get("status") is not None,
                scale=subresources.get("scale"),
                generation=True,
                custom=True,
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
                columns=tuple(_columns(version.get("additionalPrinterColumns"))),
                storage_version=storage,
            )
        )
    return kinds


def _columns(columns: Any) -> Iterator[Column]:
    if not columns:
        yield Column("Age", "date", ".metadata.creationTimestamp")
        return
    for column in columns:
        yield Column(
            column["name"],
            column["type"],
            column["jsonPath"],
            column.get("format", ""),
            column.get("description", ""),
            column.get("priority", 0),
        )


def fill_defaults(crd: Object) -> None:
    """singular, listKind and conversion, as the real server fills them in."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
        spec.setdefault("conversion", {"strategy": "None"})


def establish(crd: Object, now: str) -> None:
    """Set the status that says: served from this moment on."""
    spec, old = crd["spec"], crd.get("status") or {}
    since = {one["type"]: one.get("lastTransitionTime") for one in old.get("conditions") or ()}
    storage = [version["name"] for version in spec["versions"] if version["storage"]]
    crd["status"] = {
        "acceptedNames": spec["names"],
        "conditions": [
            {
                "type": name,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": since.get(name) or now,
            }
            for name, reason, message in _CONDITIONS
        ],
        "storedVersions": sorted({*(old.get("storedVersions") or ()), *storage}),
    }


def causes(crd: Object) -> Iterator[Cause]:
    """Why a CRD could not be served, beside builtin_rules.txt."""
    spec = crd.get("spec") or {}
    group, names = spec.get("group") or "", spec.get("names") or {}
    if group and "." not in group:
        yield invalid_value("spec.group", group, "must be a domain name such as example.org")
    if group in {kind.group for kind in BUILTIN} - {""}:
        yield invalid_value("spec.group", group, "is built into this API server")
    for field in ("kind", "plural"):
        if not names.get(field):
            yield required(f"spec.names.{field}")
    name, wanted = crd["metadata"].get("name"), f"{names.get('plural')}.{group}"
    if name != wanted:
        yield invalid_value("metadata.name", name, f"must be {wanted} (plural.group)")
    versions = spec.get("versions") or ()
    if sum(version.get("storage") is True for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        yield invalid_value("spec.versions", len(versions), why)
    for number, version in enumerate(versions):
        path = f"spec.versions[{number}].schema.openAPIV3Schema"
        root = (version.get("schema") or {}).get("openAPIV3Schema")
        if root is None:
            yield required(path, "schemas are required")
        elif root.get("type", "object") != "object":
            yield invalid_value(f"{path}.type", root["type"], "must be object at the root")
        else:
            yield from _schema_causes(root, path)


def _schema_causes(root: Object, path: str, *, typed: bool = True) -> Iterator[Cause]:
    """Return what makes a schema unusable, beside builtin_rules.txt; `typed`: it needs a type."""
    wrong = list(_keyword_causes(root, path, typed=typed))
    yield from wrong
    # By a schema that can't be used, no default can be looked at.
    if "default" in root and not wrong:
        schema.apply_defaults(default := copy.deepcopy(root["default"]), root)
        yield from schema.causes(default, root, f"{path}.default")


def _keyword_causes(root: Object, path: str, *, typed: bool) -> Iterator[Cause]:
    """Return the errors in a schema but for its default, and in the schemas inside it."""
    free = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    if typed and not any(root.get(name) for name in ("type", *free)):
        yield required(f"{path}.type", "must not be empty")
    if typed and root.get("type") == "array" and "items" not in root:
        yield required(f"{path}.items", "must be specified")
    if (root.get(schema.LIST_TYPE) == "map") != bool(root.get(schema.KEYS)):
        yield required(
            f"{path}.{schema.KEYS}", "must be there with the list type map, and only then"
        )
    for name in _FORBIDDEN:
        if root.get(name):
            yield forbidden_field(f"{path}.{name}", "is not supported")
    try:
        schema.compiled(root.get("pattern", ""))
    except ValueError as error:
        yield invalid_value(f"{path}.pattern", root["pattern"], f"must be a pattern: {error}")
    yield from cel.check(root, path)
    for key, sub in (root.get("properties") or {}).items():
        yield from _schema_causes(sub, f"{path}.properties[{key}]", typed=typed)
    for name in ("items", "additionalProperties", "not"):
        if isinstance(root.get(name), dict):
            yield from _schema_causes(root[name], f"{path}.{name}", typed=typed and name != "not")
    for name in ("allOf", "anyOf", "oneOf"):
        for number, sub in enumerate(root.get(name) or ()):
            yield from _schema_causes(sub, f"{path}.{name}[{number}]", typed=False)
