"""Shows objects as a client's Accept header asks: as they are, or as a Table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import orjson
from aiohttp import web

from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.store import Stored
from embedded_cluster.apiserver.table import table
from volcano_elastic.kube.resource import Object


class Rendering:
    """The answers to one request about objects of a kind, as JSON."""

    def __init__(self, request: web.BaseRequest, kind: Kind, clock: Callable[[], datetime]) -> None:
        self._kind, self._clock = kind, clock
        self._tables = _wants_tables(request.headers.get("Accept", ""))
        self._include = request.query.get("includeObject", "Metadata")
        self._heads = True

    def one(self, stored: Stored) -> bytes:
        """Return one object. Only the first Table of a watch has the heads of its columns."""
        shown = stored.shown_as(self._kind.api_version)
        if not self._tables:
            return shown.raw
        meta = {"resourceVersion": shown.obj["metadata"].get("resourceVersion", "")}
        rendered = self._table([shown], meta)
        self._heads = False
        return rendered

    def many(self, found: list[Stored], meta: Object) -> bytes:
        kind = self._kind
        shown = [stored.shown_as(kind.api_version) for stored in found]
        if self._tables:
            return self._table(shown, meta)
        # As Go's lists of typed items: their type is said once, by the list.
        start = b'{"apiVersion":"%b","kind":"%b",' % (kind.api_version.encode(), kind.kind.encode())
        cut = 0 if kind.custom else len(start)
        items = [
            b"{" + one.raw[cut:] if cut and one.raw.startswith(start) else one.raw for one in shown
        ]
        if kind.custom:
            meta = {"continue": "", **meta}
        # The objects' JSON is at hand: only the frame is encoded here.
        typed = {"kind": kind.kind + "List", "apiVersion": kind.api_version}
        frame = orjson.dumps({**typed, "metadata": meta})
        return frame[:-1] + b',"items":[' + b",".join(items) + b"]}"

    def _table(self, shown: list[Stored], meta: Object) -> bytes:
        objects = [stored.obj for stored in shown]
        now, heads = self._clock(), self._heads
        return orjson.dumps(table(self._kind, objects, now, meta, self._include, heads=heads))


def _wants_tables(accept: str) -> bool:
    """By the first offer that is known here; a Table of an unknown version is none."""
    for offer in accept.split(","):
        parameters = {part.strip() for part in offer.split(";")[1:]}
        if not any(one.startswith("as=") for one in parameters):
            return False
        if parameters >= {"as=Table", "g=meta.k8s.io", "v=v1"}:
            return True
    return False
