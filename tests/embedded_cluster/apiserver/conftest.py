"""One API server, as a process of its own, for all tests of this folder; a namespace for each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.embedded_cluster.apiserver.world import NAMESPACES, TOYS, toy_crd
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.resource import CRDS, Resource

_numbers = itertools.count()


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    with ApiServerProcess(tmp_path_factory.mktemp("apiserver")) as process:
        yield process


@pytest.fixture
async def client(process: ApiServerProcess) -> AsyncIterator[Client]:
    async with process.client() as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    name = f"space-{next(_numbers)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
async def toys(client: Client) -> Resource:
    with contextlib.suppress(AlreadyExists):
        await client.create(CRDS, toy_crd())
    return TOYS
