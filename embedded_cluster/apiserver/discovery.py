"""Discovery: which groups, versions and resources there are.

Clients that ask for the aggregated form as well take this one, which is what Accept allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from embedded_cluster.apiserver.kind import Kind
from volcano_elastic.kube.resource import Object

# kubectl accepts one minor version more or less: 1.31 to 1.33.
VERSION: Object = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+volcano-elastic",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_CUSTOM_VERBS = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
# Subresources that are kinds of their own: (kind, group, version, verbs).
_SUBRESOURCES = {
    "binding": ("Binding", "", "v1", ["create"]),
    "eviction": ("Eviction", "policy", "v1", ["create"]),
    "log": ("", "", "", ["get"]),
    "status": ("", "", "", ["get", "patch", "update"]),
    "scale": ("Scale", "autoscaling", "v1", ["get", "patch", "update"]),
}


def grouped(kinds: Iterable[Kind]) -> dict[str, dict[str, list[Kind]]]:
    """By group, then version, newest stable version first."""
    found: dict[str, dict[str, list[Kind]]] = {}
    for kind in kinds:
        found.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    return {
        group: dict(sorted(versions.items(), key=lambda item: _precedence(item[0])))
        for group, versions in found.items()
    }


def group_list(kinds: Iterable[Kind]) -> Object:
    groups = [_group(group, versions) for group, versions in grouped(kinds).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(kinds: Iterable[Kind], name: str) -> Object | None:
    versions = grouped(kinds).get(name)
    if not versions:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: Iterable[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(kinds: Iterable[Kind], group_name: str, version: str) -> Object | None:
    served = grouped(kinds).get(group_name, {}).get(version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [resource for kind in served for resource in _resources(kind)],
    }


def _resources(kind: Kind) -> Iterator[Object]:
    place = {"namespaced": kind.namespaced, "kind": kind.kind}
    yield {
        "name": kind.plural,
        "singularName": kind.singular or kind.kind.lower(),
        **place,
        "verbs": _CUSTOM_VERBS if kind.custom else _VERBS,
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **({"categories": list(kind.categories)} if kind.categories else {}),
    }
    for name, (own, group, version, verbs) in _SUBRESOURCES.items():
        if not kind.has(name):
            continue
        below = {"name": f"{kind.plural}/{name}", "singularName": "", **place, "verbs": verbs}
        if own:
            below["kind"] = own
        if group:
            below |= {"group": group, "version": version}
        yield below


def _precedence(version: str) -> tuple[int, int, str]:
    """v2 before v1 before v1beta1 before v1alpha1, as Kubernetes prefers them."""
    digits = version[1:].partition("beta")[0].partition("alpha")[0]
    stability = 1 if "beta" in version else 2 if "alpha" in version else 0
    return stability, -int(digits) if digits.isdecimal() else 0, version
