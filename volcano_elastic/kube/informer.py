"""A local copy of one kind, kept current by list and watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import aiohttp

from volcano_elastic.kube import retry
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import Object, Resource, key_of

_log = logging.getLogger(__name__)

# How many deleted objects are remembered, so that a late answer does not bring them back.
_REMEMBERED = 10_000
# Servers end watches after minutes; one that ends at once would be begun again in a hot loop.
_SHORT_WATCH = 1.0

# Called after the store changed, with what was there before and what is there now.
Handler = Callable[[Object | None, Object | None], None]


class Informer:
    """Lists, then watches from there; resumes a watch that was cut, lists again on 410; with
    jitter.

    `put` and `drop` let a writer enter the answer of its own write at once, so that its next
    pass does not act on a stale read; the newer resourceVersion wins.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.client = client
        self.events = 0
        """That watches brought, bookmarks included."""
        self.lists = 0
        """From the second on: a watch could not be resumed."""
        self.lag = 0.0
        """Seconds that the latest write entered by `put` took to come back by watch."""
        self.failure = ""
        """Why nothing can be listed or watched just now; empty while all is well."""
        self._unseen: tuple[int, float] | None = None
        """resourceVersion of a write that no watch has brought yet, and when it was entered."""
        self._version: str | None = None
        """Where the next watch resumes; None: it has to list first."""
        self._namespace = namespace
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._store: dict[str, Object] = {}
        self._gone: dict[str, None] = {}
        """uids, oldest first"""
        self._handlers: list[Handler] = []

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def get(self, key: str) -> Object | None:
        return self._store.get(key)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._store.values()))

    def __len__(self) -> int:
        return len(self._store)

    def note_write(self, obj: Object) -> None:
        """Enters the answer of a write of our own."""
        if self._unseen is None:
            self._unseen = (_version(obj), time.monotonic())
        self._enter(obj)

    def _enter(self, obj: Object) -> None:
        obj.setdefault("apiVersion", self.resource.api_version)
        obj.setdefault("kind", self.resource.kind)
        key = key_of(obj)
        if obj["metadata"].get("uid") in self._gone:
            return
        old = self._store.get(key)
        if old is not None and old["metadata"].get("uid") == obj["metadata"].get("uid"):
            if _version(obj) <= _version(old):
                return
        elif old is not None and _version(obj) < _version(old):
            return
        self._store[key] = obj
        self._tell(old, obj)

    def drop(self, obj: Object) -> None:
        key = key_of(obj)
        self._forget(obj)
        old = self._store.get(key)
        if old is None or old["metadata"].get("uid") != obj["metadata"].get("uid"):
            return
        del self._store[key]
        self._tell(old, None)

    async def run(self) -> None:
        """Until cancelled."""

        def failed(reason: str) -> None:
            self.failure = reason

        while True:
            # Waits grow while nothing can be watched, and begin anew after each time that it could.
            what = f"watching {self.resource.plural}"
            await retry.WATCH.call(self._until_cut, what=what, failed=failed)

    async def _until_cut(self) -> None:
        """Returns when a watch ends that lasted.

        Raises:
            retry.Interrupted: it never began, or ended at once.
        """
        began = time.monotonic()
        reason: object = None
        try:
            if self._version is None:
                self._version = await self._list()
            await self._watch(self._version)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = error or type(error).__name__
        except ApiError as error:
            # Whatever the server dislikes about resuming, listing gets over it.
            self._version, reason = None, error
        if time.monotonic() - began <= _SHORT_WATCH:
            raise retry.Interrupted(str(reason or "it ends as soon as it begins"))
        if reason is not None:
            self.failure = str(reason)
            _log.warning("watching %s: %s; resuming", self.resource.plural, reason)

    async def _list(self) -> str:
        answer = await self.client.list(self.resource, self._namespace, **self._selectors)
        self.lists += 1
        self._unseen = None
        seen = {key_of(item) for item in answer["items"]}
        for item in answer["items"]:
            self._gone.pop(str(item["metadata"].get("uid")), None)
            self._enter(item)
        listed = int(answer["metadata"]["resourceVersion"])
        for key in set(self._store) - seen:
            # Written by us after the list was made: not gone, only newer than it.
            if _version(self._store[key]) <= listed:
                old = self._store.pop(key)
                self._forget(old)
                self._tell(old, None)
        self.failure = ""
        self.synced.set()
        return str(listed)

    async def _watch(self, version: str) -> None:
        async for kind, obj in self.client.watch(
            self.resource, self._namespace, resource_version=version, **self._selectors
        ):
            self._version = version = str(obj["metadata"]["resourceVersion"])
            self.failure = ""
            self.events += 1
            if self._unseen is not None and self._unseen[0] <= int(version):
                self.lag = time.monotonic() - self._unseen[1]
                self._unseen = None
            if kind == "DELETED":
                self.drop(obj)
            elif kind != "BOOKMARK":
                if kind == "ADDED":
                    # With a selector, DELETED may only mean that it did not match for a while.
                    self._gone.pop(str(obj["metadata"].get("uid")), None)
                self._enter(obj)

    def _forget(self, obj: Object) -> None:
        # A watch may say DELETED before the answer of an earlier write has been read.
        self._gone[str(obj["metadata"].get("uid"))] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _tell(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            handler(old, new)


def _version(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
