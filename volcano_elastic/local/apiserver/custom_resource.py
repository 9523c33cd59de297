"""From a CustomResourceDefinition to the kinds it makes the server serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import schema
from volcano_elastic.local.apiserver.builtin import BUILTIN, CRD
from volcano_elastic.local.apiserver.kind import Column, Kind, Scale
from volcano_elastic.local.apiserver.status import (
    Cause,
    invalid,
    invalid_value,
    required,
    unsupported,
)


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
                scale=_scale(subresources.get("scale")),
                generation=True,
                custom=True,
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
                columns=tuple(_columns(version.get("additionalPrinterColumns"))),
                storage_version=storage,
            )
        )
    return kinds


def _scale(scale: Any) -> Scale | None:
    if not scale:
        return None
    return Scale(
        scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath")
    )


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
    since = {
        condition["type"]: condition.get("lastTransitionTime") or now
        for condition in old.get("conditions") or ()
    }
    storage = [version["name"] for version in spec["versions"] if version["storage"]]
    crd["status"] = {
        "acceptedNames": spec["names"],
        "conditions": [
            {
                "type": "NamesAccepted",
                "status": "True",
                "reason": "NoConflicts",
                "message": "no conflicts found",
                "lastTransitionTime": since.get("NamesAccepted", now),
            },
            {
                "type": "Established",
                "status": "True",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
                "lastTransitionTime": since.get("Established", now),
            },
        ],
        "storedVersions": sorted({*(old.get("storedVersions") or ()), *storage}),
    }


def check(crd: Object) -> None:
    """Refuse a CRD that could not be served.

    Raises:
        StatusError: 422, with every field that is wrong.
    """
    causes = list(_causes(crd))
    if causes:
        raise invalid(CRD, crd["metadata"].get("name", ""), causes)


def _causes(crd: Object) -> Iterator[Cause]:
    # What is there has the right type already (builtin_type.py), but for the schemas.
    spec = crd.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group") or ""
    if "." not in group:
        yield required("spec.group", "a domain name such as example.org")
    elif group in {kind.group for kind in BUILTIN}:
        yield invalid_value("spec.group", group, "is built into this API server")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield unsupported("spec.scope", spec.get("scope"), ["Cluster", "Namespaced"])
    yield from _missing(names, "spec.names", "plural", "kind")
    name, wanted = crd["metadata"].get("name"), f"{names.get('plural')}.{group}"
    if name != wanted:
        yield invalid_value("metadata.name", name, f"must be {wanted} (plural.group)")
    versions = spec.get("versions") or ()
    if sum(version.get("storage") is True for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        yield invalid_value("spec.versions", len(versions), why)
    for number, version in enumerate(versions):
        yield from _version_causes(version, f"spec.versions[{number}]")


def _version_causes(version: Object, path: str) -> Iterator[Cause]:
    yield from _missing(version, path, "name", "served", "storage")
    below = f"{path}.schema.openAPIV3Schema"
    root = (version.get("schema") or {}).get("openAPIV3Schema")
    if root is None:
        yield required(below, "schemas are required")
    else:
        yield from schema.check(root, below)
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        where = f"{path}.subresources.scale"
        yield from _missing(scale, where, "specReplicasPath", "statusReplicasPath")
    for at, column in enumerate(version.get("additionalPrinterColumns") or ()):
        where = f"{path}.additionalPrinterColumns[{at}]"
        yield from _missing(column, where, "name", "type", "jsonPath")


def _missing(obj: Object, path: str, *names: str) -> Iterator[Cause]:
    for name in names:
        if obj.get(name) in (None, ""):
            yield required(f"{path}.{name}")
