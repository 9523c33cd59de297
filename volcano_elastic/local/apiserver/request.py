"""What an HTTP request carries beside its method: token, body, selectors, numbers, options."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from volcano_elastic.local.apiserver import selector
from volcano_elastic.local.apiserver.body import decode
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.options import WriteOptions
from volcano_elastic.local.apiserver.status import bad_request

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


def selector_of(request: web.BaseRequest, kind: Kind, name: str = "") -> selector.Selector | None:
    query = request.query
    fields = query.get("fieldSelector", "")
    if name:
        fields = f"{fields},metadata.name={name}"
    return selector.parse(query.get("labelSelector", ""), fields, kind)


def write_options(request: web.BaseRequest) -> WriteOptions:
    query = request.query
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return WriteOptions(
        dry_run == "All",
        query.get("fieldValidation") or "Warn",
        query.get("fieldManager") or agent,
        query.get("force") in ("true", "1"),
    )


def number_of(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{name}: expected a number ≥ 0, found {text!r}")
    return int(text)
