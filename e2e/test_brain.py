"""Brain beside a whole cluster: jobs are made with what jobs like them used, and nobody waits for a
Brain that isn't there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.stage import PATIENCE, Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain.test_program import brain, plans, served
from tests.brain.world import amounts, load, run
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, USER_ANNOTATION
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.program import POD_METRICS
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import (
    CRDS,
    NAMESPACES,
    NODES,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    Resource,
)
from volcano_elastic.pytorchjob.label import JOB_NAME

pytestmark = pytest.mark.e2e
PROGRAM = """\
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
ROOT = Path(__file__).parents[1]
# A certificate's common name, by which a user is known here, has 64 characters at most.
SYSTEM = "brain-system"
ASKED = {"cpu": "1500m", "memory": "1Gi"}
# p95 of 4 runs with 0.5 CPU and 256 MiB, in the history's buckets, and 15 %; of memory 40 %.
FEWEST, MOST = 500, 700
NEEDED_MEMORY = "359Mi"


def _job(name: str, go: Path, **annotations: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["python", "-c", PROGRAM, str(go)],
        "resources": {"requests": ASKED, "limits": {"memory": "1Gi"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {USER_ANNOTATION: "ann", **annotations},
        },
        "spec": {
            "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}},
            "runPolicy": {"cleanPodPolicy": "None"},
        },
    }


async def _until_it_advises(stage: Stage, go: Path) -> None:
    """Brain takes seconds to start, which no job waits for."""
    client = stage.recorder.jobs.client
    job = _job("first", go, **{BRAIN_ANNOTATION: "Recommend"})
    job["spec"]["runPolicy"]["suspend"] = True
    await client.create(PYTORCHJOBS, job)
    await stage.wait_for_events("ResourcesRecommended")
    found = await client.get(PYTORCHJOBS, "first", "default")
    assert "recommendation" not in (found["status"].get("elastic") or {}), "it is told, no more"


async def _pods(stage: Stage, name: str) -> list[dict[str, Any]]:
    """Return what its two pods ask for, once both run."""
    client, found = stage.recorder.jobs.client, list[dict[str, Any]]()

    async def both() -> bool:
        pods = (await client.list(PODS, "default"))["items"]
        mine = [p for p in pods if p["metadata"]["name"].startswith(f"{name}-worker-")]
        found[:] = [p["spec"]["containers"][0]["resources"] for p in mine]
        return len(mine) == 2 and all(p["status"].get("phase") == "Running" for p in mine)

    deadline = stage.recorder.now() + PATIENCE
    while not await both():
        if stage.recorder.now() > deadline:
            pytest.fail(f"{name}'s pods do not run\n{stage.story()}")
        await asyncio.sleep(0.05)
    return found


METRICS = {
    "apiVersion": CRDS.api_version,
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": POD_METRICS.group,
        "scope": "Namespaced",
        "names": {"plural": "pods", "kind": POD_METRICS.kind},
        "versions": [
            {
                "name": POD_METRICS.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


async def test_jobs_are_made_with_what_jobs_like_them_used(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    url, go = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "go"
    history = History(url)
    history.migrate()
    for i in range(4):
        used = load(0, amounts(0.5, 0.25))
        history.write(run(f"u{i}", image="train:1", queue="default", loads=(used,)))
    history.close()
    async with running(fresh_control_plane, tmp_path) as stage:
        client = stage.recorder.jobs.client
        kubeconfig = fresh_control_plane.kubeconfig
        async with brain(kubeconfig, url, tmp_path / "brain.log"):
            await _until_it_advises(stage, go)
            await client.create(PYTORCHJOBS, _job("own", go, **{BRAIN_ANNOTATION: "AtStart"}))
            first, second = await _pods(stage, "own")
            assert first == second
            requests = first["requests"]
            assert requests["memory"] == first["limits"]["memory"] == NEEDED_MEMORY
            assert FEWEST <= int(requests["cpu"].removesuffix("m")) <= MOST
            job = await client.get(PYTORCHJOBS, "own", "default")
            told = job["status"]["elastic"]["resources"]["Worker"]
            assert told | {"message": ""} == {**requests, "message": ""}
            why = "p95 of 4 runs by this user with this image, and 15 %; of memory p99 and 40 %"
            assert told["message"] == why
            (said,) = await stage.wait_for_events("ResourcesApplied")
            assert said.endswith(f"instead of 1500m CPU, 1Gi: {why}")

            policy = {
                "apiVersion": QUEUEPOLICIES.api_version,
                "kind": "QueuePolicy",
                "metadata": {"name": "default"},
                "spec": {"queue": "default", "brain": {"mode": "AtStart"}},
            }
            await client.create(QUEUEPOLICIES, policy)
            await client.create(PYTORCHJOBS, _job("queues", go))
            assert await _pods(stage, "queues") == [first, first]
            await client.create(PYTORCHJOBS, _job("not", go, **{BRAIN_ANNOTATION: "Off"}))
            (pod, _) = await _pods(stage, "not")
            assert pod["requests"] == ASKED
        await client.create(PYTORCHJOBS, _job("alone", go))
        (pod, _) = await _pods(stage, "alone")
        assert pod["requests"] == ASKED, "without Brain it begins as it asks"
        go.touch()
        finished = stage.recorder.timeline.finished
        await stage.until(lambda: len(finished) == 4, "all jobs end")
        assert {end[1] for end in finished.values()} == {"Succeeded"}, stage.story()


async def test_a_running_job_is_resized_to_what_it_turns_out_to_use(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The metrics API is played by a custom resource."""
    url, go = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "go"
    async with running(fresh_control_plane, tmp_path) as stage:
        client, kubeconfig = stage.recorder.jobs.client, fresh_control_plane.kubeconfig
        await client.create(CRDS, METRICS)
        job = _job("live", go, **{BRAIN_ANNOTATION: "Live"})
        template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        # The kubelet of this cluster adds nothing to what a pod asks for.
        template["spec"]["containers"][0]["resources"] = {"requests": ASKED}
        await client.create(PYTORCHJOBS, job)
        assert await _pods(stage, "live") == [{"requests": ASKED}] * 2
        before = {p["metadata"]["uid"] for p in (await client.list(PODS, "default"))["items"]}
        for index, (cpu, memory) in enumerate((("250m", "2Gi"), ("500m", "1Gi"))):
            used = {"name": "pytorch", "usage": {"cpu": cpu, "memory": memory}}
            metrics = {
                "apiVersion": POD_METRICS.api_version,
                "kind": POD_METRICS.kind,
                "metadata": {
                    "name": f"live-worker-{index}",
                    "namespace": "default",
                    "labels": {JOB_NAME: "live"},
                },
                "containers": [used],
            }
            await _once_served(stage, metrics)
        arguments = ("--live-after-seconds", "2")
        async with brain(kubeconfig, url, tmp_path / "brain.log", *arguments):
            deadline = stage.recorder.now() + PATIENCE
            found = await _pods(stage, "live")
            while found[0] != found[1] or found[0]["requests"] == ASKED:
                if stage.recorder.now() > deadline:
                    pytest.fail(f"not resized\n{(tmp_path / 'brain.log').read_text()}")
                await asyncio.sleep(0.1)
                found = await _pods(stage, "live")
        first, _ = found  # both by the busiest of them
        # 2 GiB and 15 %; 0.5 CPU in the histogram's bucket, and 15 %.
        assert first["requests"]["memory"] == "2356Mi"
        assert FEWEST <= int(first["requests"]["cpu"].removesuffix("m")) <= MOST
        after = {p["metadata"]["uid"] for p in (await client.list(PODS, "default"))["items"]}
        assert after == before, "no pod was made anew"
        found = await client.get(PYTORCHJOBS, "live", "default")
        told = found["status"]["elastic"]["resources"]["Worker"]["message"]
        assert told.startswith("p95 of CPU and peak of memory of its busiest pod in ")
        go.touch()
        await stage.until(lambda: stage.recorder.timeline.finished, "the job ends")
        assert stage.recorder.timeline.finished["live"][1] == "Succeeded", stage.story()


async def _once_served(stage: Stage, metrics: dict[str, Any]) -> None:
    deadline = stage.recorder.now() + PATIENCE
    while True:
        try:
            await stage.recorder.jobs.client.create(POD_METRICS, metrics)
        except ApiError:
            if stage.recorder.now() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def _recommend(stage: Stage, job: str, cpu: str, memory: str) -> None:
    """Recommend, as Brain does."""
    roles = {"Worker": {"cpu": cpu, "memory": memory, "message": "for a test"}}
    said = {"time": "2026-01-01T12:00:00Z", "roles": roles}
    body = {"status": {"elastic": {"recommendation": said}}}
    client = stage.recorder.jobs.client
    await client.patch(PYTORCHJOBS, job, "default", body, subresource="status")


async def test_a_kubelet_may_resize_a_pod_or_put_it_off_or_refuse(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with running(fresh_control_plane, tmp_path, kubelet="fake") as stage:
        client = stage.recorder.jobs.client
        job = _job("live", tmp_path / "go", **{BRAIN_ANNOTATION: "Live"})
        await client.create(PYTORCHJOBS, job)
        await _recommend(stage, "live", "1", "768Mi")
        made = {"requests": {"cpu": "1", "memory": "768Mi"}, "limits": {"memory": "768Mi"}}
        assert await _pods(stage, "live") == [made, made]
        await _recommend(stage, "live", "500m", "1536Mi")
        wanted = {"requests": {"cpu": "500m", "memory": "1536Mi"}, "limits": {"memory": "1536Mi"}}
        deadline = stage.recorder.now() + PATIENCE
        while await _pods(stage, "live") != [wanted, wanted]:
            assert stage.recorder.now() < deadline, stage.story()
            await asyncio.sleep(0.05)
        before = {p["metadata"]["uid"] for p in (await client.list(PODS, "default"))["items"]}
        await _recommend(stage, "live", "500m", "512Mi")
        lower = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
        while await _pods(stage, "live") != [lower, lower]:
            assert stage.recorder.now() < deadline, f"no less is asked for\n{stage.story()}"
            await asyncio.sleep(0.05)
        pods = (await client.list(PODS, "default"))["items"]
        assert {pod["metadata"]["uid"] for pod in pods} == before, "no pod was made anew"
        assert {pod["status"]["qosClass"] for pod in pods} == {"Burstable"}
        told = (
            ("live-worker-0", "Deferred", "Node didn't have enough resource: memory"),
            ("live-worker-1", "Infeasible", "Node didn't have enough capacity: memory"),
        )
        for name, reason, message in told:
            pending = {"type": "PodResizePending", "status": "True", "reason": reason}
            status = {"conditions": [pending | {"message": message}]}
            await client.patch(
                *(PODS, name, "default", {"status": status}),
                subresource="status",
                patch_type="strategic",
            )
        for name, reason, message in told:
            (*_, said) = await stage.wait_for_events(f"Resize{reason}")
            assert said.startswith(f"{name}: ")
            assert said.endswith(f"the kubelet: {message}")


def _manifest() -> list[dict[str, Any]]:
    built = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "manifests" / "brain")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return list(yaml.safe_load_all(built.stdout.replace("volcano-elastic-system", SYSTEM)))


def _rights(objects: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Verb, group and resource."""
    return {
        (verb, group, kind)
        for one in objects
        for rule in one.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }


async def test_brain_needs_the_rights_that_its_manifest_gives_and_no_more(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane, user = fresh_control_plane, f"system:serviceaccount:{SYSTEM}:volcano-elastic-brain"
    if not plane.rbac:
        pytest.skip(f"the {plane.name} control plane has one user only")
    objects = _manifest()
    url, go = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "go"
    async with plane.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        for obj in objects:
            group, _, version = obj["apiVersion"].rpartition("/")
            plural, spaced = obj["kind"].lower() + "s", "namespace" in obj["metadata"]
            await client.create(Resource(group, version, plural, obj["kind"], spaced), obj)
        await client.create(CRDS, METRICS)
        history = History(url)
        history.migrate()
        for i in range(4):
            used = load(0, amounts(0.5, 0.25))
            history.write(run(f"u{i}", image="train:1", queue="default", loads=(used,)))
        history.close()
        for mode in ("Recommend", "AtStart"):
            job = _job(mode.lower(), go, **{BRAIN_ANNOTATION: mode})
            await client.create(PYTORCHJOBS, job)
        # One that told nothing of itself: the metrics API is asked for such alone.
        pod = {
            "metadata": {"name": "untold", "namespace": "default", "labels": {JOB_NAME: "x"}},
            "spec": {"containers": [{"name": "pytorch", "image": "train:1"}]},
        }
        await client.create(PODS, pod)
        runs = {"status": {"phase": "Running"}}
        await client.patch(PODS, "untold", "default", runs, subresource="status")
        await client.create(NODES, {"metadata": {"name": "n"}})
        has = {"status": {"allocatable": {"cpu": "8", "memory": "64Gi"}}}
        await client.patch(NODES, "n", None, has, subresource="status")
        await served(client, "served", "950Mi")
        own = ("--lease-namespace", SYSTEM, "--live-after-seconds", "1")
        async with brain(plane.kubeconfig_of(user), url, tmp_path / "brain.log", *own):

            def used_rights() -> tuple[set[tuple[str, str, str]], list[str]]:
                found, refused = set[tuple[str, str, str]](), []
                for event in plane.requests(user):
                    about = event.get("objectRef")
                    if about is None or "resource" not in about:
                        continue
                    kind = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                    right = (event["verb"], about.get("apiGroup", ""), kind)
                    if event["responseStatus"]["code"] == 403:
                        refused.append(str(right))
                    found.add(right)
                return found, refused

            granted, deadline = _rights(objects), asyncio.get_running_loop().time() + PATIENCE
            off = {"metadata": {"annotations": {BRAIN_ANNOTATION: "Off"}}}
            # A watch is recorded as it ends, with Brain.
            at_once = {right for right in granted if right[0] != "watch"}
            while not at_once <= used_rights()[0]:
                if await plans(client) == {"served-brain": "2Gi"}:
                    await client.patch(PYTORCHJOBS, "served", "default", off)
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(0.2)
        found, refused = used_rights()
        assert not refused, (tmp_path / "brain.log").read_text()
        assert found == granted, (tmp_path / "brain.log").read_text()
        job = await client.get(PYTORCHJOBS, "atstart", "default")
        roles = job["status"]["elastic"]["recommendation"]["roles"]
        assert roles["Worker"]["memory"] == NEEDED_MEMORY
