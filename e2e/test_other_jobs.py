"""A Job of Kubernetes' own beside PyTorchJobs: it grows into idle GPUs and makes room for whoever
waits, and only its parallelism is written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.stage import Stage, running
from e2e.test_rbac import granted, used
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import PODS, PRIORITYCLASSES, PYTORCHJOBS
from volcano_elastic.operator.cluster import resource_of

pytestmark = pytest.mark.e2e

JOBS = next(resource_of(adapter) for adapter in ADAPTERS if adapter.kind == "Job")
GPUS = 4
NAME = "render"
Object = dict[str, Any]


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two nodes of two GPUs, and an operator that sizes Jobs too."""
    if fresh_control_plane.name == "embedded":
        pytest.skip("nobody carries Jobs out here")
    async with running(
        fresh_control_plane, tmp_path, kubelet="fake", operator_arguments=["--other-jobs", "Job"]
    ) as found:
        yield found


def pod_spec(container: str, **more: Any) -> Object:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    image = {"name": container, "image": "busybox:1", "command": ["sleep", "1000"]}
    return {"containers": [image | {"resources": limits}]} | more


def job(mode: str) -> Object:
    """Return a job of one pod now, and from one to all GPUs; its pods evict nobody."""
    notes = {"volcano-elastic.io/min-pods": "1", "volcano-elastic.io/max-pods": str(GPUS)}
    template = pod_spec("main", priorityClassName="batch", restartPolicy="Never")
    spec: Object = {"parallelism": 1, "template": {"spec": template}}
    if mode == "Indexed":
        spec |= {"completionMode": mode, "completions": 1}
    return {"metadata": {"name": NAME, "namespace": "default", "annotations": notes}, "spec": spec}


def pytorchjob(workers: int) -> Object:
    replica = {"replicas": workers, "template": {"spec": pod_spec("pytorch")}}
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": PYTORCHJOBS.kind,
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": {"Worker": replica}},
    }


async def running_pods(client: Client, label: str) -> list[str]:
    pods = (await client.list(PODS, "default", label_selector=label))["items"]
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    )


def verbs_granted() -> set[str]:
    text = (ROOT / "manifests" / "other-jobs" / "rbac.yaml").read_text()
    return {verb for verb, group, _ in granted(yaml.safe_load_all(text)) if group == JOBS.group}


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_a_job_grows_into_idle_gpus_and_shrinks_for_a_pytorchjob(
    stage: Stage, mode: str
) -> None:
    client = stage.recorder.jobs.client
    priority = {"metadata": {"name": "batch"}, "value": 0, "preemptionPolicy": "Never"}
    await client.create(PRIORITYCLASSES, priority)
    await client.create(JOBS, job(mode))

    async def has(pods: int) -> Object:
        seen: list[str] = []

        async def look() -> bool:
            seen[:] = await running_pods(client, f"batch.kubernetes.io/job-name={NAME}")
            return len(seen) == pods

        await stage.until_asked(look, f"{pods} pods of the Job run")
        found: Object = await client.get(JOBS, NAME, "default")
        assert found["spec"]["parallelism"] == pods
        if mode == "Indexed":
            assert found["spec"]["completions"] == pods, "an elastic indexed job"
            # The highest indexes leave, and come again.
            assert [name.split("-")[1] for name in seen] == [str(i) for i in range(pods)]
        return found

    grown = await has(GPUS)
    notes = grown["metadata"]["annotations"]
    assert notes["volcano-elastic.io/last-scale-reason"] == "GrewIntoIdle"
    # Growth has a cooldown; who waits for a minimum needs none.
    await client.create(PYTORCHJOBS, pytorchjob(2))
    shrunk = await has(GPUS - 2)
    notes = shrunk["metadata"]["annotations"]
    assert notes["volcano-elastic.io/last-scale-reason"] == "ShrunkForMinimum"
    label = "training.kubeflow.org/job-name=train"

    async def trains() -> bool:
        return len(await running_pods(client, label)) == 2

    await stage.until_asked(trains, "the PyTorchJob runs")
    (why, *_) = await stage.wait_for_events("ShrunkForMinimum", name=NAME)
    assert why.startswith("train needs 2 GPUs to start; render gives back 2 of its 3")
    status = (await client.get(JOBS, NAME, "default"))["status"]
    assert not status.get("failed"), "no pod that left counts as a failure"
    log = (stage.cluster.logs / "operator.log").read_text()
    address = re.search(r"metrics on (http://\S+)", log)
    assert address is not None
    rights, _ = await used(address[1])
    of_jobs = {verb for verb, group, _ in rights if group == JOBS.group}
    assert of_jobs == verbs_granted(), "manifests/other-jobs gives what is used, and no more"
