"""Says which requests are refused, before anything of them is looked at further. Pure.

The page's own scripts send the token as a header, which no other site's can: there is no cookie,
and no other origin is told that it may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer."""

MOST_QUERY = 1024
"""Characters of a query."""
PROBE = "/healthz"
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class Asked:
    """The headers that decide whether a request is answered; None where it has no such header."""

    method: str
    path: str
    query: str
    host: str | None
    origin: str | None
    fetch_site: str | None
    authorization: str | None
    has_body: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    why: str


def refusal(asked: Asked, hosts: frozenset[str], accepts: Callable[[str], bool]) -> Refusal | None:
    """Return why a request is refused; None if it is answered.

    Args:
        hosts: names, with their ports, under which the page is served.
        accepts: says whether a token is in force.
    """
    if asked.method not in ("GET", "HEAD"):
        return Refusal(405, f"expected GET or HEAD, found {asked.method}")
    if asked.path == PROBE:
        # Kubelets ask by the pod's address; it tells nothing.
        return None
    if asked.host is None or asked.host.lower() not in hosts:
        # A name that somebody else's DNS leads here would make their page ours.
        return Refusal(
            421, "this host name is not served here; start the dashboard with --host-name NAME"
        )
    if asked.origin is not None and asked.origin.rpartition("://")[2].lower() not in hosts:
        return Refusal(403, "other sites may not read this")
    if asked.fetch_site not in (None, "same-origin", "none") and _is_api(asked.path):
        return Refusal(403, "other sites may not read this")
    if asked.has_body:
        return Refusal(413, "expected a request without a body")
    if len(asked.query) > MOST_QUERY:
        return Refusal(414, f"expected a query of at most {MOST_QUERY} characters")
    if _is_api(asked.path):
        given = token(asked.authorization)
        if given is None or not accepts(given):
            return Refusal(401, "expected a valid token; use the address that was printed")
    return None


def token(authorization: str | None) -> str | None:
    """Return the token of an Authorization header."""
    if authorization is None or not authorization.startswith(_BEARER):
        return None
    return authorization.removeprefix(_BEARER)


def _is_api(path: str) -> bool:
    return path.startswith("/api")


def hosts(address: str, port: int, names: tuple[str, ...]) -> frozenset[str]:
    """Return the names under which a page that listens there is served.

    Args:
        address: that it listens on.
        names: others, with a port if it isn't a browser's default.
    """
    own = {address, "localhost", "127.0.0.1", "::1"}
    spelled = {f"[{one}]" if ":" in one else one for one in own}
    return frozenset({f"{one}:{port}" for one in spelled} | {name.lower() for name in names})
