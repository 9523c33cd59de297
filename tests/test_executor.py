"""How a reconcile's actions are performed, against an API server that counts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from job_world import job_object

from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import Resource
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.executor import AT_ONCE, Executor
from volcano_elastic.pytorchjob.action import CreateService

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Counting:
    """Answers each request when all that are ready to be sent have been."""

    def __init__(self) -> None:
        self.open = self.most = self.answered = 0

    async def create(self, kind: Resource, obj: Object) -> Object:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        self.answered += 1
        version = str(self.answered)
        return obj | {"metadata": obj["metadata"] | {"uid": version, "resourceVersion": version}}


async def test_a_job_of_thousands_leaves_room_for_the_requests_of_others() -> None:
    server = Counting()
    executor = Executor(Cluster(cast(Client, server)))
    services = [
        CreateService({"metadata": {"name": f"a-worker-{i}", "namespace": "team"}})
        for i in range(1000)
    ]
    await executor.perform(job_object(), services, NOW)
    assert (server.most, server.answered) == (AT_ONCE, 1000)
