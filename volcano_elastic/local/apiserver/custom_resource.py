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
    spec = crd.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    if spec and isinstance(names, dict) and isinstance(names.get("kind"), str):
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
    spec = crd.get("spec")
    if not isinstance(spec, dict):
        yield required("spec")
        return
    if not isinstance(spec.get("group"), str) or "." not in spec["group"]:
        yield required("spec.group", "a domain name such as example.org")
    elif spec["group"] in {kind.group for kind in BUILTIN}:
        yield invalid_value("spec.group", spec["group"], "is built into this API server")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        yield unsupported("spec.scope", spec.get("scope"), ["Cluster", "Namespaced"])
    names = spec.get("names")
    if not isinstance(names, dict):
        yield required("spec.names")
        names = {}
    for name in ("plural", "kind"):
        if not isinstance(names.get(name), str) or not names.get(name):
            yield required(f"spec.names.{name}")
    wanted = f"{names.get('plural')}.{spec.get('group')}"
    if crd["metadata"].get("name") != wanted:
        yield invalid_value(
            "metadata.name", crd["metadata"].get("name"), f"must be {wanted} (plural.group)"
        )
    versions = spec.get("versions")
    if not isinstance(versions, list) or not versions:
        yield required("spec.versions")
        return
    if (
        sum(isinstance(version, dict) and version.get("storage") is True for version in versions)
        != 1
    ):
        yield invalid_value(
            "spec.versions",
            len(versions),
            "must have exactly one version marked as storage version",
        )
    for number, version in enumerate(versions):
        yield from _version_causes(version, f"spec.versions[{number}]")


def _version_causes(version: Any, path: str) -> Iterator[Cause]:
    if not isinstance(version, dict):
        yield invalid_value(path, version, "must be an object")
        return
    if not isinstance(version.get("name"), str):
        yield required(f"{path}.name")
    for flag in ("served", "storage"):
        if not isinstance(version.get(flag), bool):
            yield required(f"{path}.{flag}")
    root = (version.get("schema") or {}).get("openAPIV3Schema")
    below = f"{path}.schema.openAPIV3Schema"
    if root is None:
        yield required(below, "schemas are required")
    else:
        yield from schema.check(root, below)
    scale = (version.get("subresources") or {}).get("scale")
    for name in ("specReplicasPath", "statusReplicasPath"):
        if scale is not None and not isinstance(scale.get(name), str):
            yield required(f"{path}.subresources.scale.{name}")
    for at, column in enumerate(version.get("additionalPrinterColumns") or ()):
        for name in ("name", "type", "jsonPath"):
            if not isinstance(column, dict) or not isinstance(column.get(name), str):
                yield required(f"{path}.additionalPrinterColumns[{at}].{name}")
