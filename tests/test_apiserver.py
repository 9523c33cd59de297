"""The embedded API server's promises, over HTTP to its own process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from apiserver_process import TOKEN, ApiServerProcess

from volcano_elastic.kube.client import (
    AlreadyExists,
    ApiError,
    Client,
    Conflict,
    Gone,
    Invalid,
    NotFound,
)
from volcano_elastic.kube.resource import (
    CONFIGMAPS,
    CRDS,
    EVENTS,
    NODES,
    PODS,
    PRIORITYCLASSES,
    SERVICES,
    Object,
    Resource,
)

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
TOYS = Resource("test.example.org", "v1", "toys", "Toy")
OLD_TOYS = Resource("test.example.org", "v1beta1", "toys", "Toy")
TIMEOUT = 10
_numbers = itertools.count()

TOY_SCHEMA: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "replicas": {"type": "integer", "default": 1},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "code": {"type": "string", "pattern": "^[a-z]+$"},
                "port": {"x-kubernetes-int-or-string": True},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "count": {"type": "integer", "default": 7},
                        },
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}


def toy_crd() -> Object:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    ]
    version = {
        "served": True,
        "schema": {"openAPIV3Schema": TOY_SCHEMA},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.test.example.org"},
        "spec": {
            "group": "test.example.org",
            "scope": "Namespaced",
            "names": {"plural": "toys", "kind": "Toy", "shortNames": ["ty"]},
            "versions": [
                {"name": "v1", "storage": True, **version},
                {"name": "v1beta1", "storage": False, **version},
            ],
        },
    }


@pytest.fixture(scope="module")
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


def configmap(namespace: str, name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def pod(namespace: str, name: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "image"}], **spec},
    }


def toy(namespace: str, name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "test.example.org/v1",
        "kind": "Toy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"size": 3, **spec},
    }


async def bind(client: Client, namespace: str, name: str, node: str = "node-1") -> None:
    binding = {
        "metadata": {"name": name, "namespace": namespace},
        "target": {"kind": "Node", "name": node},
    }
    await client.create(PODS, binding, subresource="binding")


async def until(what: Callable[[], Any], *, seconds: float = TIMEOUT) -> Any:
    """The first true answer of `what`."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await what():
                return found
            await asyncio.sleep(0.02)


async def gone(client: Client, resource: Resource, name: str, namespace: str | None) -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return True
    return False


class Watching:
    """Collects a watch's events while the test goes on."""

    def __init__(self, client: Client, resource: Resource, namespace: str, **options: Any) -> None:
        self.events: list[tuple[str, Object]] = []
        self._task = asyncio.create_task(self._run(client, resource, namespace, options))

    async def _run(
        self, client: Client, resource: Resource, namespace: str, options: Object
    ) -> None:
        async for event in client.watch(resource, namespace, **options):
            self.events.append(event)

    async def names(self, count: int) -> list[tuple[str, str]]:
        await until(lambda: asyncio.sleep(0, len(self.events) >= count))
        self._task.cancel()
        return [(kind, obj["metadata"]["name"]) for kind, obj in self.events]


# Starting and stopping


