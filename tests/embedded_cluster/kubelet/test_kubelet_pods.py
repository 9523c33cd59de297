"""Promises to pods beyond a running command: volumes, names, limits, faults."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from embedded_cluster.cluster import LocalCluster
from tests.embedded_cluster.kubelet.world import QUICK, World, cleared, dead, state_of
from tests.patience import eventually
from volcano_elastic.cli.main import main
from volcano_elastic.kube.resource import CONFIGMAPS, NODES, PODS, SECRETS, SERVICES

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

_FAULT = "local.volcano-elastic.io/fault"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        nodes=2, operator=False, scheduler=False, kubelet_arguments=QUICK
    ) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def world(cluster: LocalCluster) -> AsyncIterator[World]:
    async with cleared(cluster) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def namespaced(world: World) -> World:
    if "by: plain processes" in (world.cluster.logs / "kubelet.log").read_text():
        pytest.skip("this machine allows no mount namespaces")
    return world


def _data(kind: str, name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


async def test_volumes_are_where_the_pod_wants_them_and_nowhere_else(
    namespaced: World, tmp_path: Path
) -> None:
    world = namespaced
    await world.client.create(CONFIGMAPS, _data("ConfigMap", "conf", a="one"))
    await world.client.create(SECRETS, _data("Secret", "key", k="c2VjcmV0"))
    (tmp_path / "here").write_text("host")
    script = """
        cat /config/a /secret/k /on/the/host/here
        echo more > /scratch/file && cat /scratch/file /other/file
        stat -f -c %T /dev/shm
        ls -A /dev/shm; touch /dev/shm/mine
        touch /config/new 2>/dev/null || echo read-only
    """
    pod = await world.create(
        "p",
        "sh",
        "-ec",
        script,
        volumes=[
            {"name": "config", "configMap": {"name": "conf"}},
            {"name": "secret", "secret": {"secretName": "key"}},
            {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
        volumeMounts=[
            {"name": "config", "mountPath": "/config"},
            {"name": "secret", "mountPath": "/secret"},
            {"name": "host", "mountPath": "/on/the/host", "readOnly": True},
            {"name": "disk", "mountPath": "/scratch"},
            {"name": "disk", "mountPath": "/other"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    )
    pod = await world.phase("p", "Succeeded")
    assert world.log(pod) == "onesecrethost" + "more\nmore\ntmpfs\nread-only\n"
    for path in ("/config", "/scratch", "/on/the", "/dev/shm/mine"):
        assert not Path(path).exists()
    uid = pod["metadata"]["uid"]
    places = [*Path("/dev/shm").glob(f"*/{uid}"), *world.cluster.pods_folder.glob(f"*{uid}/vol*")]
    assert len(places) == 2
    await world.client.delete(PODS, "p", "default")
    await world.gone("p")
    deadline = time.monotonic() + 120
    while any(place.exists() for place in places):
        assert time.monotonic() < deadline, "its volumes go with the pod"
        await asyncio.sleep(0.02)


async def test_a_volume_whose_source_is_missing_is_waited_for(namespaced: World) -> None:
    world = namespaced
    await world.create(
        "p",
        "cat",
        "/config/a",
        volumes=[{"name": "config", "configMap": {"name": "late"}}],
        volumeMounts=[{"name": "config", "mountPath": "/config"}],
    )
    await world.told("FailedMount", "ConfigMap 'late' not found")
    pod = await world.client.get(PODS, "p", "default")
    assert state_of(pod, "waiting")["reason"] == "ContainerCreating"
    await world.client.create(CONFIGMAPS, _data("ConfigMap", "late", a="there"))
    assert world.log(await world.phase("p", "Succeeded")) == "there"


async def test_unmodified_programs_find_services_by_name(namespaced: World) -> None:
    world = namespaced
    server = "import http.server, os; http.server.HTTPServer((os.environ['IP'], 8085), http.server.SimpleHTTPRequestHandler).serve_forever()"  # noqa: E501
    ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    client = """
import socket, time, urllib.request
print(socket.gethostname(), flush=True)
for name in ("web", "web.default", "web.default.svc", "web.default.svc.cluster.local"):
    while True:
        try:
            status = urllib.request.urlopen(f"http://{name}:8085/").status
            break
        except OSError:
            time.sleep(0.05)
    print(name, status, flush=True)
