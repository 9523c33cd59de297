"""A list in pages: `limit` and `continue`."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import orjson

from volcano_elastic.local.apiserver.status import bad_request
from volcano_elastic.local.apiserver.store import Stored


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list; `token` asks for the next ones and is empty after the last."""

    items: list[Stored]
    revision: int
    token: str
    remaining: int


def cut(found: list[Stored], limit: int, token: str, revision: int) -> Page:
    """The page after `token`.

    Later pages show objects as they are then, under the first page's revision: a watch from there
    replays what changed in between, so a list and its watch still add up to the present.

    Raises:
        StatusError: 400 for a token that this server didn't make.
    """
    if token:
        revision, namespace, name = _decode(token)
        found = [one for one in found if _place(one) > (namespace, name)]
    if not limit or len(found) <= limit:
        return Page(found, revision, "", 0)
    last = orjson.dumps([revision, *_place(found[limit - 1])])
    return Page(
        found[:limit], revision, base64.urlsafe_b64encode(last).decode(), len(found) - limit
    )


def _decode(token: str) -> tuple[int, str, str]:
    try:
        revision, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    return int(revision), str(namespace), str(name)


def _place(stored: Stored) -> tuple[str, str]:
    meta = stored.obj["metadata"]
    return meta.get("namespace", ""), meta["name"]