def test_a_used_port_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "volcano_elastic.local.apiserver", "--port", port]
        command += ["--token-file", str(tmp_path / "token")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "volcano_elastic.local.apiserver", "--port", "0"]
    command += ["--token-file", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
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
            own.process.kill()
            await asyncio.gather(*writers, return_exceptions=True)
            own.process.wait(10)
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
        command = [sys.executable, "-m", "volcano_elastic.local.apiserver", "--port", "0"]
        command += ["--token-file", str(tmp_path / "token"), "--data-dir", str(data)]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 1
    assert "data directory" in done.stderr and "Traceback" not in done.stderr


# Objects


async def test_a_created_object_gets_its_metadata(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, configmap(namespace, "one", a="b"))
    meta = made["metadata"]
    assert meta["uid"] and meta["creationTimestamp"].endswith("Z") and int(meta["resourceVersion"])
    assert made["kind"] == "ConfigMap" and made["apiVersion"] == "v1"
    assert await client.get(CONFIGMAPS, "one", namespace) == made
    with pytest.raises(AlreadyExists) as caught:
        await client.create(CONFIGMAPS, configmap(namespace, "one"))
    assert caught.value.message == 'configmaps "one" already exists'


async def test_a_stale_writer_gets_a_conflict(client: Client, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, configmap(namespace, "one", a="1"))
    await client.replace(CONFIGMAPS, {**first, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, {**first, "data": {"a": "3"}})
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, "one", namespace, {**stale, "data": {"a": "3"}})
    assert (await client.get(CONFIGMAPS, "one", namespace))["data"] == {"a": "2"}


async def test_generate_name_and_dry_run(client: Client, namespace: str) -> None:
    obj = {"metadata": {"generateName": "made-", "namespace": namespace}}
    names = {(await client.create(CONFIGMAPS, obj))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5 and all(len(name) == len("made-") + 5 for name in names)
    tried = await client.create(PODS, pod(namespace, "tried"), dry_run=True)
    assert tried["spec"]["restartPolicy"] == "Always"
    assert await gone(client, PODS, "tried", namespace)


async def test_an_unknown_namespace_and_a_bad_name_are_refused(
    client: Client, namespace: str
) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await client.create(CONFIGMAPS, configmap("nowhere", "one"))
    with pytest.raises(Invalid, match=r"metadata\.name: Invalid value: \"Upper\""):
        await client.create(CONFIGMAPS, configmap(namespace, "Upper"))


async def test_lists_select_by_label_and_field_and_come_in_pages(
    client: Client, namespace: str
) -> None:
    for n in range(5):
        obj = configmap(namespace, f"c{n}")
        obj["metadata"]["labels"] = {"parity": "odd" if n % 2 else "even", f"n{n}": ""}
        await client.create(CONFIGMAPS, obj)

    async def names(**options: str) -> list[str]:
        answer = await client.list(CONFIGMAPS, namespace, **options)
        return [item["metadata"]["name"] for item in answer["items"]]

    assert await names(label_selector="parity=odd") == ["c1", "c3"]
    assert await names(label_selector="parity in (odd),!n1") == ["c3"]
    assert await names(label_selector="parity notin (odd, x)") == ["c0", "c2", "c4"]
    assert await names(label_selector="n2") == ["c2"]
    assert await names(label_selector="parity!=odd,n0") == ["c0"]
    assert await names(field_selector="metadata.name=c4") == ["c4"]
    with pytest.raises(ApiError, match="field label not supported"):
        await names(field_selector="data.a=b")
    with pytest.raises(ApiError, match="unable to parse"):
        await names(label_selector="a b c")
    seen, token = [], ""
    while True:
        params = {"limit": "2", "continue": token}
        page = await client.request("GET", CONFIGMAPS.path(namespace), params=params)
        seen += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] == 5 - len(seen)
    assert seen == ["c0", "c1", "c2", "c3", "c4"]


# Patches


async def test_a_patch_that_changes_nothing_makes_no_event(client: Client, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, configmap(namespace, "one", a="b"))
    version = first["metadata"]["resourceVersion"]
    watching = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    again = await client.patch(CONFIGMAPS, "one", namespace, {"data": {"a": "b"}})
    assert again["metadata"]["resourceVersion"] == version
    await client.replace(CONFIGMAPS, first)
    await client.create(CONFIGMAPS, configmap(namespace, "two"))
    assert await watching.names(1) == [("ADDED", "two")]


async def test_json_patch_with_test(client: Client, namespace: str) -> None:
    obj = configmap(namespace, "one", a="b")
    obj["metadata"]["annotations"] = {"w": "z"}
    made = await client.create(CONFIGMAPS, obj)
    version = made["metadata"]["resourceVersion"]
    patched = await client.patch(
        CONFIGMAPS,
        "one",
        namespace,
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/finalizers", "value": ["example.org/f"]},
            {"op": "add", "path": "/metadata/annotations/x~1y", "value": "z"},
            {"op": "remove", "path": "/data/a"},
        ],
        patch_type="json",
    )
    assert patched["metadata"]["annotations"] == {"w": "z", "x/y": "z"}
    assert "data" not in patched
    operation = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "one", namespace, [operation], patch_type="json")
    operation = {"op": "remove", "path": "/data/none"}
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "one", namespace, [operation], patch_type="json")


