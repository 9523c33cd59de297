"""The Helm chart's and kustomize's output is accepted by an API server, as it stands."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml

from e2e.kubectl import Kubectl
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.documents.test_chart import NAMESPACE, needs_helm, template
from tests.documents.test_manifests import build
from volcano_elastic.kube.client import AlreadyExists
from volcano_elastic.kube.resource import NAMESPACES, Object

pytestmark = pytest.mark.e2e


@pytest.fixture
async def plane(rbac_control_plane: ControlPlane) -> ControlPlane:
    """One that has RBAC, with the namespaces that an installation finds."""
    async with rbac_control_plane.client() as client:
        for name in (NAMESPACE, "volcano-system"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES, namespace)
    return rbac_control_plane


async def _accepted(plane: ControlPlane, objects: list[Object], folder: Path) -> None:
    dry = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    for namespace in (NAMESPACE, "volcano-system"):
        of_it = [o for o in objects if o["metadata"].get("namespace", NAMESPACE) == namespace]
        file = folder / f"{namespace}.yaml"
        file.write_text(yaml.safe_dump_all(of_it))
        kubectl = Kubectl(plane.kubeconfig, folder, namespace)
        said = await kubectl("apply", *dry, "-f", str(file))
        assert len(said.splitlines()) == len(of_it) > 0


@needs_helm
async def test_a_kube_apiserver_accepts_the_chart(plane: ControlPlane, tmp_path: Path) -> None:
    await _accepted(plane, template("page.enabled=true"), tmp_path)


async def test_a_kube_apiserver_accepts_what_kustomize_builds(
    plane: ControlPlane, tmp_path: Path
) -> None:
    objects = [*build("manifests/default"), *build("manifests/dashboard")]
    await _accepted(plane, objects, tmp_path)
