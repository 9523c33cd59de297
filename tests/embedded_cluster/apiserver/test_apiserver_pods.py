"""The API server's work for pods: defaults, priority, binding, grace, eviction, logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.embedded_cluster.apiserver.world import TIMEOUT, Watching, bind, gone, pod, until
from volcano_elastic.kube.client import ApiError, Client, Conflict, Invalid
from volcano_elastic.kube.resource import PODS, PRIORITYCLASSES, Object


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


@pytest.mark.parametrize(
    ("spec", "container", "place"),
    [
        ({"hostname": "Bad_Name"}, {}, "spec.hostname"),
        ({"nodeSelector": {"bad key!": "x"}}, {}, "spec.nodeSelector"),
        ({"activeDeadlineSeconds": 0}, {}, "spec.activeDeadlineSeconds"),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}, {}, "hostPath"),
        ({"volumes": [{"emptyDir": {}}] * 2}, {}, "spec.volumes[1].name: Required"),
        ({}, {"volumeMounts": [{"name": "v"}] * 2}, "volumeMounts[1].mountPath: Required"),
        ({}, {"resources": {"limits": {"gpus": "1"}}}, "resources.limits[gpus]"),
        ({}, {"livenessProbe": {"exec": {}, "httpGet": {"port": 1}}}, "livenessProbe.httpGet"),
        ({}, {"livenessProbe": {"periodSeconds": 3}}, "livenessProbe: Required"),
        ({}, {"ports": [{"containerPort": 70000}]}, "containerPort"),
        ({}, {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}, "fieldPath"),
        ({}, {"env": [{"name": "A", "value": "x", "valueFrom": {}}]}, "env[0].valueFrom"),
        ({}, {"volumeMounts": [{"name": "v", "mountPath": "/a"}] * 2}, "volumeMounts[1].mountPath"),
        ({}, {"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "../x"}]}, "subPath"),
    ],
)
async def test_what_the_real_server_refuses_in_a_pod_is_refused(
    client: Client, namespace: str, spec: Object, container: Object, place: str
) -> None:
    whole = {"volumes": [{"name": "v"}], **spec}
    whole["containers"] = [{"name": "main", "image": "image", **container}]
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, pod(namespace, "one", **whole))
    assert place in caught.value.message


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
    assert await read(limitBytes="8", tailLines="2") == "first\nse"
    assert await asyncio.wait_for(read(limitBytes="3", follow="true"), TIMEOUT) == "fir"
    for name, wrong in (("limitBytes", "0"), ("sinceSeconds", "0"), ("tailLines", "-1")):
        assert f"{name}: Invalid value: {wrong}" in await read(**{name: wrong})
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


async def test_following_ends_with_the_containers_run(
    client: Client, namespace: str, tmp_path: Path
) -> None:
    container = {"name": "before", "image": "image"}
    obj = pod(namespace, "one", initContainers=[container])
    obj["metadata"]["annotations"] = {"local.volcano-elastic.io/log-dir": str(tmp_path)}
    await client.create(PODS, obj)
    await bind(client, namespace, "one")

    async def say(restarts: int, init: Object, main: Object) -> None:
        common = {"image": "", "imageID": "", "ready": True}
        status = {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "before", "restartCount": 0, "state": init, **common}
            ],
            "containerStatuses": [
                {"name": "main", "restartCount": restarts, "state": main, **common}
            ],
        }
        await client.patch(PODS, "one", namespace, {"status": status}, subresource="status")

    async def follow(container: str) -> bytes:
        options = {"follow": True, "container": container}
        return b"".join([chunk async for chunk in client.logs("one", namespace, **options)])

    for name in ("before", "main"):
        (tmp_path / f"{name}.log").write_text(f"{name}\n")
    ended = {"terminated": {"exitCode": 0}}
    running: Object = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    await say(0, ended, running)
    assert await asyncio.wait_for(follow("before"), TIMEOUT) == b"before\n"
    following = asyncio.create_task(follow("main"))
    await asyncio.sleep(0.3)
    assert not following.done()
    await say(1, ended, running)
    assert await asyncio.wait_for(following, TIMEOUT) == b"main\n"


@pytest.mark.parametrize("option", ["sinceSeconds=5", "timestamps=true", "previous=true"])
async def test_logs_that_are_not_kept_are_refused(
    client: Client, namespace: str, option: str
) -> None:
    await client.create(PODS, pod(namespace, "one"))
    name, _, value = option.partition("=")
    with pytest.raises(ApiError, match=f"{name}: .*; ask without it") as caught:
        await client.request("GET", PODS.path(namespace, "one", "log"), params={name: value})
    assert caught.value.code == 400


@pytest.mark.parametrize("verb", ["exec", "attach", "portforward"])
async def test_what_needs_a_real_container_is_refused_in_words(
    client: Client, namespace: str, verb: str
) -> None:
    await client.create(PODS, pod(namespace, "one"))
    with pytest.raises(ApiError, match="processes of this machine") as caught:
        await client.request("POST", PODS.path(namespace, "one", verb))
    assert caught.value.code == 501


async def test_resize_changes_cpu_and_memory_alone(client: Client, namespace: str) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    container = {"name": "main", "image": "image", "resources": resources}
    made = await client.create(PODS, pod(namespace, "one", containers=[container]))
    more = {"requests": {"cpu": "2", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
    wanted = {"name": "main", "image": "other", "resources": more}
    body = {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [wanted]}}
    found = await client.patch(PODS, "one", namespace, body, subresource="resize")
    (resized,) = found["spec"]["containers"]
    assert (resized["resources"], resized["image"]) == (more, "image")
    assert found["metadata"].get("labels") == made["metadata"].get("labels")
    assert found["metadata"]["generation"] == made["metadata"]["generation"] + 1
    for given, why in (
        ({"limits": {"memory": "3Gi", "nvidia.com/gpu": "1"}}, "only cpu and memory"),
        ({"limits": {"cpu": "2", "memory": "3Gi"}}, "Pod QOS Class may not change"),
        ({"limits": {"cpu": "4"}}, "cannot be removed"),
    ):
        refused = {"spec": {"containers": [{**wanted, "resources": more | given}]}}
        with pytest.raises(Invalid, match=why):
            await client.patch(PODS, "one", namespace, refused, subresource="resize")