async def test_strategic_merge_knows_the_lists_keys(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one"))
    status = {"conditions": [{"type": "Ready", "status": "False"}], "phase": "Running"}
    for body in (status, {"conditions": [{"type": "Ready", "status": "True"}]}):
        await client.patch(
            PODS,
            "one",
            namespace,
            {"status": body},
            subresource="status",
            patch_type="strategic",
        )
    more = {"conditions": [{"type": "Initialized", "status": "True"}]}
    patched = await client.patch(
        PODS, "one", namespace, {"status": more}, subresource="status", patch_type="strategic"
    )
    found = {one["type"]: one["status"] for one in patched["status"]["conditions"]}
    assert found == {"Ready": "True", "Initialized": "True"}
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    patched = await client.patch(PODS, "one", namespace, image, patch_type="strategic")
    assert [c["image"] for c in patched["spec"]["containers"]] == ["other"]
    drop = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    patched = await client.patch(
        PODS, "one", namespace, drop, subresource="status", patch_type="strategic"
    )
    assert [one["type"] for one in patched["status"]["conditions"]] == ["Initialized"]


async def test_apply_creates_merges_and_removes_what_the_manager_dropped(
    client: Client, namespace: str, toys: Resource
) -> None:
    def configuration(**spec: Any) -> Object:
        return {"apiVersion": toys.api_version, "kind": "Toy", **toy(namespace, "one", **spec)}

    body = configuration(colour="blue", parts=[{"name": "a", "count": 1}, {"name": "b"}])
    made = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert made["spec"]["parts"] == [{"name": "a", "count": 1}, {"name": "b", "count": 7}]
    same = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    extra = [{"op": "add", "path": "/spec/parts/-", "value": {"name": "c", "count": 3}}]
    await client.patch(toys, "one", namespace, extra, patch_type="json")
    body = configuration(parts=[{"name": "a", "count": 2}])
    made = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert {part["name"]: part["count"] for part in made["spec"]["parts"]}["a"] == 2
    assert {part["name"] for part in made["spec"]["parts"]} >= {"a", "c"}
    assert made["spec"]["colour"] == "red", "dropped by its manager, so the default is back"
    with pytest.raises(Conflict, match="conflict with"):
        await client.request(
            "PATCH",
            toys.path(namespace, "one"),
            body=configuration(size=4),
            params={"fieldManager": "somebody-else"},
            content_type="application/apply-patch+yaml",
        )


# Watching


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
    async with asyncio.timeout(5):
        async with client.session.get(
            client.access.server + CONFIGMAPS.path(namespace),
            params=params,
            headers=client.access.headers,
        ) as answer:
            lines = [line async for line in answer.content]
    assert len(lines) == 1 and b'"type":"ADDED"' in lines[0]


# Deletion


async def test_finalizers_hold_an_object(client: Client, namespace: str) -> None:
    obj = configmap(namespace, "held")
    obj["metadata"]["finalizers"] = ["example.org/hold"]
    await client.create(CONFIGMAPS, obj)
    answer = await client.delete(CONFIGMAPS, "held", namespace)
    assert answer["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["example.org/hold", "example.org/more"]}}
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await client.patch(CONFIGMAPS, "held", namespace, more)
    await client.patch(CONFIGMAPS, "held", namespace, {"metadata": {"finalizers": None}})
    assert await gone(client, CONFIGMAPS, "held", namespace)


async def test_preconditions_of_a_deletion(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, configmap(namespace, "one"))
    with pytest.raises(Conflict, match="UID in precondition"):
        await client.delete(CONFIGMAPS, "one", namespace, uid="another")
    options = {"preconditions": {"resourceVersion": "1"}}
    with pytest.raises(Conflict, match="ResourceVersion in precondition"):
        await client.request("DELETE", CONFIGMAPS.path(namespace, "one"), body=options)
    await client.delete(CONFIGMAPS, "one", namespace, uid=made["metadata"]["uid"])
    assert await gone(client, CONFIGMAPS, "one", namespace)


def owned(obj: Object, owner: Object, *, block: bool = False) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }
    obj["metadata"].setdefault("ownerReferences", []).append(reference)
    return obj


async def test_dependents_go_with_their_owner(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    other = await client.create(CONFIGMAPS, configmap(namespace, "other"))
    child = await client.create(CONFIGMAPS, owned(configmap(namespace, "child"), owner))
    await client.create(CONFIGMAPS, owned(configmap(namespace, "grandchild"), child))
    await client.create(PODS, owned(pod(namespace, "pod"), owner))
    shared = owned(owned(configmap(namespace, "shared"), owner), other)
    await client.create(CONFIGMAPS, shared)
    await client.delete(CONFIGMAPS, "owner", namespace)
    for resource, name in ((CONFIGMAPS, "child"), (CONFIGMAPS, "grandchild"), (PODS, "pod")):
        await until(lambda r=resource, n=name: gone(client, r, n, namespace))

    async def one_owner() -> bool:
        found = await client.get(CONFIGMAPS, "shared", namespace)
        return [one["name"] for one in found["metadata"]["ownerReferences"]] == ["other"]

    await until(one_owner)


async def test_a_dependent_that_comes_too_late_goes_too(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.delete(CONFIGMAPS, "owner", namespace)
    await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.create(PODS, owned(pod(namespace, "late"), owner))
    await until(lambda: gone(client, PODS, "late", namespace))


async def test_foreground_and_orphaning_deletion(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    held = owned(configmap(namespace, "held"), owner, block=True)
    held["metadata"]["finalizers"] = ["example.org/hold"]
    await client.create(CONFIGMAPS, held)
    await client.delete(CONFIGMAPS, "owner", namespace, propagation_policy="Foreground")

    async def marked() -> bool:
        found = await client.get(CONFIGMAPS, "held", namespace)
        return "deletionTimestamp" in found["metadata"]

    await until(marked)
    waiting = await client.get(CONFIGMAPS, "owner", namespace)
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.patch(CONFIGMAPS, "held", namespace, {"metadata": {"finalizers": None}})
    await until(lambda: gone(client, CONFIGMAPS, "owner", namespace))

    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.create(CONFIGMAPS, owned(configmap(namespace, "orphan"), owner))
    await client.delete(CONFIGMAPS, "owner", namespace, propagation_policy="Orphan")
    await until(lambda: gone(client, CONFIGMAPS, "owner", namespace))
    orphan = await client.get(CONFIGMAPS, "orphan", namespace)
    assert "ownerReferences" not in orphan["metadata"]


async def test_a_namespace_goes_with_its_contents(client: Client, namespace: str) -> None:
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    await client.create(PODS, pod(namespace, "bound"))
    await bind(client, namespace, "bound")
    await client.delete(NAMESPACES, namespace)
    leaving = await client.get(NAMESPACES, namespace)
    assert leaving["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="being terminated"):
        await client.create(CONFIGMAPS, configmap(namespace, "late"))
    await until(lambda: gone(client, CONFIGMAPS, "one", namespace))
    await client.delete(PODS, "bound", namespace, grace_period_seconds=0)
    await until(lambda: gone(client, NAMESPACES, namespace, None))


async def test_deletecollection_takes_what_is_selected(client: Client, namespace: str) -> None:
    for n in range(4):
        obj = configmap(namespace, f"c{n}")
        obj["metadata"]["labels"] = {"half": str(n % 2)}
        await client.create(CONFIGMAPS, obj)
    await client.request("DELETE", CONFIGMAPS.path(namespace), params={"labelSelector": "half=1"})
    left = await client.list(CONFIGMAPS, namespace)
    assert [item["metadata"]["name"] for item in left["items"]] == ["c0", "c2"]


# Pods


async def test_limits_default_requests(client: Client, namespace: str) -> None:
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "2"}, "requests": {"cpu": "1"}}
    container = {"name": "main", "image": "image", "resources": resources}
    made = await client.create(PODS, pod(namespace, "one", containers=[container]))
    requests = made["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"nvidia.com/gpu": "1", "cpu": "1"}
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}


async def test_a_wrong_pod_is_refused_with_the_fields_path(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"spec\.containers: Required value"):
        await client.create(PODS, pod(namespace, "one", containers=[]))
    nameless = [{"image": "image", "resources": {"limits": {"cpu": "-1"}}}]
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, pod(namespace, "one", containers=nameless))
    assert "spec.containers[0].name: Required value" in caught.value.message
    assert "spec.containers[0].resources.limits[cpu]" in caught.value.message


async def test_priority_comes_from_its_class(client: Client, namespace: str) -> None:
    name = f"class-{namespace}"
    await client.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": 77})
    made = await client.create(PODS, pod(namespace, "one", priorityClassName=name))
    assert made["spec"]["priority"] == 77
    with pytest.raises(ApiError, match="no PriorityClass with name none was found") as caught:
        await client.create(PODS, pod(namespace, "two", priorityClassName="none"))
    assert caught.value.code == 403


async def test_a_pod_is_bound_once(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one"))
    await bind(client, namespace, "one", "node-7")
    bound = await client.get(PODS, "one", namespace)
    assert bound["spec"]["nodeName"] == "node-7"
    (condition,) = bound["status"]["conditions"]
    assert condition["type"] == "PodScheduled" and condition["status"] == "True"
    assert condition["lastTransitionTime"].endswith("Z")
    with pytest.raises(Conflict, match='already assigned to node "node-7"'):
        await bind(client, namespace, "one", "node-8")
    listed = await client.list(PODS, namespace, field_selector="spec.nodeName=node-7")
    assert len(listed["items"]) == 1
    assert not (await client.list(PODS, namespace, field_selector="spec.nodeName="))["items"]


async def test_a_pods_spec_stands_still(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod(namespace, "one"))
    made["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    with pytest.raises(Invalid, match="pod updates may not change fields other than"):
        await client.replace(PODS, made)
    patched = await client.patch(PODS, "one", namespace, {"metadata": {"labels": {"a": "b"}}})
    assert patched["metadata"]["labels"] == {"a": "b"}


async def test_status_and_spec_are_written_apart(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one"))
    body = {"status": {"phase": "Failed"}, "metadata": {"labels": {"by": "main"}}}
    assert (await client.patch(PODS, "one", namespace, body))["status"]["phase"] == "Pending"
    body = {"status": {"phase": "Running"}, "spec": {"nodeName": "stolen"}}
    patched = await client.patch(PODS, "one", namespace, body, subresource="status")
    assert patched["status"]["phase"] == "Running" and "nodeName" not in patched["spec"]


async def test_unbound_and_finished_pods_go_at_once(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "unbound"))
    await client.delete(PODS, "unbound", namespace)
    assert await gone(client, PODS, "unbound", namespace)
    await client.create(PODS, pod(namespace, "finished"))
    await bind(client, namespace, "finished")
    done = {"status": {"phase": "Succeeded"}}
    await client.patch(PODS, "finished", namespace, done, subresource="status")
    await client.delete(PODS, "finished", namespace)
    assert await gone(client, PODS, "finished", namespace)


async def test_a_bound_pod_waits_for_its_kubelet(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one", terminationGracePeriodSeconds=17))
    await bind(client, namespace, "one")
    version = (await client.get(PODS, "one", namespace))["metadata"]["resourceVersion"]
    watching = Watching(client, PODS, namespace, resource_version=version)
    marked = await client.delete(PODS, "one", namespace)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 17
    again = await client.delete(PODS, "one", namespace)
    assert again["metadata"] == marked["metadata"]
    with pytest.raises(Conflict):
        await client.delete(PODS, "one", namespace, grace_period_seconds=0, uid="another")
    uid = marked["metadata"]["uid"]
    await client.delete(PODS, "one", namespace, grace_period_seconds=0, uid=uid)
    assert await gone(client, PODS, "one", namespace)
    # As on the real one: the grace is seen to end before the pod goes.
    seen = [("MODIFIED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    assert await watching.names(3) == seen


async def test_eviction_deletes(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one"))
    await bind(client, namespace, "one")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "one", "namespace": namespace},
    }
    await client.create(PODS, eviction, subresource="eviction")
    left = await client.get(PODS, "one", namespace)
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_log_is_read_and_followed(client: Client, namespace: str, tmp_path: Path) -> None:
    obj = pod(namespace, "one")
    obj["metadata"]["annotations"] = {"local.volcano-elastic.io/log-dir": str(tmp_path)}
    await client.create(PODS, obj)
    assert [chunk async for chunk in client.logs("one", namespace)] == []
    await bind(client, namespace, "one")
    with pytest.raises(ApiError, match="is waiting to start") as caught:
        _ = [chunk async for chunk in client.logs("one", namespace)]
    assert caught.value.code == 400
    file = tmp_path / "main.log"
    file.write_text("first\nsecond\n")

    async def read(**params: str) -> str:
        url = f"{client.access.server}{PODS.path(namespace, 'one', 'log')}"
        async with client.session.get(url, params=params, headers=client.access.headers) as answer:
            return await answer.text()

    assert await read() == "first\nsecond\n"
    assert await read(tailLines="1") == "second\n"
    assert await read(tailLines="0") == ""
    assert "container other is not valid" in await read(container="other")
    chunks: list[bytes] = []

    async def follow() -> None:
        async for chunk in client.logs("one", namespace, follow=True):
            chunks.append(chunk)

    following = asyncio.create_task(follow())
    await until(lambda: asyncio.sleep(0, b"second" in b"".join(chunks)))
    with file.open("a") as log:
        log.write("third\n")
    await until(lambda: asyncio.sleep(0, b"third" in b"".join(chunks)))
    done = {"status": {"phase": "Succeeded"}}
    await client.patch(PODS, "one", namespace, done, subresource="status")
    await asyncio.wait_for(following, TIMEOUT)
    assert b"".join(chunks) == b"first\nsecond\nthird\n"


# Other kinds


async def test_nodes_keep_the_status_they_are_created_with(client: Client) -> None:
    node = {"metadata": {"name": "node-x"}, "status": {"capacity": {"cpu": "4"}}}
    made = await client.create(NODES, node)
    assert made["status"]["capacity"] == {"cpu": "4"}
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(NODES, "node-x", None, body, subresource="status")
    found = await client.get(NODES, "node-x")
    assert found["status"]["capacity"] and found["status"]["conditions"]


async def test_events_show_in_both_apis(client: Client, namespace: str) -> None:
    event = {
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "name": "one", "namespace": namespace},
        "reason": "Started",
        "message": "words",
    }
    await client.create(EVENTS, event)
    selected = await client.list(EVENTS, namespace, field_selector="involvedObject.name=one")
    assert [item["message"] for item in selected["items"]] == ["words"]
    new = Resource("events.k8s.io", "v1", "events", "Event")
    (shown,) = (await client.list(new, namespace))["items"]
    assert shown["note"] == "words" and shown["regarding"]["name"] == "one"
    assert shown["apiVersion"] == "events.k8s.io/v1"


async def test_services_get_an_address_and_keep_it(client: Client, namespace: str) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    meta = {"name": "one", "namespace": namespace}
    made = await client.create(SERVICES, {"metadata": meta, "spec": spec})
    assert made["spec"]["clusterIP"].startswith("10.96.")
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    put = await client.replace(SERVICES, {"metadata": meta, "spec": {**spec, "selector": {}}})
    assert put["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    headless = {"metadata": {**meta, "name": "two"}, "spec": {"clusterIP": "None"}}
    assert (await client.create(SERVICES, headless))["spec"]["clusterIP"] == "None"


# Custom resources


async def test_a_crd_is_served_at_once(client: Client, namespace: str, toys: Resource) -> None:
    crd = await client.get(CRDS, "toys.test.example.org")
    assert {one["type"]: one["status"] for one in crd["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    made = await client.create(toys, toy(namespace, "one", parts=[{"name": "a"}]))
    assert made["spec"]["replicas"] == 1 and made["spec"]["colour"] == "red"
    assert made["spec"]["parts"] == [{"name": "a", "count": 7}]
    assert made["metadata"]["generation"] == 1
    old = await client.get(OLD_TOYS, "one", namespace)
    assert old["apiVersion"] == "test.example.org/v1beta1"


async def test_unknown_fields_are_pruned_unless_kept(
    client: Client, namespace: str, toys: Resource
) -> None:
    obj = toy(namespace, "one", typo=1, free={"any": {"thing": 1}})
    made = await client.create(toys, obj)
    assert "typo" not in made["spec"] and made["spec"]["free"] == {"any": {"thing": 1}}
    with pytest.raises(ApiError, match=r'strict decoding error: unknown field "spec.typo"'):
        await client.request(
            "POST", toys.path(namespace), body=obj, params={"fieldValidation": "Strict"}
        )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"size": "big"}, 'spec.size: Invalid value: "string": spec.size in body must be of type'),
        ({"size": 0}, "spec.size in body should be greater than or equal to 1"),
        ({"size": 10}, "spec.size in body should be less than or equal to 9"),
        ({"size": None}, "spec.size: Required value"),
        ({"colour": "green"}, 'Unsupported value: "green": supported values: "red", "blue"'),
        ({"code": "A1"}, "spec.code in body should match '^[a-z]+$'"),
        ({"port": 1.5}, "spec.port in body must be of type integer or string"),
        ({"parts": [{"count": 1}]}, "spec.parts[0].name: Required value"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]: Duplicate value"),
    ],
)
async def test_a_wrong_custom_resource_is_refused_with_the_fields_path(
    client: Client, namespace: str, toys: Resource, spec: Object, expected: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(toys, toy(namespace, "one", **spec))
    assert 'Toy.test.example.org "one" is invalid: ' in caught.value.message
    assert expected in caught.value.message


async def test_generation_counts_changes_of_the_spec(
    client: Client, namespace: str, toys: Resource
) -> None:
    await client.create(toys, toy(namespace, "one"))

    async def generation(body: Object, subresource: str | None = None) -> int:
        patched = await client.patch(toys, "one", namespace, body, subresource=subresource)
        return int(patched["metadata"]["generation"])

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"replicas": 4}}, "status") == 1
    assert await generation({"spec": {"size": 4}}) == 2
    body = {"status": {"replicas": 5}, "metadata": {"labels": {"a": "c"}}, "spec": {"size": 5}}
    assert await generation(body, "status") == 2
    found = await client.get(toys, "one", namespace)
    assert found["metadata"]["labels"] == {"a": "b"} and found["spec"]["size"] == 4
    assert found["status"] == {"replicas": 5}
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.replace(toys, toy(namespace, "one"))


async def test_the_scale_subresource(client: Client, namespace: str, toys: Resource) -> None:
    await client.create(toys, toy(namespace, "one"))
    path = toys.path(namespace, "one", "scale")
    scale = await client.request("GET", path)
    assert scale["kind"] == "Scale" and scale["spec"] == {"replicas": 1}
    await client.request("PUT", path, body={**scale, "spec": {"replicas": 6}})
    assert (await client.get(toys, "one", namespace))["spec"]["replicas"] == 6
    merge = "application/merge-patch+json"
    body = {"spec": {"replicas": 2}}
    patched = await client.request("PATCH", path, body=body, content_type=merge)
    assert patched["spec"] == {"replicas": 2}


async def test_a_crd_takes_its_objects_with_it(client: Client) -> None:
    crd = toy_crd()
    crd["metadata"]["name"] = "boxes.test.example.org"
    crd["spec"]["names"] = {"plural": "boxes", "kind": "Box"}
    boxes = Resource("test.example.org", "v1", "boxes", "Box")
    await client.create(CRDS, crd)
    await client.create(boxes, {**toy("default", "one"), "kind": "Box"})
    await client.delete(CRDS, "boxes.test.example.org")
    await until(lambda: gone(client, CRDS, "boxes.test.example.org", None))
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await client.list(boxes, "default")


async def test_a_wrong_crd_is_refused(client: Client) -> None:
    crd = toy_crd()
    crd["metadata"]["name"] = "wrong"
    schema = {"type": "object", "properties": {"spec": {"type": "string", "pattern": "["}}}
    crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    with pytest.raises(Invalid) as caught:
        await client.create(CRDS, crd)
    assert "must be toys.test.example.org (plural.group)" in caught.value.message
    assert "openAPIV3Schema.properties[spec].pattern" in caught.value.message


async def test_tables_follow_printer_columns(
    client: Client, namespace: str, toys: Resource
) -> None:
    await client.create(toys, toy(namespace, "one"))
    conditions = [{"type": "Created"}, {"type": "Running"}]
    await client.patch(
        toys, "one", namespace, {"status": {"conditions": conditions}}, subresource="status"
    )
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    url = client.access.server + toys.path(namespace)
    async with client.session.get(url, headers=client.access.headers | accept) as answer:
        table = await answer.json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "State"]
    assert table["rows"][0]["cells"] == ["one", 3, "Running"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


# Bad requests


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"[]", 400),
        ("application/json", b'"x"', 400),
        ("application/json", b"", 400),
        ("application/json", b'{"metadata":7}', 400),
        ("application/json", b'{"metadata":{"name":7}}', 400),
        ("application/json", b'{"metadata":{"name":"x","labels":{"a":1}}}', 400),
        ("application/json", b'{"metadata":{"name":"x","ownerReferences":[7]}}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":7}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":{"containers":{}}}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":{"containers":[null]}}', 422),
        ("application/json", b'{"metadata":{"name":"x"},"spec":null}', 422),
        ("application/json", b'{"kind":"Node","metadata":{"name":"x"}}', 400),
        ("application/yaml", b"{a: [", 400),
        pytest.param("application/json", b"[" * 100_000, 400, id="deep"),
        ("application/vnd.kubernetes.protobuf", b"k8s\x00", 400),
        pytest.param("application/json", b" " * (4 * 1024 * 1024), 413, id="large"),
    ],
)
async def test_bad_bodies_are_the_clients_fault(
    client: Client, namespace: str, content_type: str, body: bytes, code: int
) -> None:
    url = client.access.server + PODS.path(namespace)
    headers = {"Content-Type": content_type}
    async with client.session.post(
        url, data=io.BytesIO(body), headers=client.access.headers | headers
    ) as answer:
        status = await answer.json()
        assert (answer.status, status["kind"], status["code"]) == (code, "Status", code), status


