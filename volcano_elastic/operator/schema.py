"""Checks that the API server keeps our fields: Kubeflow's CRD, applied over ours, prunes them, and
an older version's prunes those that are new."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.kube import event
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import CRDS, EVENTS, PYTORCHJOBS, Object
from volcano_elastic.operator.executor import COMPONENT
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.pytorchjob.coexistence import missing_fields

_log = logging.getLogger(__name__)
CRD_NAME = f"{PYTORCHJOBS.plural}.{PYTORCHJOBS.group}"
REPAIR = "volcano-elastic crds | kubectl apply --server-side --force-conflicts -f -"
# A CRD is stored before every API server serves its schema; a status written between is pruned.
_SETTLE_SECONDS = 2.0


class ServedSchema:
    """Nothing is written while a field of ours is missing: what is pruned (status.elastic) would
    be lost, and acted upon as lost."""

    def __init__(self, client: Client, metrics: Metrics) -> None:
        self.informer = Informer(client, CRDS, field_selector=f"metadata.name={CRD_NAME}")
        self.missing: list[str] = []
        """Paths of fields; empty also while there is no CRD, hence nothing to write about."""
        self._client, self._metrics = client, metrics
        self._changed = asyncio.Event()
        self.informer.on_change(self._note)

    async def run(
        self, work: Callable[[], Awaitable[None]], meanwhile: Callable[[str], Awaitable[None]]
    ) -> None:
        """Has `work` run while the schema is complete, and `meanwhile`, which is told what is
        wrong, while it is not; raises what they raise."""
        while True:
            if self.missing:
                message = self._message()
                await self._say(message)
                await self._alternate(meanwhile(message), lambda: not self.missing)
                await asyncio.sleep(_SETTLE_SECONDS)
                _log.info("the served schema of %s has our fields again", CRD_NAME)
                continue
            if await self._alternate(work(), lambda: bool(self.missing)):
                return

    async def _alternate(self, work: Awaitable[None], ends: Callable[[], bool]) -> bool:
        """Runs `work` until `ends` holds; True if it ended by itself."""
        task = asyncio.ensure_future(work)
        waiting = asyncio.create_task(self._until(ends))
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return True
            return False
        finally:
            for one in (task, waiting):
                one.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _note(self, old: Object | None, new: Object | None) -> None:
        self.missing = missing_fields(new, PYTORCHJOBS.version) if new is not None else []
        self._metrics.schema_complete.set(not self.missing)
        self._changed.set()

    def _message(self) -> str:
        return (
            f"the served schema lacks {', '.join(self.missing)}: the CRD is an older version's, or "
            "another was applied over ours. Pods train on, but no PyTorchJob is written until it "
            f"is repaired: {REPAIR}"
        )

    async def _say(self, message: str) -> None:
        _log.error("%s: %s", CRD_NAME, message)
        crd = self.informer.get(CRD_NAME)
        if crd is None:
            return
        body = event.make(
            crd,
            reason="SchemaIncomplete",
            message=message,
            now=datetime.now(UTC),
            component=COMPONENT,
            warning=True,
        )
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
            await self._client.create(EVENTS, body)
