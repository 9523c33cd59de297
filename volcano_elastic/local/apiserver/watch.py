"""A watch: from a change in the store to a line on the wire."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import orjson

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.selector import Selector
from volcano_elastic.local.apiserver.status import expired
from volcano_elastic.local.apiserver.store import Change, Store, Stored
from volcano_elastic.local.apiserver.version import shown_as

# A client this many events behind is dropped; it resumes where it was or lists again.
BACKLOG = 20_000
# Clients take 75 s of silence for a dead connection.
BOOKMARK_SECONDS = 20.0

# How an object is shown: itself, a Table or its metadata alone, as JSON.
Rendering = Callable[[Stored], bytes]


class Watch:
    """One client's view of one resource; `lines` collects what it has not been sent yet.

    Subscribes at once, so that nothing happens between the replay and the live changes. Close it
    with `close`.

    Raises:
        StatusError: 410, the changes after `resource_version` are not all known any more.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind,
        namespace: str | None,
        selector: Selector | None,
        render: Rendering,
        *,
        resource_version: str,
        initial_events: bool = False,
    ) -> None:
        self.lines: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.overrun = False
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._render = render
        if initial_events or resource_version in ("", "0"):
            for stored in store.all_of(kind.key, namespace):
                if selector is None or selector(stored.obj):
                    self._send("ADDED", stored)
            if initial_events:
                self.lines.append(self.bookmark(initial=True))
        else:
            changes = store.since(kind.key, int(resource_version))
            if changes is None:
                raise expired(
                    f"too old resource version: {resource_version} (of this server's "
                    f"{store.revision})"
                )
            for change in changes:
                self._offer(change)
        store.subscribe(kind.key, self._offer)

    def close(self) -> None:
        self._store.unsubscribe(self._kind.key, self._offer)
        self.wake.set()

    def take(self) -> bytes:
        """Everything that waits, at once."""
        self.wake.clear()
        waiting = b"".join(self.lines)
        self.lines.clear()
        return waiting

    def bookmark(self, *, initial: bool = False) -> bytes:
        """To be sent when nothing waits: up to here the client has seen everything."""
        meta: Object = {"resourceVersion": str(self._store.revision)}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta}
        return orjson.dumps({"type": "BOOKMARK", "object": obj}) + b"\n"

    def _offer(self, change: Change) -> None:
        meta = change.stored.obj["metadata"]
        if self._namespace is not None and meta.get("namespace", "") != self._namespace:
            return
        if self._selector is None:
            self._send(change.type, change.stored)
            return
        before = change.previous is not None and self._selector(change.previous.obj)
        after = change.type != "DELETED" and self._selector(change.stored.obj)
        if after:
            self._send("MODIFIED" if before else "ADDED", change.stored)
        elif before and change.previous is not None:
            # As it was when it still matched, at the revision of the change that ended that.
            last = change.previous.obj
            if change.type == "DELETED":
                last = change.stored.obj
            shown = {
                **last,
                "metadata": {**last["metadata"], "resourceVersion": str(change.revision)},
            }
            self._send("DELETED", Stored.of(shown))

    def _send(self, event: str, stored: Stored) -> None:
        if self.overrun:
            return
        if len(self.lines) >= BACKLOG:
            self.overrun = True
            self.lines.clear()
        else:
            shown = self._render(shown_as(self._kind, stored))
            self.lines.append(b'{"type":"%b","object":%b}\n' % (event.encode(), shown))
        self.wake.set()
