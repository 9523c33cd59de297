"""OpenAPI v3: as much as kubectl asks for before it applies, creates or explains."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from embedded_cluster.apiserver.discovery import grouped
from embedded_cluster.apiserver.kind import Kind
from volcano_elastic.kube.resource import Object

# kubectl asks for v2 about what v3 doesn't have, and takes no error for "there is none".
V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
NOTHING_IN_V2 = b"\n\x032.0"
_ANYTHING: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PATCH_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index(kinds: Iterable[Kind], registry_version: int) -> Object:
    """List the documents; the hash makes clients fetch again when CRDs change."""
    return {
        "paths": {
            root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={registry_version}"}
            for group, versions in grouped(kinds).items()
            for version in versions
            for root in [_root(group, version)]
        }
    }


def document(kinds: Iterable[Kind], root: str) -> Object | None:
    """Paths and schemas of one group and version; None if it isn't served."""
    served = [kind for kind in kinds if _root(kind.group, kind.version) == root]
    if not served:
        return None
    paths: Object = {}
    schemas: Object = {}
    for kind in served:
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        said = {"x-kubernetes-group-version-kind": gvk}
        name = f"{kind.group or 'core'}.{kind.version}.{kind.kind}"
        schemas[name] = {**_schema(kind), "x-kubernetes-group-version-kind": [gvk]}
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        get = {"responses": {"200": {"description": "OK", "content": content}}, **said}
        base = f"/{root}/" + ("namespaces/{namespace}/" if kind.namespaced else "") + kind.plural
        paths[base] = {"get": get}
        # By its parameters kubectl tells whether the server validates fields and does dry runs.
        paths[base + "/{name}"] = {"get": get, "patch": {"parameters": _PATCH_PARAMETERS, **said}}
    return {
        "openapi": "3.0.0",
        "info": {"title": "volcano-elastic", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema(kind: Kind) -> Object:
    if kind.schema is None:
        return dict(_ANYTHING)
    schema = copy.deepcopy(kind.schema)
    properties = schema.setdefault("properties", {})
    for name in ("apiVersion", "kind"):
        properties.setdefault(name, {"type": "string"})
    properties.setdefault("metadata", {"type": "object"})
    return schema
