"""Classifies a request by RBAC's, audit logs' and metrics' words."""

from __future__ import annotations

from dataclasses import dataclass

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Mirrors k8s.io/apiserver's RequestInfo; `resource` is empty for paths of no resource."""

    verb: str
    group: str
    resource: str
    subresource: str = ""


def request_info(method: str, path: str, *, watch: bool = False) -> RequestInfo:
    """`path` as Resource.path makes it."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return RequestInfo(method.lower(), "", "")
    # namespaces/NAME/pods is about pods; namespaces/NAME and namespaces/NAME/status are not.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    named = len(rest) > 1
    if method == "GET":
        verb = "watch" if watch else "get" if named else "list"
    elif method == "DELETE":
        verb = "delete" if named else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return RequestInfo(verb, group, rest[0], rest[2] if len(rest) > 2 else "")