"""
    await world.create("p", "python", "-c", client)
    await world.logged("p", "p\n")
    # Only now: names follow a cluster that changes.
    spec = {"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 8085}]}
    meta = {"name": "web", "namespace": "default"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
    await world.client.create(SERVICES, service)
    await world.create("server", "python", "-c", server, env=[ip])
    log = world.log(await world.phase("p", "Succeeded"))
    assert [line.split()[-1] for line in log.splitlines()] == ["p", "200", "200", "200", "200"]


async def test_a_pod_with_probes_and_hooks_runs_without_them_and_is_told_so(world: World) -> None:
    never = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    await world.create(
        "p", "sleep", "60", readinessProbe=never, livenessProbe=never, lifecycle={"preStop": never}
    )
    await world.told("NotServed", "livenessProbe, readinessProbe, lifecycle.preStop")
    await world.phase("p", "Running")
    await world.until("p", _is_ready)


async def test_a_container_says_its_last_words(namespaced: World) -> None:
    world = namespaced
    await world.create("file", "sh", "-c", "echo done > /dev/termination-log")
    assert state_of(await world.phase("file", "Succeeded"))["message"] == "done\n"
    policy = "FallbackToLogsOnError"
    await world.create("log", "sh", "-c", "echo it hurts; exit 1", terminationMessagePolicy=policy)
    assert state_of(await world.phase("log", "Failed"))["message"] == "it hurts\n"
    await world.create("own", "sh", "-c", "echo x > /t/m", terminationMessagePath="/t/m")
    assert state_of(await world.phase("own", "Succeeded"))["message"] == "x\n"
    assert not Path("/dev/termination-log").exists()


async def test_what_the_machine_cannot_hold_now_is_tried_again_and_told(world: World) -> None:
    """A full disk does so; root, whom these tests may run as, is refused little else."""
    await world.create("p", "no-such-program", restartPolicy="Always")
    pod = await world.until("p", lambda pod: pod.get("status", {}).get("containerStatuses"))
    log = Path(pod["metadata"]["annotations"]["local.volcano-elastic.io/log-dir"], "main.log")

    def restarted(times: int) -> Any:
        return lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= times

    await world.until("p", restarted(1))
    log.unlink()
    log.mkdir()
    await world.until("p", restarted(2))
    root = log.with_name("root")
    root.rmdir()
    root.write_text("")
    pod = await world.until("p", lambda pod: "File exists" in str(pod["status"]))
    assert state_of(pod, "waiting")["reason"] == "CreateContainerConfigError"
    root.unlink()
    await world.until("p", restarted(3))
    await world.client.delete(PODS, "p", "default")
    await world.gone("p")


async def test_a_deadline_ends_a_pod(world: World) -> None:
    await world.create("p", "sleep", "60", activeDeadlineSeconds=1)
    pod = await world.phase("p", "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert state_of(pod)["exitCode"] == 143


async def test_what_a_killed_shim_leaves_is_found(world: World) -> None:
    await world.create(
        "p",
        "python",
        "-c",
        "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)",
    )
    pod = await world.logged("p", "\n")
    shim, main = map(int, world.log(pod).split())
    os.kill(shim, signal.SIGKILL)
    pod = await world.phase("p", "Failed")
    assert state_of(pod)["exitCode"] == 137
    await dead([main])


async def _annotate(world: World, name: str, value: str | None) -> None:
    body = {"metadata": {"annotations": {_FAULT: value}}}
    await world.client.patch(PODS, name, "default", body)


async def test_faults_on_request_happen_once(world: World) -> None:
    await world.create("p", "sleep", "60", restartPolicy="Always")
    await world.phase("p", "Running")
    await _annotate(world, "p", "oom/main")
    pod = await world.until("p", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"])
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("OOMKilled", 137)
    await world.until("p", lambda pod: _FAULT not in pod["metadata"]["annotations"])
    await _annotate(world, "p", "evict")
    pod = await world.phase("p", "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    await _annotate(world, "p", "nonsense")
    await world.told("UnknownFault", "nonsense")


async def _cli(world: World, *words: str) -> Result:
    command = ["local", "fault", *words, "--kubeconfig", str(world.cluster.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_the_command_line_asks_for_faults_where_somebody_obeys(world: World) -> None:
    await world.create("p", "sleep", "60")
    await world.phase("p", "Running")
    unknown = await _cli(world, "kill", "p", "-c", "other")
    assert unknown.exit_code == 2 and "has no container other: main" in unknown.output
    missing = await _cli(world, "node-down", "node-9")
    assert missing.exit_code == 2 and "there is no node node-9" in missing.output
    meta = {"name": "real"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}
    await world.client.create(NODES, node)
    real = await _cli(world, "node-down", "real")
    await world.client.delete(NODES, "real")
    assert real.exit_code == 2 and "no embedded kubelet would obey" in real.output
    assert (await _cli(world, "kill", "p")).exit_code == 0
    assert state_of(await world.phase("p", "Failed"))["exitCode"] == 137


async def test_a_frozen_pod_is_silent_until_it_thaws(world: World) -> None:
    code = "import time\nfor i in range(10**6): print(i, flush=True); time.sleep(0.01)"
    await world.create("p", sys.executable, "-c", code)
    pod = await world.logged("p", "10\n")
    await _annotate(world, "p", "freeze")
    deadline = time.monotonic() + 120
    length = -1
    while length != (length := len(world.log(pod))):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
    assert (await world.client.get(PODS, "p", "default"))["status"]["phase"] == "Running"
    await _annotate(world, "p", None)
    await world.until("p", lambda pod: len(world.log(pod)) > length)


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])


async def test_a_node_that_fails_is_marked_loses_its_pods_and_comes_back(world: World) -> None:
    async def node(down: bool) -> None:
        body = {"metadata": {"annotations": {_FAULT: "down" if down else None}}}
        await world.client.patch(NODES, "node-1", None, body)

    async def until(holds: Any) -> None:
        async def look() -> bool:
            return bool(holds(await world.client.get(NODES, "node-1")))

        await eventually(look, "node-1 is as expected")

    def ready(node: dict[str, Any]) -> str:
        return str(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))

    leaves = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    await world.create("stays", "sh", "-c", "echo $$$$; sleep 60", restartPolicy="Always")
    await world.create("leaves", "sleep", "60", tolerations=[leaves])
    pod = await world.logged("stays", "\n")
    await world.phase("leaves", "Running")
    try:
        await node(down=True)
        await dead([int(world.log(pod))])
        assert (await world.client.get(PODS, "stays", "default"))["status"]["phase"] == "Running"
        await until(
            lambda node: ready(node) == "Unknown" and len(node["spec"].get("taints", ())) == 2
        )
        pod = await world.until("leaves", lambda pod: pod["metadata"].get("deletionTimestamp"))
        reasons = [c.get("reason") for c in pod["status"]["conditions"]]
        assert "DeletionByTaintManager" in reasons
        pod = await world.until("stays", lambda pod: not _is_ready(pod))
        assert not pod["metadata"].get("deletionTimestamp")
    finally:
        await node(down=False)
    await until(lambda node: ready(node) == "True" and not node["spec"].get("taints"))
    await world.gone("leaves")
    pod = await world.until(
        "stays", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
    )
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("Unknown", 255)


async def test_a_node_that_is_down_for_a_moment_begins_its_pods_anew(world: World) -> None:
    script = "echo $$$$; trap '' TERM; sleep 60"
    await world.create("p", "sh", "-c", script, restartPolicy="Always")
    pod = await world.logged("p", "\n")
    for fault in ("down", None):
        body = {"metadata": {"annotations": {_FAULT: fault}}}
        await world.client.patch(NODES, "node-1", None, body)
    await dead([int(world.log(pod).split()[0])])
    pod = await world.until(
        "p", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
    )
    assert state_of(pod, "running") and _is_ready(pod)
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("Unknown", 255)


async def test_a_partitioned_nodes_pod_goes_on_beside_its_successor_until_the_node_is_back(
    world: World,
) -> None:
    async def node(kind: str | None) -> None:
        body = {"metadata": {"annotations": {_FAULT: kind}}}
        await world.client.patch(NODES, "node-1", None, body)

    async def goes_on(log: Path) -> None:
        deadline, length = time.monotonic() + 120, log.stat().st_size
        while log.stat().st_size == length:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    code = "import os, time\nprint(os.getpid(), flush=True)\nwhile not time.sleep(0.01): print('.')"
    await world.create("p", sys.executable, "-uc", code)
    pod = await world.logged("p", "\n")
    log = Path(pod["metadata"]["annotations"]["local.volcano-elastic.io/log-dir"], "main.log")
    process = int(log.read_text().split()[0])
    try:
        await node("partitioned")
        await world.until("p", lambda pod: not _is_ready(pod))
        await goes_on(log)
        await world.client.delete(PODS, "p", "default", grace_period_seconds=0)
        await world.gone("p")
        await world.create("p", "sleep", "60", nodeName="node-2")
        successor = await world.phase("p", "Running")
        assert successor["status"]["podIP"] != pod["status"]["podIP"]
        await node("frozen")
        state = Path(f"/proc/{process}/stat")
        deadline = time.monotonic() + 120
        while state.read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await node("partitioned")
        await goes_on(log)
    finally:
        await node(None)
    await dead([process])
    now = await world.client.get(PODS, "p", "default")
    assert now["metadata"]["uid"] == successor["metadata"]["uid"]
    assert now["status"]["phase"] == "Running"


async def test_a_partition_that_heals_leaves_a_pod_as_it_was(world: World) -> None:
    await world.create("p", "sleep", "60")
    before = await world.phase("p", "Running")
    for fault in ("partitioned", None):
        body = {"metadata": {"annotations": {_FAULT: fault}}}
        await world.client.patch(NODES, "node-1", None, body)
        await world.until("p", lambda pod, fault=fault: _is_ready(pod) == (fault is None))
    after = await world.client.get(PODS, "p", "default")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
