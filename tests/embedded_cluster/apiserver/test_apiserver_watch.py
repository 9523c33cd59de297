"""Watches over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web

from embedded_cluster.apiserver import server
from embedded_cluster.apiserver.builtin import NAMESPACE
from embedded_cluster.apiserver.registry import Registry
from embedded_cluster.apiserver.request import WriteOptions
from embedded_cluster.apiserver.rest import Rest
from embedded_cluster.apiserver.store import Store
from tests.embedded_cluster.apiserver.process import TOKEN, ApiServerProcess
from tests.embedded_cluster.apiserver.world import TIMEOUT, Watching, configmap, until
from volcano_elastic.kube.client import Client, Gone
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import CONFIGMAPS, SECRETS


async def test_a_watch_resumes_where_it_was(client: Client, namespace: str) -> None:
    version = (await client.list(CONFIGMAPS, namespace))["metadata"]["resourceVersion"]
    live = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    await client.patch(CONFIGMAPS, "one", namespace, {"data": {"a": "b"}})
    await client.create(CONFIGMAPS, configmap("default", f"elsewhere-{namespace}"))
    await client.delete(CONFIGMAPS, "one", namespace)
    expected = [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    assert await live.names(3) == expected
    replayed = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    assert await replayed.names(3) == expected
    later = live.events[0][1]["metadata"]["resourceVersion"]
    rest = Watching(client, CONFIGMAPS, namespace, resource_version=later)
    assert await rest.names(2) == expected[1:]
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in live.events]
    assert versions == sorted(set(versions))


async def test_leaving_a_selector_is_a_deletion_with_the_object_as_it_was(
    client: Client, namespace: str
) -> None:
    obj = configmap(namespace, "one")
    obj["metadata"]["labels"] = {"in": "yes"}
    made = await client.create(CONFIGMAPS, obj)
    version = made["metadata"]["resourceVersion"]
    watching = Watching(
        client, CONFIGMAPS, namespace, resource_version=version, label_selector="in=yes"
    )
    left = await client.patch(CONFIGMAPS, "one", namespace, {"metadata": {"labels": {"in": "no"}}})
    await client.patch(CONFIGMAPS, "one", namespace, {"metadata": {"labels": {"in": "yes"}}})
    assert await watching.names(2) == [("DELETED", "one"), ("ADDED", "one")]
    last = watching.events[0][1]["metadata"]
    assert last["labels"] == {"in": "yes"}
    assert last["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_revision_of_another_life_is_too_old(client: Client) -> None:
    for version in ("1", str(10**17)):
        with pytest.raises(Gone):
            async for _ in client.watch(CONFIGMAPS, "default", resource_version=version):
                pass


async def test_a_watch_ends_in_time_and_sends_its_first_state(
    client: Client, namespace: str
) -> None:
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    params = {"watch": "1", "timeoutSeconds": "1"}
    async with asyncio.timeout(120):
        async with client.session.get(
            client.access.server + CONFIGMAPS.path(namespace),
            params=params,
            headers=client.access.headers,
        ) as answer:
            lines = [line async for line in answer.content]
    assert len(lines) == 1 and b'"type":"ADDED"' in lines[0]


async def test_a_quiet_watch_is_told_how_far_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BOOKMARK_SECONDS", 0.1)
    store, registry = Store(revision=7), Registry()
    rest = Rest(store, _now, random.Random(0))
    rest.create(NAMESPACE, "", {"metadata": {"name": "default"}}, WriteOptions())
    api = server.Server(store, registry, rest, token=TOKEN, clock=_now)
    runner = web.ServerRunner(web.Server(api.handle, handler_cancellation=True))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with Client(Access(url, {"Authorization": f"Bearer {TOKEN}"}, None)) as client:
            params = {"watch": "true", "resourceVersion": str(store.revision)}
            params |= {"allowWatchBookmarks": "true"}
            path = url + CONFIGMAPS.path("default")
            async with (
                asyncio.timeout(TIMEOUT),
                client.session.get(path, params=params, headers=client.access.headers) as answer,
            ):
                # Of another kind, so that the watch has nothing to say but that it saw this too.
                made = await client.create(SECRETS, configmap("default", "one"))
                version = made["metadata"]["resourceVersion"]
                while True:
                    event = json.loads(await answer.content.readline())
                    shown = {"kind": "ConfigMap", "apiVersion": "v1"}
                    seen = event["object"].pop("metadata")
                    assert event == {"type": "BOOKMARK", "object": shown}
                    if seen == {"resourceVersion": version}:
                        break
    finally:
        await api.stop()
        await runner.cleanup()


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.process
async def test_watchers_that_read_nothing_are_cut_off_and_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is freed goes back to the system, so that it isn't counted.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    much = "x" * 512 * 1024
    with ApiServerProcess(tmp_path, cold=True) as process:
        async with process.client() as client:
            await client.create(CONFIGMAPS, configmap("default", "big"))
            await client.create(SECRETS, configmap("default", "big"))
            await client.create(CONFIGMAPS, configmap("kube-public", "small"))
            healthy = Watching(client, CONFIGMAPS, "kube-public", resource_version="0")
            await until(lambda: asyncio.sleep(0, healthy.events))
            with (
                SilentWatch(process, CONFIGMAPS.path("default")) as hopeless,
                SilentWatch(process, SECRETS.path("default")) as late,
            ):
                before = resident_bytes(process)
                for number in range(400):
                    data = {"data": {"number": str(number), "much": much}}
                    await client.patch(CONFIGMAPS, "big", "default", data)
                    if number % 10 == 0:
                        small = {"data": {"number": str(number)}}
                        await client.patch(CONFIGMAPS, "small", "kube-public", small)
                        text = {"stringData": {"number": str(number), "much": much[:300_000]}}
                        await client.patch(SECRETS, "big", "default", text)
                # Of 200 MiB, what the history keeps: JSON and object.
                assert resident_bytes(process) - before < 120 * 1024 * 1024
                assert await healthy.names(41) == [
                    ("ADDED", "small"),
                    *[("MODIFIED", "small")] * 40,
                ]
                await until(
                    lambda: asyncio.sleep(0, hopeless.is_cut() and late.is_cut()), seconds=60
                )
                newest = (await client.get(SECRETS, "big", "default"))["metadata"][
                    "resourceVersion"
                ]
                async for _, obj in client.watch(
                    SECRETS, "default", resource_version=late.last_version()
                ):
                    if obj["metadata"]["resourceVersion"] == newest:
                        break
                with pytest.raises(Gone):
                    async for _ in client.watch(
                        CONFIGMAPS, "default", resource_version=hopeless.last_version()
                    ):
                        pass


class SilentWatch:
    """A watch by a client that reads nothing before `last_version` is asked for."""

    def __init__(self, process: ApiServerProcess, path: str) -> None:
        self._process, self._path = process, path

    def __enter__(self) -> Self:
        host, port = self._process.server.removeprefix("http://").split(":")
        before = self._servers_sockets()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(30)
        self._socket.connect((host, int(port)))
        request = f"GET {self._path}?watch=true HTTP/1.1\r\nHost: {host}\r\n"
        self._socket.sendall(f"{request}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        # Its answer has begun, so that nothing that happens from now on is missed.
        self._read = self._socket.recv(16)
        (self._connection,) = self._servers_sockets() - before
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def is_cut(self) -> bool:
        """Tell whether the server has closed its end, as reading alone would show."""
        return self._connection not in self._servers_sockets()

    def last_version(self) -> str:
        """Return the version of the last event that can be read whole."""
        with contextlib.suppress(ConnectionError):
            while more := self._socket.recv(1 << 20):
                self._read += more
        whole = self._read.rpartition(b"\n")[0]
        return re.findall(rb'"resourceVersion":"(\d+)"', whole)[-1].decode()

    def _servers_sockets(self) -> set[str]:
        folder = Path(f"/proc/{self._process.process.pid}/fd")
        found = set()
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(file))
        return {one for one in found if one.startswith("socket:")}


def resident_bytes(process: ApiServerProcess) -> int:
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
