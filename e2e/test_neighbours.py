"""Others at work on our jobs: training-operator, its CRD, Kueue; never a fight over pods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.stage import running
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, EmbeddedControlPlane
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import CRDS, EVENTS, PODS, PYTORCHJOBS

# Long enough for the operator to do what it must not do.
A_WHILE = 2.0
CRD_FILE = ROOT / "crds" / "kubeflow.org_pytorchjobs.yaml"


def job(name: str, low: int, high: int, replicas: int = 2, **labels: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["python", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}},
            "elasticPolicy": {"minReplicas": low, "maxReplicas": high},
        },
    }


async def pods(client: Client, name: str) -> list[str]:
    selector = f"training.kubeflow.org/job-name={name}"
    found = await client.list(PODS, "default", label_selector=selector)
    return sorted(p["metadata"]["name"] for p in found["items"])


async def status(client: Client, name: str) -> dict[str, Any]:
    return (await client.get(PYTORCHJOBS, name, "default")).get("status") or {}


async def told(client: Client, reason: str) -> list[str]:
    """Messages of the warnings."""
    found = await client.list(EVENTS, "default")
    return [e["message"] for e in found["items"] if (e["reason"], e["type"]) == (reason, "Warning")]


async def test_where_training_operator_writes_too_the_job_is_left_alone(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    if isinstance(plane, EmbeddedControlPlane):
        pytest.skip("the embedded API server does not record who updated what")
    async with (
        running(plane, tmp_path, kubelet="fake") as stage,
        plane.client() as client,
        # Its program is called so, hence its field manager.
        Client.from_kubeconfig(str(plane.kubeconfig), user_agent="manager/v1.9.4") as foreign,
    ):
        await client.create(PYTORCHJOBS, job("a", 2, 2))

        async def whole() -> bool:
            return await pods(client, "a") == ["a-worker-0", "a-worker-1"]

        async def warned() -> bool:
            # As a controller does, again: ours may have written the same field right after it.
            await foreign.patch(
                PYTORCHJOBS, "a", "default", {"status": counts}, subresource="status"
            )
            return bool(await told(client, "ForeignController"))

        await stage.until_asked(whole, "the job has its pods")
        counts = {"replicaStatuses": {"Worker": {"active": 1}}}
        await stage.until_asked(warned, "a Warning says that another operator is there")
        await foreign.delete(PODS, "a-worker-1", "default", grace_period_seconds=0)
        await asyncio.sleep(A_WHILE)
        assert await pods(client, "a") == ["a-worker-0"], "a pod was fought over"
        (message,) = await told(client, "ForeignController")
        assert (await status(client, "a"))["elastic"]["message"] == message
        adopted = {"metadata": {"annotations": {"volcano-elastic.io/adopt": "true"}}}
        await client.patch(PYTORCHJOBS, "a", "default", adopted)
        await stage.until_asked(whole, "the job is ours again")


async def test_with_kubeflows_crd_over_ours_nothing_is_written(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    async with (
        running(plane, tmp_path, kubelet="fake") as stage,
        plane.client() as client,
    ):
        crd = yaml.safe_load(CRD_FILE.read_text())
        name = crd["metadata"]["name"]
        await client.replace(CRDS, _as_kubeflows(await client.get(CRDS, name)))

        async def warned() -> bool:
            return bool(await told(client, "SchemaIncomplete"))

        await stage.until_asked(warned, "a Warning says what is missing")
        await client.create(PYTORCHJOBS, job("a", 1, 1, replicas=1))
        await asyncio.sleep(A_WHILE + 1)
        assert await pods(client, "a") == []
        assert not await status(client, "a")
        present = await client.get(CRDS, name)
        await client.replace(CRDS, present | {"spec": crd["spec"]})

        async def whole() -> bool:
            return await pods(client, "a") == ["a-worker-0"]

        await stage.until_asked(whole, "it goes on once the CRD is repaired")


async def test_a_job_that_kueue_admitted_keeps_its_replicas(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with (
        running(fresh_control_plane, tmp_path, kubelet="fake") as stage,
        fresh_control_plane.client() as client,
    ):
        labels = {"kueue.x-k8s.io/queue-name": "team"}
        await client.create(PYTORCHJOBS, job("a", 1, 4, replicas=3, **labels))

        async def whole() -> bool:
            return len(await pods(client, "a")) == 3

        await stage.until_asked(whole, "it has as many pods as Kueue admitted")
        # One more GPU is idle, and nobody wants it.
        await asyncio.sleep(A_WHILE)
        assert len(await pods(client, "a")) == 3
        assert (await status(client, "a"))["elastic"]["desired"] == 3


def _as_kubeflows(crd: dict[str, Any]) -> dict[str, Any]:
    """Without our fields, nor the rules that speak of them."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"]["elastic"]
    policy = schema["spec"]["properties"]["elasticPolicy"]
    for name in ("min", "max", "nodeUnit", "cooldownSeconds", "scaler", "coordinator"):
        del policy["properties"][name]
    for part in (schema["spec"], policy, crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        part.pop("x-kubernetes-validations", None)
    return crd