@pytest.mark.parametrize("patch_type", ["merge", "json", "strategic", "apply"])
@pytest.mark.parametrize(
    "body",
    [
        7,
        [7],
        [{"op": "add", "path": "x"}],
        [{"op": "replace", "path": "", "value": 7}],
        [{"op": "move", "path": "/spec"}],
        {"spec": 7},
        {"metadata": 7},
        {"metadata": {"ownerReferences": 7}},
        {"spec": {"containers": [7]}},
        {"spec": {"containers": [{"name": None}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": []}}}]}},
        {"spec": {"tolerations": {"a": 1}}},
        {"$setElementOrder/containers": 7, "spec": {"$retainKeys": 7, "volumes": 7}},
    ],
)
async def test_bad_patches_are_the_clients_fault(
    client: Client, namespace: str, patch_type: Any, body: Any
) -> None:
    await client.create(PODS, pod(namespace, "one"))
    with pytest.raises(ApiError) as caught:
        await client.patch(PODS, "one", namespace, body, patch_type=patch_type)
    assert 400 <= caught.value.code < 500, caught.value


async def test_unknown_paths_and_methods(client: Client, namespace: str) -> None:
    for path in ("/apis/none/v1/things", "/api/v1/namespaces/default/pods/a/none", "/openapi/v2"):
        with pytest.raises(NotFound):
            await client.request("GET", path)
    with pytest.raises(ApiError) as caught:
        await client.request("PUT", PODS.path(namespace), body={})
    assert caught.value.code == 405
