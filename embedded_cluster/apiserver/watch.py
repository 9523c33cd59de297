"""A watch: from a change in the store to a line on the wire."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.selector import Selector
from embedded_cluster.apiserver.status import expired
from embedded_cluster.apiserver.store import Change, Store, Stored
from volcano_elastic.kube.resource import Object

# Clients take 75 s of silence for a dead connection.
BOOKMARK_SECONDS = 20.0

# What is sent in one go, so that little lies in the buffers of a client that doesn't read.
_CHUNK_BYTES = 256 * 1024


@dataclass(slots=True)
class _Event:
    revision: int
    type: str
    stored: Stored


class Watch:
    """One client's view of one resource: what it has not been sent yet.

    Events wait as what the store has anyway, and become JSON when they are sent. So a client that
    reads slowly costs next to nothing; it has `overrun` once the oldest of them has left the
    store's history, and may resume where it was or list again.

    Subscribes at once, so that nothing happens between the replay and the live changes. Close it
    with `close`.

    Args:
        since: the revision after which its changes begin; None: what is there comes first.
        marked: whether a bookmark ends what is there.

    Raises:
        StatusError: 410, the changes after `since` are not all known any more.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind,
        namespace: str | None,
        selector: Selector | None,
        render: Callable[[Stored], bytes],
        *,
        since: int | None,
        marked: bool = False,
    ) -> None:
        self.waiting: deque[_Event] = deque()
        self.wake = asyncio.Event()
        self.overrun = False
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._render = render
        if since is None:
            for stored in store.all_of(kind.key, namespace):
                if selector is None or selector(stored.obj):
                    self._add(store.revision, "ADDED", stored)
            if marked:
                self._add(store.revision, "BOOKMARK", self._mark(initial=True))
        else:
            changes = store.since(kind.key, since)
            if changes is None:
                raise expired(
                    f"too old resource version: {since} (of this server's {store.revision})"
                )
            for change in changes:
                self._offer(change)
        store.subscribe(kind.key, self._offer)

    def close(self) -> None:
        self._store.unsubscribe(self._kind.key, self._offer)

    def take(self) -> bytes:
        """The next lines; empty if none waits."""
        self.wake.clear()
        lines, size = [], 0
        while self.waiting and size < _CHUNK_BYTES:
            event = self.waiting.popleft()
            lines.append(self._line(event.type, event.stored))
            size += len(lines[-1])
        return b"".join(lines)

    def bookmark(self) -> bytes:
        """To be sent when nothing waits: up to here the client has seen everything."""
        return self._line("BOOKMARK", self._mark())

    def _line(self, event: str, stored: Stored) -> bytes:
        shown = stored.raw if event == "BOOKMARK" else self._render(stored)
        return b'{"type":"%b","object":%b}\n' % (event.encode(), shown)

    def _mark(self, *, initial: bool = False) -> Stored:
        meta: Object = {"resourceVersion": str(self._store.revision)}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return Stored.of(
            {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta}
        )

    def _offer(self, change: Change) -> None:
        meta = change.stored.obj["metadata"]
        if self._namespace is not None and meta.get("namespace", "") != self._namespace:
            return
        wanted, previous = self._selector, change.previous
        before = previous is not None and (wanted is None or wanted(previous.obj))
        after = change.type != "DELETED" and (wanted is None or wanted(change.stored.obj))
        if after:
            self._add(change.revision, "MODIFIED" if before else "ADDED", change.stored)
        elif before and previous is not None:
            gone = change.stored
            if change.type != "DELETED":
                # As it was when it still matched, at the revision of the change that ended that.
                meta = {**previous.obj["metadata"], "resourceVersion": str(change.revision)}
                gone = Stored.of({**previous.obj, "metadata": meta})
            self._add(change.revision, "DELETED", gone)

    def _add(self, revision: int, event: str, stored: Stored) -> None:
        if self.waiting and self.waiting[0].revision < self._store.compacted(self._kind.key):
            self.overrun = True
            self.waiting.clear()
        if not self.overrun:
            self.waiting.append(_Event(revision, event, stored))
        self.wake.set()
