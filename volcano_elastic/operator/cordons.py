"""Cordons nodes whose hardware failed jobs of queues whose policies say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import aiohttp

from volcano_elastic.api.queue_policy import Cordon
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import NODES, key_of
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob import cordon, exclusion
from volcano_elastic.pytorchjob.exclusion import Exclusion

_log = logging.getLogger(__name__)
LOOK_SECONDS = 10.0


class Cordons:
    """Reads what jobs' statuses say, so that a new operator goes on where the last one was."""

    def __init__(self, cluster: Cluster, builder: SnapshotBuilder) -> None:
        self._cluster, self._builder = cluster, builder
        self._said: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        excluded = list(self._excluded())
        found, beyond = cordon.decide(self._cluster.nodes, excluded) if excluded else ([], [])
        for one in found:
            try:
                await self._cluster.client.patch(NODES, one.node, None, one.patch())
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                _log.warning(
                    "node %s is not cordoned: %s; the operator needs the rights of "
                    "manifests/cordon for it",
                    one.node,
                    error,
                )
                return
            _log.warning("node %s is cordoned: %s", one.node, one.mark)
        if beyond and frozenset(beyond) != self._said:
            _log.warning(
                "not cordoned, as over %.0f %% of all nodes would be: %s",
                100 * cordon.MOST_SHARE,
                ", ".join(beyond),
            )
        self._said = frozenset(beyond)

    def _excluded(self) -> Iterator[tuple[str, Exclusion]]:
        for obj in self._cluster.jobs:
            if not ((obj.get("status") or {}).get("elastic") or {}).get(exclusion.FIELD):
                continue
            job = self._builder.parsed_job(key_of(obj))
            if job is None:
                continue
            policy = self._builder.policy_of(job.queue)
            if policy.nodes.cordon is Cordon.EXCLUDED:
                yield from ((job.key, one) for one in exclusion.read(job))
