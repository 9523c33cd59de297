"""Writes what became of ScalePlans into their status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

import aiohttp

from volcano_elastic.api import merge_patch
from volcano_elastic.api.role import elastic
from volcano_elastic.api.scale_plan import InvalidPlan, ScalePlan, parse
from volcano_elastic.cluster_state.reason import NoChange
from volcano_elastic.kube.client import ApiError, NotFound
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.scale_plan_status import Seen, status
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob.label import REPLICA_TYPE

_log = logging.getLogger(__name__)
_EVERY_SECONDS = 1.0
_AT_ONCE = 8


class ScalePlanReport:
    """Looks each second: plans expire, and pods become ready, without any word from the planner."""

    def __init__(
        self, cluster: Cluster, builder: SnapshotBuilder, clock: Callable[[], datetime]
    ) -> None:
        self._cluster, self._builder, self._clock = cluster, builder, clock
        self._stays: Mapping[str, NoChange] = {}

    def planned(self, stays: Mapping[str, NoChange]) -> None:
        """Takes why jobs keep their sizes, by key, from the newest plan."""
        self._stays = stays

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def write(obj: Object) -> None:
            async with free:
                await self._write(obj)

        while True:
            # Another namespace's are another operator's.
            mine = filter(self._cluster.serves, self._cluster.scale_plans)
            await asyncio.gather(*(write(obj) for obj in mine))
            await asyncio.sleep(_EVERY_SECONDS)

    async def _write(self, obj: Object) -> None:
        meta = obj["metadata"]
        old = obj.get("status") or {}
        patch = merge_patch.difference(old, self._wanted(obj))
        if not patch:
            return
        plans = self._cluster.scale_plans
        # The uid makes it a Conflict if another plan bears the name by now.
        body = {"metadata": {"uid": meta["uid"]}, "status": patch}
        try:
            answer = await plans.client.patch(
                plans.resource, meta["name"], meta["namespace"], body, subresource="status"
            )
        except NotFound:
            return
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            why = error or "no answer in time"
            _log.warning("status of ScalePlan %s: %s", key_of(obj), why)
            return
        plans.note_write(answer)

    def _wanted(self, obj: Object) -> Object:
        plan: ScalePlan | InvalidPlan
        try:
            plan = parse(obj)
        except InvalidPlan as error:
            return status(obj, error, Seen(None), self._clock())
        if plan.over:
            return dict(obj["status"])
        key = plan.job_key
        job = self._cluster.jobs.get(key)
        seen = Seen(
            job,
            self._builder.parsed_job(key),
            self._builder.scale_plan(key),
            self._stays.get(key),
            {
                pod["metadata"]["name"]: pod["metadata"]["uid"]
                for pod in (() if job is None else self._cluster.pods_of(job))
                if not pod["metadata"].get("deletionTimestamp")
                and (pod["metadata"].get("labels") or {}).get(REPLICA_TYPE) == elastic().label
            },
        )
        return status(obj, plan, seen, self._clock())
