"""How the embedded API server starts, stops and keeps what it acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from embedded_cluster.apiserver.journal import SqliteJournal
from tests.embedded_cluster.apiserver.process import TOKEN, ApiServerProcess
from tests.embedded_cluster.apiserver.world import (
    TIMEOUT,
    TOYS,
    Watching,
    configmap,
    pod,
    toy,
    toy_crd,
    until,
)
from volcano_elastic.kube.client import Client, Gone
from volcano_elastic.kube.resource import CONFIGMAPS, CRDS, PODS

pytestmark = pytest.mark.process


def test_a_used_port_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "embedded_cluster.apiserver", "--port", port]
        command += ["--token-file", str(tmp_path / "token")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "embedded_cluster.apiserver", "--port", "0"]
    command += ["--token-file", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "--token-file" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_cleanly_though_watches_are_open(tmp_path: Path, number: int) -> None:
    with ApiServerProcess(tmp_path) as own:
        async with own.client() as client:
            version = (await client.list(PODS))["metadata"]["resourceVersion"]
            watching = Watching(client, PODS, "default", resource_version=version)
            await client.create(PODS, pod("default", "one"))
            await watching.names(1)
            again = Watching(client, PODS, "default", resource_version=version)
            await until(lambda: asyncio.sleep(0, again.events))
            assert await asyncio.to_thread(own.stop, number) == 0


async def test_a_token_is_required_but_for_health_and_version(process: ApiServerProcess) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/readyz", "/healthz", "/livez", "/version"):
            async with session.get(process.server + path) as answer:
                assert answer.status == 200, path
        for path in ("/api", "/api/v1/pods", "/token/wrong/api/v1/pods"):
            async with session.get(process.server + path) as answer:
                assert answer.status == 401 and (await answer.json())["reason"] == "Unauthorized"
        async with session.get(f"{process.server}/token/{TOKEN}/api/v1/pods") as answer:
            assert answer.status == 200


async def test_a_token_that_is_no_text_is_a_wrong_one(process: ApiServerProcess) -> None:
    host, _, port = process.server.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), TIMEOUT)
    writer.close()
    await writer.wait_closed()


async def test_a_long_request_is_answered_and_no_token_is_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ApiServerProcess(tmp_path) as own:
        async with aiohttp.ClientSession() as session:
            for size, code in ((16_000, 200), (2_000_000, 400)):
                path = f"/token/{TOKEN}/api/v1/pods?labelSelector=a!={'b' * 60}"
                path += ",a!=b" * (size // 5)
                async with session.get(own.server + path) as answer:
                    assert answer.status == code
    assert TOKEN not in capfd.readouterr().err


async def test_acknowledged_writes_survive_sigkill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            await client.create(CRDS, toy_crd())
            await client.create(TOYS, toy("default", "kept"))
            await client.create(CONFIGMAPS, configmap("default", "gone"))
            await client.delete(CONFIGMAPS, "gone", "default")
            for n in range(50):
                last = await client.create(CONFIGMAPS, configmap("default", f"c{n}", n=str(n)))
        own.stop(signal.SIGKILL)
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            assert (await client.get(TOYS, "kept", "default"))["spec"]["size"] == 3
            listed = await client.list(CONFIGMAPS, "default")
            assert len(listed["items"]) == 50
            assert await client.get(CONFIGMAPS, "c49", "default") == last
            fresh = await client.create(CONFIGMAPS, configmap("default", "fresh"))
            versions = [int(obj["metadata"]["resourceVersion"]) for obj in (last, fresh)]
            assert versions == sorted(versions)
            with pytest.raises(Gone):
                async for _ in client.watch(CONFIGMAPS, "default", resource_version="1"):
                    pass


async def test_what_an_earlier_server_kept_is_read_as_this_one_has_it(tmp_path: Path) -> None:
    """A pod of before certain defaults can be told of, and labelled, like any other."""
    data = tmp_path / "data"
    old = pod("default", "old", nodeName="node-1", hostNetwork=True)
    old["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    (container,) = old["spec"]["containers"]
    container |= {"ports": [{"containerPort": 80}], "env": [{"name": "EMPTY", "value": ""}]}
    kept = {"apiVersion": "v1", "kind": "Pod", **old, "status": {"phase": "Pending"}}
    kept["metadata"]["resourceVersion"] = "7"
    journal = SqliteJournal(data)
    journal.write(7, ("", "pods"), ("default", "old"), json.dumps(kept).encode())
    journal.close()
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            read = await client.get(PODS, "old", "default")
            assert read["spec"]["containers"][0]["ports"][0]["hostPort"] == 80
            assert read["metadata"]["resourceVersion"] == "7", "nothing was written"
            running = {"status": {"phase": "Running"}}
            await client.patch(PODS, "old", "default", running, subresource="status")
            await client.patch(PODS, "old", "default", {"metadata": {"labels": {"a": "b"}}})


async def test_what_an_earlier_schema_kept_is_read_by_the_present_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            crd = await client.create(CRDS, toy_crd())
            await client.create(TOYS, toy("default", "kept", code="old"))
            for version in crd["spec"]["versions"]:
                spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
                spec["name"] = {"type": "string", "default": "anew"}
                del spec["size"], spec["code"]
                del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["required"]
            await client.replace(CRDS, crd)
        own.stop(signal.SIGKILL)
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            read = await client.get(TOYS, "kept", "default")
            (listed,) = (await client.list(TOYS, "default"))["items"]
    expected = {"colour": "red", "name": "anew", "replicas": 1}
    assert read["spec"] == listed["spec"] == expected


async def test_acknowledged_writes_survive_sigkill_under_load(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    deleted: set[str] = set()

    async def write(client: Client, writer: int) -> None:
        for turn in itertools.count():
            name = f"w{writer}-{turn // 4}"
            if turn % 4 == 0:
                await client.create(CONFIGMAPS, configmap("default", name, n=str(turn)))
            elif turn % 4 < 3 or turn % 8 == 3:
                body = {"data": {"n": str(turn)}}
                await client.patch(CONFIGMAPS, name, "default", body)
            else:
                acknowledged.pop(name)
                await client.delete(CONFIGMAPS, name, "default")
                deleted.add(name)
                continue
            acknowledged[name] = turn

    data = tmp_path / "data"
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            writers = [asyncio.create_task(write(client, number)) for number in range(8)]
            async with asyncio.timeout(TIMEOUT):
                while len(acknowledged) < 200:
                    assert not any(writer.done() for writer in writers)
                    await asyncio.sleep(0.01)
            own.process.send_signal(signal.SIGKILL)
            await asyncio.gather(*writers, return_exceptions=True)
            own.process.wait(120)
        assert deleted
    with ApiServerProcess(tmp_path, data_dir=data) as own:
        async with own.client() as client:
            listed = await client.list(CONFIGMAPS, "default")
            found = {item["metadata"]["name"]: int(item["data"]["n"]) for item in listed["items"]}
    assert not deleted & found.keys()
    # One more may have been written than was answered.
    lost = {n: v for n, v in acknowledged.items() if found.get(n, -1) not in (v, v + 1)}
    assert not lost


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApiServerProcess(tmp_path, data_dir=data):
        command = [sys.executable, "-m", "embedded_cluster.apiserver", "--port", "0"]
        command += ["--token-file", str(tmp_path / "token"), "--data-dir", str(data)]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 1
    assert "data directory" in done.stderr and "Traceback" not in done.stderr
