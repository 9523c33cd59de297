"""`volcano-elastic doctor` on a live control plane: what is well, wrong, or not to be seen."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.kubectl import Kubectl
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from tests.documents.test_manifests import build
from volcano_elastic import assets
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.resource import (
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    Resource,
)

pytestmark = pytest.mark.e2e


def doctor(kubeconfig: Path, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return its exit code, and its diagnoses by code."""
    command = [sys.executable, "-m", "volcano_elastic.cli", "doctor", "--json"]
    command += ["--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.stdout)["diagnoses"]:
        found.setdefault(one["code"], []).append(one)
    return done.returncode, found


def statuses(found: dict[str, list[dict[str, str]]]) -> dict[str, set[str]]:
    return {code: {one["status"] for one in ones} for code, ones in found.items()}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """One of its own, since what other tests leave would be found."""
    if control_plane.kept:
        pytest.skip("that cluster is as it is; ask doctor itself")
    with type(control_plane)() as plane:
        yield plane


def test_a_bare_control_plane_is_told_what_it_lacks(plane: ControlPlane) -> None:
    code, found = doctor(plane.kubeconfig, "--fail-on", "warning")
    seen = statuses(found)
    assert seen["crds"] == {"OK"}
    assert seen["webhooks"] == {"Warning"}
    assert seen["clocks"] <= {"OK", "Unknown"}
    if plane.rbac:
        assert (seen["volcano"], seen["operator"]) == ({"Error"}, {"Warning"})
        assert (seen["rights"], seen["tools-rights"]) == ({"Error"}, {"OK"})
    else:  # The embedded one serves neither Deployments nor reviews of rights.
        assert seen["volcano"] == seen["rights"] == {"Unknown"}
    assert code == 1


def test_one_who_may_see_nothing_is_told_so(plane: ControlPlane) -> None:
    if not plane.rbac:
        pytest.skip("this control plane has one user only")
    code, found = doctor(plane.kubeconfig_of("stranger"))
    seen = statuses(found)
    assert seen.pop("tools-rights") == {"Error"}
    assert set().union(*seen.values()) == {"Unknown"}
    assert code == 1


async def _create(client: Client, kind: Resource, *objects: Object) -> None:
    for obj in objects:
        try:
            await client.create(kind, obj)
        except AlreadyExists:
            continue


async def _install(plane: ControlPlane, folder: Path) -> None:
    """Create what an installation leaves in the API server; nobody runs any of it here."""
    async with plane.client() as client:
        for name in ("volcano-system", "volcano-elastic-system"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await _create(client, NAMESPACES, namespace)
        text = assets.SCHEDULER_CONFIGURATIONS["capacity"].read_text()
        meta = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        await _create(client, CONFIGMAPS, config | {"data": {"volcano-scheduler.conf": text}})
        objects = build("manifests/base")
        (operator,) = [one for one in objects if one["kind"] == "Deployment"]
        await _create(client, DEPLOYMENTS, operator, _scheduler())
    roles = [one for one in yaml.safe_load_all(assets.OPERATOR_RIGHTS.read_text()) if one]
    for namespace in ("volcano-system", "volcano-elastic-system"):
        file = folder / f"{namespace}.yaml"
        of_it = [r for r in roles if r["metadata"].get("namespace", namespace) == namespace]
        file.write_text(yaml.safe_dump_all(of_it))
        await Kubectl(plane.kubeconfig, folder, namespace)("apply", "-f", str(file))


def _scheduler() -> Object:
    labels = {"app": "volcano-scheduler"}
    arguments = ["--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf"]
    arguments.append("--disable-default-scheduler-config=true")
    container = {"name": "it", "image": "volcanosh/vc-scheduler:v1.15.1", "args": arguments}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "volcano-scheduler", "namespace": "volcano-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def test_an_installation_is_found_well_but_for_what_does_not_run(
    plane: ControlPlane, tmp_path: Path
) -> None:
    if not plane.rbac:
        pytest.skip("this control plane serves no Deployments")
    asyncio.run(_install(plane, tmp_path))
    code, found = doctor(plane.kubeconfig)
    seen = statuses(found)
    assert seen["scheduler-config"] == seen["rights"] == seen["crds"] == {"OK"}, found
    # No kubelet runs pods here.
    down = [one["found"] for name in ("volcano", "operator") for one in found[name]]
    assert down == [
        "volcano-system/volcano-scheduler has no ready pod",
        "volcano-elastic-system/volcano-elastic has no ready pod",
    ]
    assert (seen["leader"], code) == ({"Error"}, 1)


async def _configure_webhooks(plane: ControlPlane) -> None:
    """Those of manifests/, at a port where nobody listens."""
    text = (ROOT / "manifests/webhook/configuration.yaml").read_text()
    async with plane.client() as client:
        for configuration in yaml.safe_load_all(text):
            for hook in configuration["webhooks"]:
                path = hook["clientConfig"].pop("service")["path"]
                hook["clientConfig"]["url"] = f"https://127.0.0.1:1{path}"
            plural = f"{configuration['kind'].lower()}s"
            group, _, version = configuration["apiVersion"].partition("/")
            kind = Resource(group, version, plural, configuration["kind"], namespaced=False)
            await client.create(kind, configuration)


def test_webhooks_that_nobody_answers_are_found(plane: ControlPlane) -> None:
    asyncio.run(_configure_webhooks(plane))
    _, found = doctor(plane.kubeconfig)
    (one,) = found["webhooks"]
    assert (one["status"], "caBundle" in one["found"]) == ("Error", True)
