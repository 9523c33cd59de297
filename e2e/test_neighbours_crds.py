"""JobSet's, Kubeflow Trainer's and Kueue's own CRDs (`make neighbours`): what is written of them is
taken or refused as the documents say, and what is read of them is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from tests.adapters.world import JOBSET, TRAINJOB, jobset, pods_of, trainjob
from tests.operator.test_kueue import cluster_queue, local_queue, workload
from volcano_elastic.adapters import kueue, other_job, resize
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import CRDS, NAMESPACES, PODS, Object
from volcano_elastic.operator import kueue_quotas
from volcano_elastic.operator.cluster import resource_of

pytestmark = pytest.mark.e2e

FOLDER = ROOT / "build" / "neighbours"
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def crds() -> list[Object]:
    if not (FOLDER / "ready").exists():
        pytest.skip("no CRDs: make neighbours")
    files = sorted(FOLDER.glob("*.yaml"))
    return [crd for file in files for crd in yaml.safe_load_all(file.read_text()) if crd]


@pytest.fixture
async def client(fresh_control_plane: ControlPlane, crds: list[Object]) -> AsyncIterator[Client]:
    async with fresh_control_plane.client() as found:
        await install(found, crds)
        yield found


async def install(client: Client, crds: list[Object]) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    for crd in crds:
        await client.create(CRDS, crd)
    kinds = [resource_of(adapter) for adapter in (JOBSET, TRAINJOB)]
    async with asyncio.timeout(60):
        for kind in (*kinds, *kueue_quotas.KINDS):
            while True:
                try:
                    await client.list(kind)
                    break
                except ApiError:
                    await asyncio.sleep(0.1)


def as_users_write(obj: Object) -> Object:
    found = deepcopy(obj)
    for field in ("uid", "resourceVersion", "generation", "creationTimestamp"):
        found["metadata"].pop(field, None)
    for part in found["spec"].get("replicatedJobs") or ():
        del part["futureField"]
        pods: dict[str, Any] = part["template"]["spec"]["template"]["spec"]
        pods["restartPolicy"] = "Never"
        pods["containers"][0]["image"] = "registry.example.com/train:1"
    return found


async def resized(client: Client, obj: Object) -> Object:
    adapter = JOBSET if obj["kind"] == "JobSet" else TRAINJOB
    made = await client.create(resource_of(adapter), as_users_write(obj))
    job = other_job.read(adapter, made)
    assert job is not None and (job.size, job.min, job.max) == (2, 1, 8)
    body = resize.patch(job, 4, reason="GrewIntoIdle", message="2 GPUs are idle", now=NOW)
    answer: Object = await client.patch(resource_of(adapter), "a", "team", body)
    after = other_job.read(adapter, answer)
    assert after is not None and after.last_reason == "GrewIntoIdle" and after.size == 4
    return answer


async def test_a_jobset_takes_its_size_and_its_other_parts_stay(client: Client) -> None:
    after = await resized(client, jobset())
    sizes = {p["name"]: p["template"]["spec"] for p in after["spec"]["replicatedJobs"]}
    assert (sizes["workers"]["parallelism"], sizes["workers"]["completions"]) == (4, 4)
    assert sizes["driver"]["parallelism"] == 1


async def test_a_train_job_of_trainer_2_2_refuses_another_size(client: Client) -> None:
    with pytest.raises(ApiError, match="field is immutable") as error:
        await resized(client, trainjob())
    assert error.value.code == 422


async def test_kueues_objects_are_read_with_the_defaults_of_its_crds(client: Client) -> None:
    wait = workload("w", 2)
    wait["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["image"] = "t:1"
    cohort = {"kind": "Cohort", "metadata": {"name": "c"}, "spec": {"parentName": "top"}}
    objects = [cluster_queue(cohort="c"), cohort, local_queue(), wait]
    quotas = kueue_quotas.KueueQuotas()
    for obj, kind in zip(objects, kueue_quotas.KINDS, strict=True):
        found = await client.create(kind, {"apiVersion": kind.api_version, **as_users_write(obj)})
        name = found["metadata"]["name"]
        quotas.change(kind.kind, f"team/{name}" if kind.namespaced else name, found)
    view = quotas.view()
    queue = view.cluster_queues["q"]
    assert (queue.open, queue.cohort, view.cohorts["c"].parent) == (True, "c", "top")
    assert queue.flavors["default"].nominal == {"nvidia.com/gpu": 4000}
    assert view.local_queues["team/local"] == kueue.LocalQueue("team/local", "q", True)
    ((one,),) = view.workloads.values()
    assert (one.pods, one.requests, one.cluster_queue) == (2, {"nvidia.com/gpu": 2000}, "")


async def test_the_operator_sizes_a_jobset_as_it_is_served(
    fresh_control_plane: ControlPlane, crds: list[Object], tmp_path: Any
) -> None:
    """Its controller is not there: the test makes the pods, and sees the size change."""
    async with fresh_control_plane.client() as client:
        await install(client, crds)
    arguments = ["--other-jobs", "JobSet", "--kueue"]
    async with running(
        fresh_control_plane, tmp_path, kubelet="fake", operator_arguments=arguments
    ) as stage:
        await grows(stage)


async def grows(stage: Stage) -> None:
    client = stage.recorder.jobs.client
    made = await client.create(resource_of(JOBSET), as_users_write(jobset()))
    assert made["spec"]["replicatedJobs"][1]["template"]["spec"]["parallelism"] == 2
    for pod in pods_of(JOBSET, count=2):
        pod["spec"]["containers"][0]["image"] = "train:1"
        await client.create(PODS, as_users_write(pod))

    async def sized() -> bool:
        found = await client.get(resource_of(JOBSET), "a", "team")
        spec = found["spec"]["replicatedJobs"][1]["template"]["spec"]
        return bool(spec["parallelism"] == 4 == spec["completions"])

    await stage.until_asked(sized, "the JobSet grows to all four GPUs")
