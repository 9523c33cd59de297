"""From a URL to what it is about, and who asks."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

_TOKEN_PREFIX = "/token/"


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


def path_and_token(request: web.BaseRequest) -> tuple[str, str]:
    """The path without a token in it, and the token: from `/token/TOKEN/...` or the header.

    client-go keeps a kubeconfig's token to itself unless the server speaks TLS, so kubectl's
    kubeconfig has to have it in the server's URL.
    """
    path = request.path
    if path.startswith(_TOKEN_PREFIX):
        token, _, rest = path.removeprefix(_TOKEN_PREFIX).partition("/")
        return "/" + rest, token
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return path, token.strip() if scheme.lower() == "bearer" else ""
