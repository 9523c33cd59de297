"""The scale subresource of custom resources: autoscaling/v1 Scale."""

from __future__ import annotations

from typing import Any

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import json_path
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.status import (
    bad_request,
    modified,
    patch_refused,
)


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


def scaled(kind: Kind, obj: Object, body: Any) -> Object:
    """`obj`, changed in place, with the replicas that the Scale `body` asks for.

    Raises:
        StatusError: 400 for a bad Scale, 409 for one of an older object.
    """
    spec = body.get("spec") if isinstance(body, dict) else None
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise patch_refused(f"Scale: expected spec.replicas to be a number, found {replicas!r}")
    meta = body.get("metadata")
    expected = meta.get("resourceVersion") if isinstance(meta, dict) else None
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
