"""The scale subresource of custom resources: autoscaling/v1 Scale."""

from __future__ import annotations

from typing import Any

from embedded_cluster.apiserver import json_path
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.status import bad_request, modified
from volcano_elastic.kube.resource import Object


def scale_of(kind: Kind, obj: Object) -> Object:
    meta = obj["metadata"]
    status: Object = {"replicas": _at(_path(kind, "statusReplicasPath"), obj) or 0}
    labels = _path(kind, "labelSelectorPath")
    if labels and (selector := _at(labels, obj)):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            name: meta[name]
            for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if name in meta
        },
        "spec": {"replicas": _at(_path(kind, "specReplicasPath"), obj) or 0},
        "status": status,
    }


def scaled(kind: Kind, obj: Object, wanted: Object) -> Object:
    """`obj`, changed in place, with the replicas that the Scale `wanted` asks for.

    Raises:
        StatusError: 400 where they have no place, 409 for a Scale of an older object.
    """
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    expected = (wanted.get("metadata") or {}).get("resourceVersion")
    if expected and expected != obj["metadata"]["resourceVersion"]:
        raise modified(kind, obj["metadata"]["name"])
    path = _path(kind, "specReplicasPath")
    *parents, last = path.strip(".").split(".")
    place: Any = obj
    for part in parents:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise bad_request(f"Scale: {path} leads through no object")
    place[last] = replicas
    return obj


def _path(kind: Kind, name: str) -> str:
    """A dotted path from the root (`.spec.replicas`); empty where the CRD gives none."""
    return str((kind.scale or {}).get(name) or "")


def _at(path: str, obj: Object) -> Any:
    return next(iter(json_path.find(path, obj)), None)
