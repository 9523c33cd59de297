"""The page has all it shows by the rights that manifests/dashboard gives it, and uses every one."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from e2e.test_rbac import SYSTEM, Right, granted, job
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.documents.test_manifests import with_components
from volcano_elastic.cli.dashboard import describe
from volcano_elastic.dashboard.program import Options, dashboard
from volcano_elastic.dashboard.token_list import TokenList
from volcano_elastic.kube.client import AlreadyExists, Client, NotFound
from volcano_elastic.kube.kubeconfig import load
from volcano_elastic.kube.request_info import RequestInfo
from volcano_elastic.kube.resource import NAMESPACES, PYTORCHJOBS, Object, Resource

pytestmark = pytest.mark.e2e

USER = "the-page"
"""Has the rights of its service account, whose name is too long for a certificate's."""
OPTIONAL = "volcano-elastic-dashboard-rounds"
NOT_SERVED = ("jobset.x-k8s.io", "trainer.kubeflow.org")
"""Whose rights come with those to Jobs, for clusters that have them."""
JOBS = Resource("batch", "v1", "jobs", "Job")


async def _give_rights(client: Client, objects: list[Object]) -> None:
    for name in (SYSTEM, "volcano-system"):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    for obj in objects:
        group, _, version = obj["apiVersion"].rpartition("/")
        if group == "rbac.authorization.k8s.io":
            plural = obj["kind"].lower() + "s"
            named = "namespace" in obj["metadata"]
            for subject in obj.get("subjects") or ():
                subject.clear()
                subject.update(kind="User", name=USER, apiGroup=group)
            await client.create(Resource(group, version, plural, obj["kind"], named), obj)


async def _serves_jobs(client: Client) -> bool:
    try:
        await client.list(JOBS)
    except NotFound:
        return False
    return True


async def test_the_page_reads_by_its_rights_and_by_all_of_them(
    rbac_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = rbac_control_plane
    async with plane.client() as admin:
        others = await _serves_jobs(admin)
    built = with_components(tmp_path, *["other-jobs"] * others, page=True)
    name = "volcano-elastic-dashboard"
    objects = [obj for obj in built if obj["metadata"]["name"].startswith(name)]
    used: set[Right] = set()
    forbidden: set[Right] = set()

    def note(info: RequestInfo, code: int, _seconds: float) -> None:
        resource = "/".join(filter(None, (info.resource, info.subresource)))
        right = (info.verb, info.group, resource)
        (forbidden if code == 403 else used).add(right)

    async with plane.client() as admin:
        await _give_rights(admin, objects)
        with contextlib.suppress(AlreadyExists):
            await admin.create(PYTORCHJOBS, job("looked-at", elastic={"min": 1, "max": 2}))
        tokens = TokenList(lambda: datetime.now(UTC))
        options = Options(
            database=f"sqlite:///{tmp_path / 'page.db'}", other_jobs=("Job",) if others else ()
        )
        access = load(str(plane.kubeconfig_of(USER)))
        try:
            async with (
                Client(access, observe=note) as client,
                dashboard(client, tokens, options, describe) as address,
                aiohttp.ClientSession() as session,
            ):
                url, _, token = address.partition("#token=")
                headers = {"Authorization": f"Bearer {token}"}
                async with asyncio.timeout(120):
                    while True:
                        path = f"{url}api/job?job=default/looked-at"
                        async with session.get(path, headers=headers) as answer:
                            if answer.status == 200 and (await answer.json())["description"]:
                                break
                        await asyncio.sleep(0.2)
        finally:
            await admin.delete(PYTORCHJOBS, "looked-at", "default")
    bound = granted(o for o in objects if o["metadata"]["name"] != OPTIONAL)
    bound = {right for right in bound if right[1] not in NOT_SERVED}
    optional = granted(o for o in objects if o["metadata"]["name"] == OPTIONAL)
    assert forbidden <= optional, "all else that it asks for is granted"
    assert sorted(bound - used) == [], "granted, and never asked for"
