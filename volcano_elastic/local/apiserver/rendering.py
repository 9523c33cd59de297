"""How a client wants objects shown, by its Accept header: as they are, or as a Table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.store import Stored
from volcano_elastic.local.apiserver.table import table

Form = Literal["Object", "Table"]


def form_of(accept: str) -> Form:
    """The first one this server knows; a Table of an unknown version is none."""
    for offer in accept.split(","):
        parts = dict(
            part.strip().partition("=")[::2] for part in offer.split(";")[1:] if "=" in part
        )
        if "as" not in parts:
            return "Object"
        if (parts["as"], parts.get("g"), parts.get("v")) == ("Table", "meta.k8s.io", "v1"):
            return "Table"
    return "Object"


def one(
    kind: Kind,
    stored: Stored,
    form: Form,
    query: Mapping[str, str],
    now: datetime,
    *,
    heads: bool = True,
) -> bytes:
    """`heads`: of a Table, whether it has the column heads, which only a watch's first has."""
    if form == "Object":
        return stored.raw
    meta = {"resourceVersion": stored.obj["metadata"].get("resourceVersion", "")}
    return _table(kind, [stored], query, now, meta, heads=heads)


def many(
    kind: Kind,
    found: list[Stored],
    form: Form,
    query: Mapping[str, str],
    now: datetime,
    meta: Object,
) -> bytes:
    if form == "Table":
        return _table(kind, found, query, now, meta, heads=True)
    # As Go's lists of typed items: their type is said once, by the list.
    start = b'{"apiVersion":"%b","kind":"%b",' % (kind.api_version.encode(), kind.kind.encode())
    cut = 0 if kind.custom else len(start)
    items = [
        b"{" + stored.raw[cut:] if cut and stored.raw.startswith(start) else stored.raw
        for stored in found
    ]
    if kind.custom:
        meta = {"continue": "", **meta}
    # The objects' JSON is at hand: only the frame is encoded here.
    frame = orjson.dumps({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": meta})
    return frame[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _table(
    kind: Kind,
    found: Iterable[Stored],
    query: Mapping[str, str],
    now: datetime,
    meta: Object,
    *,
    heads: bool,
) -> bytes:
    return orjson.dumps(
        table(
            kind,
            (stored.obj for stored in found),
            now=now,
            meta=meta,
            include=query.get("includeObject", "Metadata"),
            heads=heads,
        )
    )
