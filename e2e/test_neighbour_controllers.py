"""Beside Kueue's and JobSet's own controllers: jobs grow into what nobody uses, and give it back to
who waits, without one eviction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e import neighbour_controller
from e2e.neighbour_controller import JOBSET, KUEUE
from e2e.stage import Stage, running
from e2e.test_other_jobs import JOBS, pytorchjob, running_pods
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.operator.test_kueue import cluster_queue
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.observer import Observer
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import EVENTS, PYTORCHJOBS, Resource
from volcano_elastic.operator import kueue_quotas
from volcano_elastic.operator.cluster import resource_of

pytestmark = pytest.mark.e2e

Object = dict[str, Any]
JOBSETS = next(resource_of(adapter) for adapter in ADAPTERS if adapter.kind == "JobSet")
FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", False)


@asynccontextmanager
async def beside_kueue(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two nodes of two GPUs, Kueue with a queue of four, and an operator beside it."""
    async with plane.client() as client:
        await neighbour_controller.run(KUEUE, plane, client, tmp_path)
        local = {"metadata": {"name": "local", "namespace": "default"}}
        for kind, obj in (
            (FLAVORS, {"metadata": {"name": "default"}}),
            (kueue_quotas.CLUSTER_QUEUES, cluster_queue(namespaceSelector={})),
            (kueue_quotas.LOCAL_QUEUES, local | {"spec": {"clusterQueue": "q"}}),
        ):
            await client.create(kind, obj | {"apiVersion": kind.api_version, "kind": kind.kind})
    arguments = ["--other-jobs", "Job", "--kueue"]
    async with running(plane, tmp_path, kubelet="fake", operator_arguments=arguments) as stage:
        yield stage


def pod_spec() -> Object:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    container = {"name": "main", "image": "busybox:1", "command": ["sleep", "1000"]}
    return {"containers": [container | {"resources": limits}], "restartPolicy": "Never"}


def job(name: str, size: int, most: int = 0) -> Object:
    """Return a Job of one GPU a pod, elastic up to `most`."""
    meta: Object = {"name": name, "namespace": "default"}
    meta["labels"] = {"kueue.x-k8s.io/queue-name": "local"}
    if most:
        meta["annotations"] = {
            "kueue.x-k8s.io/elastic-job": "true",
            "volcano-elastic.io/max-pods": str(most),
        }
    return {"metadata": meta, "spec": {"parallelism": size, "template": {"spec": pod_spec()}}}


def jobset() -> Object:
    batch = {"parallelism": 1, "completions": 1, "completionMode": "Indexed"}
    template = {"spec": batch | {"template": {"spec": pod_spec()}}}
    return {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "metadata": {
            "name": "wide",
            "namespace": "default",
            "annotations": {"volcano-elastic.io/max-pods": "8"},
        },
        "spec": {"replicatedJobs": [{"name": "workers", "template": template}]},
    }


async def has(stage: Stage, label: str, pods: int) -> None:
    client = stage.recorder.jobs.client

    async def look() -> bool:
        return len(await running_pods(client, label)) == pods

    await stage.until_asked(look, f"{pods} pods of {label} run")


async def listed(client: Client, job: str, queue: str) -> None:
    """Wait until the page lists the job in its queue."""
    pages: asyncio.Queue[Page] = asyncio.Queue()
    observer = Observer(
        client,
        lambda: datetime.now(UTC),
        told=lambda change: None,
        recorded=lambda record: None,
        shown=pages.put_nowait,
        adapters=[adapter for adapter in ADAPTERS if adapter.kind == "Job"],
        kueue=True,
    )
    watching = asyncio.create_task(observer.run())
    try:
        async with asyncio.timeout(60):
            while (job, queue, 4) not in [
                (row.job, row.queue, row.running) for row in (await pages.get()).jobs
            ]:
                pass
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_job_grows_into_kueues_quota_and_gives_it_back_to_who_waits(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    wide, new = (f"batch.kubernetes.io/job-name={name}" for name in ("wide", "new"))
    async with beside_kueue(fresh_control_plane, tmp_path) as stage:
        client = stage.recorder.jobs.client
        await client.create(JOBS, job("wide", 1, 8))
        await has(stage, wide, 4)
        await client.create(JOBS, job("new", 2))
        await has(stage, new, 2)
        await has(stage, wide, 2)
        await client.delete(JOBS, "new", "default", propagation_policy="Background")
        await has(stage, wide, 4)
        await listed(client, "default/job/wide", "kueue/q")
        for reason in ("GrewIntoIdle", "ShrunkForMinimum"):
            await stage.wait_for_events(reason)
        events = (await client.list(EVENTS, "default"))["items"]
        refusals = {"Evicted", "Preempted", "EvictedDueToPreempted", "NotAdmitted"}
        assert not refusals & {event["reason"] for event in events}
        admitted = (await client.list(kueue_quotas.WORKLOADS, "default"))["items"]
        held = [
            w["status"]["admission"] for w in admitted if (w.get("status") or {}).get("admission")
        ]
        assert 4 in [one["podSetAssignments"][0]["count"] for one in held], "by Kueue's own word"
        assert not (await client.get(JOBS, "wide", "default"))["status"].get("failed")


async def test_a_jobset_grows_into_idle_gpus_and_shrinks_for_a_pytorchjob(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane, wide = fresh_control_plane, "jobset.sigs.k8s.io/jobset-name=wide"
    async with plane.client() as client:
        await neighbour_controller.run(JOBSET, plane, client, tmp_path)
    arguments = ["--other-jobs", "JobSet"]
    async with running(plane, tmp_path, kubelet="fake", operator_arguments=arguments) as stage:
        client = stage.recorder.jobs.client
        await client.create(JOBSETS, jobset())
        await has(stage, wide, 4)
        await client.create(PYTORCHJOBS, pytorchjob(2))
        await has(stage, "training.kubeflow.org/job-name=train", 2)
        await has(stage, wide, 2)
        found = await client.get(JOBSETS, "wide", "default")
        assert found["status"].get("restarts", 0) == 0
        for reason in ("GrewIntoIdle", "ShrunkForMinimum"):
            await stage.wait_for_events(reason)
