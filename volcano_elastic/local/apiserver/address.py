"""From a URL's path to what it is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """A resource path, taken apart. `namespace` None means all, or a cluster-scoped kind."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""


def parse(path: str) -> Address | None:
    """None for what is no resource's path (`/apis`, `/api/v1`, `/version`)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[1:]
    elif parts[0] == "apis" and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if len(rest) < 2 or not all(rest):
        return None
    version, *rest = rest
    namespace = None
    # /namespaces/NAME and /namespaces/NAME/status are about the namespace itself.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Address(group, version, plural, namespace, name, subresource)
