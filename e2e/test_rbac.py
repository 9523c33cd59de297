"""The operator does all its work with the rights that manifests/ gives it, and uses every one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.stage import PATIENCE
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from embedded_cluster.readiness import HOST, free_port, is_ready
from tests.patience import eventually
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.resource import (
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    QUEUES,
    SCALEPLANS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)

SYSTEM = "volcano-elastic-system"
USER = f"system:serviceaccount:{SYSTEM}:volcano-elastic"
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
# Asked for by an admission plugin on the operator's behalf (see rbac.yaml), never by itself.
NOT_CALLED = {("update", "kubeflow.org", "pytorchjobs/finalizers")}
Right = tuple[str, str, str]
"""verb, group, resource or resource/subresource"""


def manifests() -> list[Object]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "manifests" / "default")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return list(yaml.safe_load_all(done.stdout))


def granted(objects: Iterable[Object]) -> set[Right]:
    return {
        (verb, group, resource)
        for obj in objects
        if obj["kind"] in ("ClusterRole", "Role")
        for rule in obj["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


async def used(address: str) -> tuple[set[Right], set[str]]:
    """Return what the operator asked for so far, and of it what it was forbidden."""
    async with aiohttp.ClientSession() as session, session.get(f"{address}/metrics") as answer:
        text = await answer.text()
    rights: set[Right] = set()
    forbidden = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "volcano_elastic_api_requests_total":
                one = sample.labels
                resource = "/".join(filter(None, (one["resource"], one["subresource"])))
                rights.add((one["verb"], one["group"], resource))
                if one["code"] in ("401", "403"):
                    forbidden.add(f"{one['verb']} {resource}.{one['group']}")
    return rights, forbidden


@asynccontextmanager
async def operator(kubeconfig: Path, log: Path) -> AsyncIterator[str]:
    """Yields where its metrics are."""
    port = free_port()
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "volcano_elastic.operator"),
            *("--kubeconfig", str(kubeconfig), "--leader-elect"),
            *("--webhook-address", "127.0.0.1:0"),
            *("--metrics-address", f"{HOST}:{port}"),
            stderr=output,
        )
    try:
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(is_ready, port):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield f"http://{HOST}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 120)


def job(name: str, replicas: int = 1, elastic: Object | None = None, **policy: Any) -> Object:
    container = {
        "name": "pytorch",
        "image": "none",
        "resources": {"requests": {"cpu": "1m"}},
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    spec: Object = {
        "pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}},
        "runPolicy": policy,
    }
    if elastic is not None:
        spec["elasticPolicy"] = elastic
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


class World:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def play(self) -> None:
        """Binds and runs every pod that waits; `done`'s end at once. Until cancelled."""
        while True:
            with contextlib.suppress(ApiError):
                for pod in (await self.client.list(PODS, "default"))["items"]:
                    await self._advance(pod)
            await asyncio.sleep(0.1)

    async def _advance(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "room"}
            binding = {"metadata": {"name": name, "namespace": "default"}, "target": target}
            await self.client.create(
                PODS, {"apiVersion": "v1", "kind": "Binding"} | binding, subresource="binding"
            )
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            phase = "Succeeded" if name.startswith("done") else "Running"
            body = {"status": {"phase": phase}}
            await self.client.patch(PODS, name, "default", body, subresource="status")

    async def pods(self, name: str) -> int:
        found = (await self.client.list(PODS, "default"))["items"]
        return sum(
            p["metadata"]["name"].startswith(f"{name}-worker-")
            and bool(p["metadata"].get("ownerReferences"))
            for p in found
        )

    async def has(self, name: str, count: int) -> None:
        async def holds() -> bool:
            return await self.pods(name) == count

        await eventually(holds, f"{name} has {count} pods")

    async def gone(self, kind: Resource, name: str) -> None:
        async def holds() -> bool:
            try:
                await self.client.get(kind, name, "default")
            except NotFound:
                return True
            return False

        await eventually(holds, f"{kind.kind} {name} goes")


