"""Watches the cluster, and makes a page of each moment in which something changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from volcano_elastic.adapters.adapter import Adapter
from volcano_elastic.dashboard.model.change import Change, changes
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.forecast.job_record import JobRecord, last_record
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PYTORCHJOBS, Object
from volcano_elastic.operator import kueue_quotas
from volcano_elastic.operator.cluster import resource_of
from volcano_elastic.operator.queue_plugin import watch_queue_plugin
from volcano_elastic.operator.snapshot_builder import KINDS, SnapshotBuilder
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.snapshot.snapshot import Snapshot

_log = logging.getLogger(__name__)
_BURST_SECONDS = 0.2
_AT_LEAST_EVERY_SECONDS = 5.0
"""Cooldowns end, and waits grow, without any change to be seen."""
_AT_MOST_EVERY_SECONDS = 1.0
_SHARE_OF_TIME = 0.2
"""The most of its time that it thinks."""


class Observer:
    """Keeps the newest page. `told` and `shown` are called on the event loop.

    Args:
        adapters: kinds of other jobs that the operator sizes.
        kueue: whether it sizes those that Kueue admits.
        plugin: by which Volcano divides among queues; None: as its ConfigMap says.
        told: of each change of a job; of some twice, since lists bring again what was known.
        recorded: what is known of each job that changed.
        shown: each page.
    """

    def __init__(
        self,
        client: Client,
        clock: Callable[[], datetime],
        *,
        told: Callable[[Change], None],
        recorded: Callable[[JobRecord], None],
        shown: Callable[[Page], None],
        plugin: str | None = None,
        adapters: Sequence[Adapter] = (),
        kueue: bool = False,
    ) -> None:
        self._client, self._clock, self._plugin = client, clock, plugin
        self._told, self._recorded, self._shown = told, recorded, shown
        self._builder = SnapshotBuilder(adapters=adapters, kueue=kueue)
        self._builder.proportion = plugin == "proportion"
        others = [*map(resource_of, adapters), *(kueue_quotas.KINDS if kueue else ())]
        self._informers = {kind: Informer(client, kind) for kind in (*KINDS, *others)}
        self._planner = Planner()
        self._unrecorded: list[tuple[Object | None, Object | None, datetime]] = []
        self._page: Page | None = None
        self._changed = asyncio.Event()
        for informer in self._informers.values():
            informer.on_change(self._note)
        self._informers[PYTORCHJOBS].on_change(self._note_job)

    @property
    def waits_for(self) -> str:
        """Return what the first page waits for, with the reason; empty once it is there."""
        if self._page is not None:
            return ""
        waiting = [i for i in self._informers.values() if not i.synced.is_set()]
        named = [f"{i.resource.plural}{f' ({i.failure})' if i.failure else ''}" for i in waiting]
        return ", ".join(named) or "the first plan"

    def job(self, key: str) -> Object | None:
        """Return a PyTorchJob as it is now, a finished one too."""
        return self._informers[PYTORCHJOBS].get(key)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())
            if self._plugin is None:
                group.create_task(watch_queue_plugin(self._client, self._divides))
            group.create_task(self._look_for_ever())

    def _divides(self, proportion: bool) -> None:
        self._builder.proportion = proportion
        self._changed.set()

    def _note(self, old: Object | None, new: Object | None) -> None:
        if self._builder.change(old, new):
            self._changed.set()

    def _note_job(self, old: Object | None, new: Object | None) -> None:
        try:
            found = changes(old, new, self._clock())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # Somebody else's object: no schema keeps its every field in shape.
            _log.warning("a change of a PyTorchJob can't be read: %r", error)
            return
        for change in found:
            self._told(change)
        self._unrecorded.append((old, new, self._clock()))

    def _record(self, resource: str) -> None:
        """Tell what is known of the jobs that changed. Before the first page nobody knows what the
        cluster counts in."""
        for old, new, when in self._unrecorded:
            try:
                record = last_record(old, new, resource, when)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # said where its changes are read
            if record is not None:
                self._recorded(record)
        self._unrecorded.clear()

    async def _look_for_ever(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()
        while True:
            self._changed.clear()
            began = time.thread_time()
            snapshot, now = self._builder.snapshot(), self._clock()
            took = 0.0
            try:
                page, took = await asyncio.to_thread(self._look, snapshot, now)
                self._page = page
                self._shown(page)
                self._record(page.resource)
            except Exception:
                # The next change may bring a cluster that can be shown.
                _log.exception("the page stays as it was: it could not be made anew")
            took += time.thread_time() - began
            await asyncio.sleep(max(_AT_MOST_EVERY_SECONDS, took / _SHARE_OF_TIME))
            try:
                await asyncio.wait_for(self._changed.wait(), _AT_LEAST_EVERY_SECONDS)
                await asyncio.sleep(_BURST_SECONDS)
            except TimeoutError:
                pass

    def _look(self, snapshot: Snapshot, now: datetime) -> tuple[Page, float]:
        """Return the page, and what it took of this thread; in a thread beside the event loop."""
        began = time.thread_time()
        page = Page(snapshot, self._planner.plan(snapshot, now), now, self._page)
        # What everybody is sent is made of them.
        _ = page.jobs, page.nodes
        return page, time.thread_time() - began
