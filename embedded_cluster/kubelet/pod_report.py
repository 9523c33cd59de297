"""Tells the API server about one pod: its status, events, and at last its removal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import aiohttp

from embedded_cluster.kubelet.lifecycle import PodEvent
from volcano_elastic.kube import event
from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import EVENTS, PODS, Object

_log = logging.getLogger(__name__)

_NOT_DONE = (ApiError, aiohttp.ClientError, OSError)
_LAST_WRITE_SECONDS = 10.0


class PodReport:
    """Patient with an API server that doesn't answer; writes nothing once it is `closed`.

    Args:
        status: the pod's, as it should be now.
    """

    def __init__(
        self, pod: Object, client: Client, pods: Informer, status: Callable[[], Object]
    ) -> None:
        meta = pod["metadata"]
        self._name, self._namespace, self._uid = meta["name"], meta["namespace"], meta["uid"]
        self._about = {"apiVersion": "v1", "kind": "Pod"} | pod
        self._client, self._pods, self._status = client, pods, status
        self._written: Object | None = None
        self._dirty, self._writing = asyncio.Event(), asyncio.Lock()
        self.closed = False
        self._connected = asyncio.Event()
        self._connected.set()

    @property
    def key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def cut_off(self) -> None:
        """Nothing is told until `reconnect`."""
        self._connected.clear()

    def reconnect(self) -> None:
        """Tells all anew: others may have said something of the pod meanwhile."""
        self._written = None
        self._connected.set()
        self._dirty.set()

    def changed(self) -> None:
        """The status may be another now."""
        self._dirty.set()

    async def write_changes(self) -> None:
        """Write each change of the status, until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            if (status := self._status()) != self._written:
                await self._patch({"status": status}, "status")
                self._written = status

    async def annotate(self, annotations: dict[str, str | None]) -> None:
        await self._patch({"metadata": {"annotations": annotations}}, None)

    async def tell(self, told: PodEvent) -> None:
        if not self._connected.is_set():
            return
        body = event.make(
            self._about,
            reason=told.reason,
            message=told.message,
            now=datetime.now(UTC),
            component="kubelet",
            warning=told.warning,
        )
        try:
            await self._client.create(EVENTS, body)
        except _NOT_DONE as error:
            _log.warning("event about pod %s: %s", self.key, error or type(error).__name__)

    async def remove(self, *, with_status: bool) -> None:
        """Lets the API server forget the pod, once it knows how it ended."""
        if with_status:
            try:
                async with asyncio.timeout(_LAST_WRITE_SECONDS):
                    await self._write()
            except TimeoutError:
                _log.warning("pod %s: its last status could not be written", self.key)
        await self._until_answered(
            "removing",
            lambda: self._client.delete(
                PODS, self._name, self._namespace, uid=self._uid, grace_period_seconds=0
            ),
        )

    async def _patch(self, body: dict[str, Any], subresource: str | None) -> None:
        body = body | {"metadata": body.get("metadata", {}) | {"uid": self._uid}}
        answer = await self._until_answered(
            "writing",
            lambda: self._client.patch(
                PODS, self._name, self._namespace, body, subresource=subresource
            ),
        )
        if answer is not None:
            self._pods.note_write(answer)

    async def _until_answered(
        self, what: str, request: Callable[[], Coroutine[Any, Any, Object]]
    ) -> Object | None:
        """The answer; None if the pod is gone."""
        delay = 0.1
        while not self.closed:
            await self._connected.wait()
            if self.closed:
                break
            try:
                return await request()
            except (NotFound, Conflict):
                # Removed, or another pod bears the name: the informer will say so.
                return None
            except _NOT_DONE as error:
                _log.warning("%s pod %s: %s", what, self.key, error or type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
        return None
