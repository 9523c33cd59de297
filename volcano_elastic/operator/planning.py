"""The planner's loop: a picture of the cluster, a plan, the plan carried out, newcomers admitted.

A new picture is taken only when the last plan is carried out, and the answers of its writes are
in the informers by then: no plan is made from a state that the previous one is still changing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from volcano_elastic.kube.resource import Object
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.controller import Controller
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.snapshot import Adapter
from volcano_elastic.pytorchjob.observed import Resize
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.queue_policy.snapshot import Snapshot

_log = logging.getLogger(__name__)
# Changes come in bursts; a plan of half a burst would be taken back by the next.
_DEBOUNCE_SECONDS = 0.05
# Cooldowns and grace periods end without any change to be seen.
_AT_LEAST_EVERY_SECONDS = 1.0
_CARRY_OUT_SECONDS = 2.0

Planner = Callable[[Snapshot, datetime], Plan]


class Planning:
    def __init__(
        self,
        cluster: Cluster,
        controller: Controller,
        metrics: Metrics,
        *,
        planner: Planner = plan,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster, self._controller, self._metrics = cluster, controller, metrics
        self._planner, self._clock = planner, clock
        self._adapter = Adapter()
        self._changed = asyncio.Event()
        for informer in (cluster.jobs, cluster.pods, cluster.nodes, cluster.queues):
            informer.on_change(self._note)
        cluster.podgroups.on_change(self._note)

    async def run(self) -> None:
        """Until cancelled. Call it when the cluster is synced."""
        while True:
            self._changed.clear()
            try:
                await self._once()
            except Exception:
                # The jobs go on at their sizes; the next picture may be one that can be planned.
                _log.exception("no plan could be made")
                await asyncio.sleep(_AT_LEAST_EVERY_SECONDS)
            try:
                async with asyncio.timeout(_AT_LEAST_EVERY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(_DEBOUNCE_SECONDS)

    async def _once(self) -> None:
        cluster = self._cluster
        with self._metrics.planning():
            snapshot = self._adapter.snapshot(
                jobs=(job for job in cluster.jobs if self._controller.serves(job)),
                pods=cluster.pods,
                podgroups=cluster.podgroups,
                nodes=cluster.nodes,
                queues=cluster.queues,
            )
            result = self._planner(snapshot, self._clock())
        resizes = {decision.job: _resize(decision) for decision in result.decisions}
        for decision in result.decisions:
            self._metrics.decided(decision)
            _log.info(
                "%s: %d -> %d, %s: %s",
                decision.job,
                decision.old,
                decision.new,
                decision.reason,
                decision.message,
            )
        if not await self._controller.carry_out(resizes, _CARRY_OUT_SECONDS):
            _log.warning("a plan was not carried out in %.0f s; planning anew", _CARRY_OUT_SECONDS)
            return
        self._controller.admit(result.admitted)

    def _note(self, old: Object | None, new: Object | None) -> None:
        self._changed.set()


def _resize(decision: Decision) -> Resize:
    return Resize(
        old=decision.old,
        new=decision.new,
        reason=str(decision.reason),
        message=decision.message,
        remove=frozenset(key.rpartition("/")[2] for key in decision.remove),
    )
