"""What an HTTP request carries beside its method: token, body, selectors, numbers, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from volcano_elastic.local.apiserver import selector
from volcano_elastic.local.apiserver.body import decode
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.options import WriteOptions, flag
from volcano_elastic.local.apiserver.status import (
    bad_request,
    forbidden_field,
    options_invalid,
    unsupported,
)

_OPTIONS = {"POST": "CreateOptions", "PATCH": "PatchOptions"}
_VALIDATIONS = ("Ignore", "Strict", "Warn")
_TOKEN_PREFIX = "/token/"


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


async def decoded_body(request: web.BaseRequest) -> Any:
    raw = await request.read()
    kind = request.content_type if "Content-Type" in request.headers else ""
    return decode(raw, kind)


def selector_of(request: web.BaseRequest, kind: Kind) -> selector.Selector | None:
    query = request.query
    return selector.parse(query.get("labelSelector", ""), query.get("fieldSelector", ""), kind)


def write_options(request: web.BaseRequest) -> WriteOptions:
    """Raises StatusError, 422, for values that Kubernetes doesn't know."""
    query, name = request.query, _OPTIONS.get(request.method, "UpdateOptions")
    dry_run, validation = query.get("dryRun", ""), query.get("fieldValidation") or "Warn"
    if dry_run not in ("", "All"):
        raise options_invalid(name, unsupported("dryRun", [dry_run], ["All"]))
    if validation not in _VALIDATIONS:
        cause = unsupported("fieldValidation", validation, ["", *_VALIDATIONS])
        raise options_invalid(name, cause)
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return WriteOptions(
        dry_run == "All",
        validation,
        query.get("fieldManager") or agent,
        flag(query, "force"),
        bool(query.get("fieldManager")),
    )


def check_list(query: Mapping[str, str], *, watch: bool) -> None:
    """Refuse what a list or a watch can't be asked for.

    Raises:
        StatusError: 400 or 422.
    """
    revision, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    why = ""
    if "sendInitialEvents" in query and not watch:
        cause = forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")
        raise options_invalid("ListOptions", cause)
    if flag(query, "sendInitialEvents") and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    elif match and not watch and not revision:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and revision == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        raise options_invalid("ListOptions", forbidden_field("resourceVersionMatch", why))
    if revision and not revision.isdecimal():
        raise bad_request(f"resourceVersion: Invalid value: {revision!r}: expected a number")


def exact_revision(query: Mapping[str, str], limit: int) -> int | None:
    """The revision that a list must show; None where any that is new enough will do."""
    revision, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    wanted = match == "Exact" or (limit > 0 and not match and revision not in ("", "0"))
    return int(revision) if wanted else None


def number_of(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{name}: expected a number ≥ 0, found {text!r}")
    return int(text)
