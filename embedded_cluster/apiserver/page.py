"""A list: of which revision, and in pages (`limit` and `continue`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import orjson

from embedded_cluster.apiserver.kind import ResourceKey
from embedded_cluster.apiserver.request import check_list, number, revision
from embedded_cluster.apiserver.selector import Selector
from embedded_cluster.apiserver.status import bad_request, expired, too_new
from embedded_cluster.apiserver.store import Store, Stored
from volcano_elastic.kube.resource import Object


def _token(revision: int, last: Stored) -> str:
    """Return the token with which a list goes on: after this object, as of this revision."""
    return base64.urlsafe_b64encode(orjson.dumps([revision, *last.place])).decode()


def _read(token: str) -> tuple[int, tuple[str, str]]:
    """Raises StatusError, 400, for a token that this server didn't make."""
    try:
        revision, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
        return int(revision), (str(namespace), str(name))
    except (ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


def page(
    store: Store,
    resource: ResourceKey,
    namespace: str | None,
    wanted: Selector | None,
    query: Mapping[str, str],
) -> tuple[list[Stored], Object]:
    """The objects that a list's query asks for, and the list's metadata.

    Raises:
        StatusError: 400 or 422 for what can't be asked, 410 for a revision that is not known any
            more, 504 for one that is yet to come.
    """
    check_list(query, watch=False)
    asked, match = revision(query), query.get("resourceVersionMatch")
    # Less than nothing is as good as no limit, there too.
    limit = max(number(query, "limit") or 0, 0)
    began, after = _read(query["continue"]) if query.get("continue") else (0, None)
    if after and asked:
        raise bad_request("resourceVersion: a list that goes on has its own; ask without it")
    if asked == 0 and not after:
        # There, such a list comes from a cache, which knows no pages.
        limit = 0
    if asked and asked > store.revision:
        raise too_new(asked, store.revision)
    exact = asked if match == "Exact" or (limit and not match) else None
    at = began if after else exact or store.revision
    found = store.as_of(resource, namespace, at)
    if found is None:
        raise expired(f"revision {at} is not known any more; list from the beginning")
    if wanted is not None:
        found = [stored for stored in found if wanted(stored.obj)]
    if after:
        found = [one for one in found if one.place > after]
    items = found[: limit or None]
    meta: Object = {"resourceVersion": str(at)}
    if remaining := len(found) - len(items):
        meta["continue"] = _token(at, items[-1])
        if wanted is None:
            meta["remainingItemCount"] = remaining
    return items, meta