async def live(world: World) -> None:
    """Whatever happens in the lives of jobs that needs a right of its own."""
    client = world.client
    # Names that are taken by strangers, until they aren't.
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    strangers: list[tuple[Resource, Object]] = []
    body = job("x")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    for kind, name, spec in (
        (PODS, "held-worker-0", body),
        (SERVICES, "held-worker-0", {"clusterIP": "None", "ports": [{"port": 1}]}),
        (PODGROUPS, "grouped", {"minMember": 1}),
        (
            AUTOSCALERS,
            "taken",
            {
                "minReplicas": 1,
                "maxReplicas": 2,
                "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"},
            },
        ),
    ):
        meta = {"name": name, "namespace": "default"}
        one = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
        strangers.append((kind, await client.create(kind, one)))
    scaled = {"minReplicas": 1, "maxReplicas": 2, "metrics": [metric]}
    await client.create(PYTORCHJOBS, job("taken", elastic=scaled))
    for name in ("held", "grouped"):
        await client.create(PYTORCHJOBS, job(name))
    await asyncio.sleep(3)
    for kind, one in strangers:
        await client.delete(kind, one["metadata"]["name"], "default", grace_period_seconds=0)
    for name in ("taken", "held", "grouped"):
        await world.has(name, 1)
    # An autoscaler changes, and goes with the job's rest.
    await client.patch(
        PYTORCHJOBS, "taken", "default", {"spec": {"elasticPolicy": {"maxReplicas": 3}}}
    )

    async def raised() -> bool:
        found = await client.get(AUTOSCALERS, "taken", "default")
        return bool(found["spec"]["maxReplicas"] == 3)

    await eventually(raised, "the autoscaler follows")
    suspend = {"spec": {"runPolicy": {"suspend": True}}}
    await client.patch(PYTORCHJOBS, "taken", "default", suspend)
    await world.gone(AUTOSCALERS, "taken")
    # The minimum rises: the PodGroup and the pods' protection with it.
    await client.create(
        PYTORCHJOBS,
        job(
            "grows",
            # Its pods get a token.
            elastic={"min": 1, "max": 3, "scaler": "none", "rdzvBackend": "volcano-elastic"},
        ),
    )
    await world.has("grows", 3)
    await client.patch(PYTORCHJOBS, "grows", "default", {"spec": {"elasticPolicy": {"min": 2}}})

    async def guaranteed() -> bool:
        found = await client.get(PODGROUPS, "grows", "default")
        return bool(found["spec"]["minMember"] == 2)

    await eventually(guaranteed, "the PodGroup follows")
    # Pods that run are resized.
    own = job("resized")
    own["metadata"]["annotations"] = {"volcano-elastic.io/brain": "Live"}
    await client.create(PYTORCHJOBS, own)
    await world.has("resized", 1)
    amounts = {"cpu": "2m", "memory": "300Mi"}
    told = {"elastic": {"recommendation": {"roles": {"Worker": amounts}}}}
    await client.patch(PYTORCHJOBS, "resized", "default", {"status": told}, subresource="status")

    async def resized() -> bool:
        found = await client.get(PODS, "resized-worker-0", "default")
        return bool(found["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2m")

    await eventually(resized, "its pod is resized")
    # One that ends, and goes.
    await client.create(PYTORCHJOBS, job("done", ttlSecondsAfterFinished=1, cleanPodPolicy="All"))
    await world.gone(PYTORCHJOBS, "done")

    # A certificate that is of no use.
    async def kept() -> bool:
        return bool((await client.get(SECRETS, "volcano-elastic-webhook", SYSTEM))["data"])

    await eventually(kept, "the webhooks' certificates are kept")
    await client.patch(
        SECRETS, "volcano-elastic-webhook", SYSTEM, {"data": {"tls.crt": "bm9uZQ=="}}
    )


async def prepare(client: Client, plane: ControlPlane, objects: list[Object]) -> Path:
    """The operator's kubeconfig; everything of manifests/ is there that it needs to run."""
    for name in (SYSTEM, "volcano-system"):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    for obj in objects:
        group, _, version = obj["apiVersion"].rpartition("/")
        if group == "admissionregistration.k8s.io" or (
            plane.rbac and group == "rbac.authorization.k8s.io"
        ):
            plural = obj["kind"].lower() + "s"
            kind = Resource(group, version, plural, obj["kind"], "namespace" in obj["metadata"])
            await client.create(kind, obj)
    with contextlib.suppress(AlreadyExists):
        queue = {"metadata": {"name": "default"}, "spec": {"weight": 1}}
        await client.create(QUEUES, {"apiVersion": QUEUES.api_version, "kind": "Queue"} | queue)
    policy = {"apiVersion": QUEUEPOLICIES.api_version, "kind": "QueuePolicy"}
    meta = {"metadata": {"name": "default"}, "spec": {"queue": "default", "resource": "cpu"}}
    await client.create(QUEUEPOLICIES, policy | meta)
    early = {"ownerJob": "not-there-yet", "replicaResourceSpecs": {"Worker": {"replicas": 2}}}
    plan = {"apiVersion": SCALEPLANS.api_version, "kind": "ScalePlan"}
    meta = {"metadata": {"name": "early", "namespace": "default"}, "spec": early}
    await client.create(SCALEPLANS, plan | meta)
    config = yaml.safe_load(
        (plane.kubeconfig_of(USER) if plane.rbac else plane.kubeconfig).read_text()
    )
    config["contexts"][0]["context"]["namespace"] = SYSTEM
    kubeconfig = plane.folder / "operator.kubeconfig"
    kubeconfig.touch(0o600)
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


async def node(client: Client) -> None:
    """Room to grow into."""
    await client.create(NODES, {"metadata": {"name": "room"}, "spec": {}})
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    await client.patch(NODES, "room", None, {"status": status}, subresource="status")


@pytest.mark.e2e
async def test_the_rules_are_what_the_operator_asks_for_no_less_and_no_more(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane, objects = fresh_control_plane, manifests()
    async with plane.client() as client:
        kubeconfig = await prepare(client, plane, objects)
        await node(client)
        world = World(client)
        playing = asyncio.create_task(world.play())
        try:
            async with operator(kubeconfig, tmp_path / "operator.log") as address:
                await live(world)
                expected = granted(objects) - NOT_CALLED

                async def complete() -> bool:
                    return (await used(address))[0] >= expected

                with contextlib.suppress(AssertionError):
                    await eventually(complete, "every right is used")
                rights, forbidden = await used(address)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
    assert sorted(rights - expected) == [], "asked for, and not granted"
    assert sorted(expected - rights) == [], "granted, and never asked for"
    assert forbidden == set()
