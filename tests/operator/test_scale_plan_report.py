"""Which ScalePlans' statuses an operator writes, and how often."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from tests.pytorchjob.world import merged
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.scale_plan_report import ScalePlanReport
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Object = dict[str, Any]


class Plans:
    """Takes patches, after a first refusal."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []
        self.taken = asyncio.Event()
        self.cluster: Cluster | None = None

    async def patch(
        self, kind: Any, name: str, namespace: str, body: Object, *, subresource: str
    ) -> Object:
        self.written.append((namespace, name))
        if len(self.written) == 1:
            raise ApiError(500, "InternalError", "come again")
        assert self.cluster is not None and subresource == "status"
        old = self.cluster.scale_plans.get(f"{namespace}/{name}")
        assert old is not None
        self.taken.set()
        new = cast(Object, merged(old, {"status": body["status"]}))
        return new | {"metadata": old["metadata"] | {"resourceVersion": "2"}}


def scale_plan(namespace: str) -> Object:
    meta = {"name": "p", "namespace": namespace, "uid": namespace, "resourceVersion": "1"}
    roles = {"Worker": {"replicas": 2}}
    return {"metadata": meta, "spec": {"ownerJob": "a", "replicaResourceSpecs": roles}}


async def test_an_operator_of_one_namespace_writes_no_others_and_a_refusal_is_tried_again() -> None:
    server = Plans()
    cluster = server.cluster = Cluster(cast(Client, server), namespace="team")
    for namespace in ("team", "elsewhere"):
        cluster.scale_plans.note_write(scale_plan(namespace))
    report = ScalePlanReport(cluster, SnapshotBuilder(), lambda: NOW)
    task = asyncio.create_task(report.run())
    try:
        await asyncio.wait_for(server.taken.wait(), 120)
        await asyncio.sleep(1.2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert server.written == [("team", "p")] * 2, "once it is written there is nothing new"
    plan = cluster.scale_plans.get("team/p")
    assert plan is not None and plan["status"]["phase"] == "Pending"
