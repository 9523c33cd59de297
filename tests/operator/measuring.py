"""A job whose coordinator is asked again and again, and what is written of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from aiohttp import web

from tests.pytorchjob.world import job_object, merged
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.failure_report import Exclusion
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.measurement import (
    Measurement,
)
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.survivors import Survivors

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(*, backend: str = "volcano-elastic", **more: Any) -> Object:
    obj = job_object(elastic={"min": 1, "max": 4, "rdzvBackend": backend} | more)
    obj["kind"] = "PyTorchJob"
    obj["status"] = {"elastic": {"desired": 2, "ready": 2}}
    return obj


def worker_zero(address: str = "10.0.0.1", phase: str = "Running") -> Object:
    owner = {"kind": "PyTorchJob", "name": "a", "uid": "u1", "controller": True}
    meta = {"name": "a-worker-0", "namespace": "team", "uid": "p0", "ownerReferences": [owner]}
    return {"metadata": meta, "status": {"phase": phase, "podIP": address}}


def answer(**more: Any) -> bytes:
    return json.dumps({"job": "team/a"} | more).encode()


class Jobs:
    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self.cluster, self.patches = cluster, list[Object]()
        self.created = list[Object]()

    async def create(self, kind: Any, body: Object) -> Object:
        self.created.append(body)
        return body

    async def patch(
        self, kind: Any, name: str, namespace: str, body: Object, *, subresource: str
    ) -> Object:
        self.patches.append(body)
        old = self.cluster().jobs.get(f"{namespace}/{name}")
        assert old is not None and body["metadata"]["uid"] == old["metadata"]["uid"]
        new = cast(Object, merged(old, {"status": body["status"]}))
        version = str(int(old["metadata"]["resourceVersion"]) + 1)
        return new | {"metadata": old["metadata"] | {"resourceVersion": version}}


@asynccontextmanager
async def coordinator(
    respond: Callable[[web.Request], Any], change: Callable[[web.Request], Any] | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/status", respond)
    if change is not None:
        app.router.add_put("/range", change)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def token_of(uid: str) -> str:
    return f"token of {uid}"


@asynccontextmanager
async def measuring(
    port: int,
    token_of: Callable[[str], Awaitable[str]] = token_of,
    heard: Callable[[Sequence[Exclusion]], None] = lambda _: None,
    policy: Object | None = None,
    reports_heard: Callable[[Report], None] = lambda _: None,
    servers: int = 0,
    clock: Callable[[], datetime] = lambda: NOW,
) -> AsyncIterator[tuple[Cluster, SnapshotBuilder, Jobs]]:
    """One job, whose coordinator is at `port`, is asked again and again.

    Args:
        servers: parameter servers that its spec asks for.
    """
    server = Jobs(lambda: cluster)
    cluster = Cluster(cast(Client, server))
    builder = SnapshotBuilder()

    class HeardPods(LostPods):
        def hear(self, job: PyTorchJob, report: Report) -> None:
            super().hear(job, report)
            reports_heard(report)

    lost_pods = HeardPods(cluster, builder, clock, timedelta(seconds=300))

    class HeardNodes(FailedNodes):
        def hear(self, job: PyTorchJob, told: Sequence[Exclusion]) -> None:
            super().hear(job, told)
            heard(told)

    failed_nodes = HeardNodes(cluster, clock)
    survivors = Survivors(cluster, builder, clock)
    measurement = Measurement(cluster, builder, clock, token_of, lost_pods, failed_nodes, survivors)
    for informer in (cluster.jobs, cluster.pods):
        informer.on_change(lambda old, new: builder.change(old, new) and None)
    if policy is not None:
        builder.change(None, policy)
    asked = job(rdzvPort=port - 1)
    if servers:
        replicas = asked["spec"]["pytorchReplicaSpecs"]
        replicas["PS"] = replicas["Worker"] | {"replicas": servers}
    cluster.jobs.note_write(asked)
    cluster.pods.note_write(worker_zero("127.0.0.1"))
    task = asyncio.create_task(measurement.run())
    try:
        yield cluster, builder, server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measured(
    respond: Callable[[web.Request], Any], *, writes: bool = True
) -> tuple[list[Object], SnapshotBuilder]:
    """Ask one job's coordinator once; return what is written of the job.

    Args:
        writes: False where nothing should be, which is looked at half a second later.
    """
    asked = asyncio.Event()

    async def responding(request: web.Request) -> Any:
        asked.set()
        return await respond(request)

    async with coordinator(responding) as port, measuring(port) as (_, builder, server):
        await asyncio.wait_for(asked.wait(), 120)
        async with asyncio.timeout(120):
            while writes and not server.patches:  # noqa: ASYNC110  # a plain server
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        return server.patches, builder


async def emitted(respond: Callable[[web.Request], Any]) -> Object:
    """The one event that is emitted of a coordinator's answers."""
    async with coordinator(respond) as port, measuring(port) as (_, _, server):
        async with asyncio.timeout(120):
            while not server.created:  # noqa: ASYNC110  # a plain server, told by nobody
                await asyncio.sleep(0.05)
    (event,) = server.created
    return event
