"""How a client wants objects shown, by its Accept header: as they are, as a Table, as metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.store import Stored
from volcano_elastic.local.apiserver.table import partial, table

Form = Literal["Object", "Table", "PartialObjectMetadata"]


def form_of(accept: str) -> Form:
    """The first one this server knows; a Table or metadata of an unknown version is no match."""
    for offer in accept.split(","):
        parts = dict(
            part.strip().partition("=")[::2] for part in offer.split(";")[1:] if "=" in part
        )
        asked = parts.get("as", "")
        if not asked:
            return "Object"
        if parts.get("g") == "meta.k8s.io" and parts.get("v") == "v1":
            if asked == "Table":
                return "Table"
            if asked.startswith("PartialObjectMetadata"):
                return "PartialObjectMetadata"
    return "Object"


def wants_aggregated_discovery(accept: str) -> bool:
    return "as=APIGroupDiscoveryList" in accept.replace(" ", "") and "v=v2" in accept


def one(kind: Kind, stored: Stored, form: Form, query: Mapping[str, str], now: datetime) -> bytes:
    if form == "Table":
        meta = {"resourceVersion": stored.obj["metadata"].get("resourceVersion", "")}
        return _table(kind, [stored], query, now, meta, heads=True)
    if form == "PartialObjectMetadata":
        return orjson.dumps(partial(stored.obj))
    return stored.raw


def watched(
    kind: Kind, stored: Stored, form: Form, query: Mapping[str, str], now: datetime, *, first: bool
) -> bytes:
    """One event's object; only a watch's first table carries the column heads."""
    if form != "Table":
        return one(kind, stored, form, query, now)
    meta = {"resourceVersion": stored.obj["metadata"].get("resourceVersion", "")}
    return _table(kind, [stored], query, now, meta, heads=first)


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
    if form == "PartialObjectMetadata":
        items = [orjson.dumps(partial(stored.obj)) for stored in found]
        name, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
    else:
        # As Go's lists of typed items: their type is said once, by the list.
        start = b'{"apiVersion":"%b","kind":"%b",' % (kind.api_version.encode(), kind.kind.encode())
        cut = 0 if kind.custom else len(start)
        items = [
            b"{" + stored.raw[cut:] if cut and stored.raw.startswith(start) else stored.raw
            for stored in found
        ]
        name, api_version = kind.list_kind, kind.api_version
        if kind.custom:
            meta = {"continue": "", **meta}
    # The objects' JSON is at hand: only the frame is encoded here.
    frame = orjson.dumps({"kind": name, "apiVersion": api_version, "metadata": meta})
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
