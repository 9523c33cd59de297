"""`top`, `plan` and `explain` show jobs of other kinds."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.adapters.world import JOB, made, pods_of
from volcano_elastic.cli.explain import find
from volcano_elastic.cli.observation import observe
from volcano_elastic.kube.client import ApiError, Client, NotFound
from volcano_elastic.kube.resource import Resource
from volcano_elastic.snapshot.check import problems
from volcano_elastic.snapshot.codec import decode, encode

Object = dict[str, Any]


class Server:
    """Serves Jobs and pods, and nothing else of note."""

    def __init__(self, refusal: ApiError | None = None) -> None:
        self._refusal = refusal

    async def get(self, kind: Resource, name: str, namespace: str) -> Object:
        raise NotFound(404, "NotFound", name)

    async def list(self, kind: Resource) -> Object:
        if kind.group == "batch" and self._refusal is not None:
            raise self._refusal
        if kind.group in ("jobset.x-k8s.io", "trainer.kubeflow.org"):
            raise NotFound(404, "NotFound", kind.plural)
        found = {"jobs": [made(JOB, "render")], "pods": pods_of(JOB, "render", nodeName="n")}
        return {"items": found.get(kind.plural, [])}


async def test_a_job_that_asks_to_be_sized_is_seen_with_its_pods() -> None:
    snapshot = (await observe(cast(Client, Server()))).snapshot
    assert find("render", snapshot).key == find("team/job/render", snapshot).key
    assert [pod.job for pod in snapshot.pods] == ["team/job/render"] * 2


async def test_a_saved_snapshot_of_it_can_be_read_again() -> None:
    observed = await observe(cast(Client, Server()))
    again = decode(encode(observed))
    assert again == observed and not list(problems(again))


async def test_jobs_that_must_not_be_listed_are_none() -> None:
    refusal = ApiError(403, "Forbidden", "jobs")
    snapshot = (await observe(cast(Client, Server(refusal)))).snapshot
    assert snapshot.jobs == ()
    assert [pod.job for pod in snapshot.pods] == [None] * 2
    with pytest.raises(ApiError):
        await observe(cast(Client, Server(ApiError(500, "InternalError", "jobs"))))
