"""A virtual node's promises to a pod, with real processes over a real API server."""

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

from embedded_cluster.cluster import LocalCluster
from embedded_cluster.kubelet.fake import FakePods
from tests.embedded_cluster.kubelet.world import QUICK, World, cleared, dead, state_of
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import CONFIGMAPS, NODES, PODS, SECRETS, SERVICES

# One cluster for all of them; each removes what it made.
pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        nodes=2, gpus_per_node=3, operator=False, scheduler=False, kubelet_arguments=QUICK
    ) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain_cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        nodes=1, operator=False, scheduler=False, kubelet_arguments=(*QUICK, "--plain")
    ) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def world(cluster: LocalCluster) -> AsyncIterator[World]:
    async with cleared(cluster) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module", params=["as allowed", "plain"])
async def any_world(
    request: pytest.FixtureRequest, cluster: LocalCluster, plain_cluster: LocalCluster
) -> AsyncIterator[World]:
    """With all that this machine allows, and as a plain process tree."""
    async with cleared(plain_cluster if request.param == "plain" else cluster) as world:
        yield world


_HUNGRY = """
import time
held = []
for _ in range(60):
    held.append(bytearray(20 << 20))
    time.sleep(0.05)
time.sleep(60)
"""

# A child in the same group, one in a session of its own, as torchrun makes its workers, and an
# orphan that has even forgotten its environment.
_FAMILY = """
import subprocess, sys, time
ours = subprocess.Popen(["sleep", "60"])
own = subprocess.Popen(["sleep", "60"], start_new_session=True)
script = "setsid sleep 60 > /dev/null 2>&1 & echo $!"
orphan = subprocess.check_output(["sh", "-c", script], env={}).decode().strip()
print("pids", ours.pid, own.pid, orphan, flush=True)
time.sleep(float(sys.argv[1]))
"""


def _family_of(log: str) -> list[int]:
    line = next(line for line in log.splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


async def test_nodes_are_registered_with_their_gpus(world: World) -> None:
    nodes = (await world.client.list(NODES))["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2"]
    for node in nodes:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "3"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == node["metadata"]["name"]


async def test_a_pod_runs_logs_and_succeeds(world: World) -> None:
    code = "import sys, os; print('out', sys.executable); print('err', file=sys.stderr)"
    await world.create("p", "python", "-c", code)
    pod = await world.phase("p", "Succeeded")
    assert f"out {sys.executable}\n" in world.log(pod) and "err\n" in world.log(pod)
    assert state_of(pod)["exitCode"] == 0 and state_of(pod)["reason"] == "Completed"
    assert state_of(pod)["startedAt"] <= state_of(pod)["finishedAt"]
    assert pod["status"]["podIP"].startswith("127.") and pod["status"]["hostIP"] == "127.0.0.1"
    served = b"".join([chunk async for chunk in world.client.logs("p", "default")])
    assert served.decode() == world.log(pod)


async def test_what_holds_containers_is_said_and_so(any_world: World) -> None:
    await any_world.create("p", "readlink", "/proc/self/ns/mnt")
    found = any_world.log(await any_world.phase("p", "Succeeded")).strip()
    apart = found != os.readlink("/proc/self/ns/mnt")
    log = (any_world.cluster.logs / "kubelet.log").read_text()
    assert ("containers are held by: mount namespaces" in log) == apart
    assert ("containers are held by: plain processes" in log) != apart
    assert not (apart and "--plain" in any_world.arguments())


async def test_exit_codes_signals_and_missing_commands_are_told(world: World) -> None:
    await world.create("code", "sh", "-c", "exit 3")
    await world.create("signal", "sh", "-c", "kill -9 $$$$")
    await world.create("missing", "no-such-program", "--flag")
    await world.create("no-command")
    await world.create("no-directory", "true", workingDir="/no/such/folder")
    assert state_of(await world.phase("code", "Failed"))["exitCode"] == 3
    assert state_of(await world.phase("signal", "Failed"))["exitCode"] == 137
    for name, what in (
        ("missing", "'no-such-program'"),
        ("no-command", "expected a command"),
        ("no-directory", "'/no/such/folder'"),
    ):
        pod = await world.phase(name, "Failed")
        assert state_of(pod)["exitCode"] == 127 and state_of(pod)["reason"] == "StartError"
        assert what in state_of(pod)["message"]
        assert what in world.log(pod)


async def test_environment_arguments_and_service_names(any_world: World) -> None:
    world = any_world
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job-worker-0", "namespace": "default"},
        "spec": {"clusterIP": "None", "selector": {"app": "job-worker-0"}, "ports": [{"port": 1}]},
    }
    await world.client.create(SERVICES, service)
    config = {"apiVersion": "v1", "metadata": {"name": "conf", "namespace": "default"}}
    await world.client.create(CONFIGMAPS, config | {"kind": "ConfigMap", "data": {"A": "a"}})
    await world.client.create(SECRETS, config | {"kind": "Secret", "data": {"B": "Yg=="}})
    script = 'echo "$PEER|$OWN_NAME|$OWN_IP|$A|$B|$HOSTNAME"; echo "$0 $1"; echo $OMP_WAIT_POLICY'
    env = [
        {"name": "PEER", "value": "job-worker-0:23456"},
        {"name": "OWN_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OWN_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    sources = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "conf"}}]
    await world.create("p", "sh", "-c", script, args=["zero", "$(PEER)"], env=env, envFrom=sources)
    pod = await world.phase("p", "Succeeded")
    # The peer's address is known before the peer is; without namespaces it takes the name's place.
    await world.create("job-worker-0", "sleep", "60")
    address = (await world.phase("job-worker-0", "Running"))["status"]["podIP"]
    own = pod["status"]["podIP"]
    assert address != own
    peer = address if "--plain" in world.arguments() else "job-worker-0"
    assert world.log(pod) == f"{peer}:23456|p|{own}|a|b|p\nzero {peer}:23456\nPASSIVE\n"


async def test_init_containers_run_in_order_before_the_others(world: World) -> None:
    def init(name: str, script: str) -> dict[str, Any]:
        return {"name": name, "image": "any", "command": ["sh", "-c", script]}

    await world.create(
        "p",
        "sh",
        "-c",
        "date +%s%N",
        initContainers=[init("one", "sleep 0.3; date +%s%N"), init("two", "date +%s%N")],
    )
    pod = await world.phase("p", "Succeeded")
    moments = [int(world.log(pod, name)) for name in ("one", "two", "main")]
    assert moments == sorted(moments)
    await world.create("q", "true", initContainers=[init("bad", "exit 4")])
    pod = await world.phase("q", "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert "waiting" in pod["status"]["containerStatuses"][0]["state"]


async def test_restart_policy_on_failure_tries_until_success(world: World, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.write_text("")
    script = f"echo again; test $(wc -l < {seen}) = 2 && exit 0; echo >> {seen}; exit 5"
    await world.create("p", "sh", "-c", script, restartPolicy="OnFailure")
    pod = await world.until("p", lambda pod: "CrashLoopBackOff" in str(pod.get("status")))
    assert pod["status"]["phase"] == "Running"
    pod = await world.phase("p", "Succeeded")
    status = pod["status"]["containerStatuses"][0]
    assert status["restartCount"] == 2
    assert status["lastState"]["terminated"]["exitCode"] == 5
    assert world.log(pod) == "again\n" * 3


async def test_a_volume_that_a_plain_process_cant_have_is_refused_in_words(
    plain_cluster: LocalCluster,
) -> None:
    async with cleared(plain_cluster) as world:
        await _refused(world)


async def test_a_plain_container_is_told_where_its_last_words_go(
    plain_cluster: LocalCluster,
) -> None:
    async with cleared(plain_cluster) as world:
        await world.create("p", "sh", "-c", 'echo done > "$VOLCANO_ELASTIC_TERMINATION_LOG"')
        assert state_of(await world.phase("p", "Succeeded"))["message"] == "done\n"


async def _refused(world: World) -> None:
    await world.create(
        "p",
        "true",
        volumes=[{"name": "v", "emptyDir": {}}],
        volumeMounts=[{"name": "v", "mountPath": "/data"}],
    )
    pod = await world.until("p", lambda pod: "CreateContainerConfigError" in str(pod))
    assert "plain processes" in state_of(pod, "waiting")["message"]
    await world.told("Failed", "plain processes")


async def test_deletion_is_sigterm_to_the_main_process_only(world: World) -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "def leave(*_):\n"
        "    print('child', child.poll(), flush=True); sys.exit(7)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('up', child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    await world.create("p", "python", "-c", script)
    pod = await world.logged("p", "up")
    child = int(world.log(pod).split()[1])
    await world.client.delete(PODS, "p", "default", grace_period_seconds=20)
    await world.gone("p")
    assert "child None" in world.log(pod), "the child was alive when the main process was told"
    await dead([child])


async def test_deletion_kills_after_the_grace_period(world: World) -> None:
    await world.create("p", "sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done")
    await world.logged("p", "up")
    begin = time.monotonic()
    await world.client.delete(PODS, "p", "default", grace_period_seconds=1)
    await world.gone("p")
    assert time.monotonic() - begin > 0.9, "not before its grace was over"


async def test_a_pod_removed_by_force_leaves_no_process(any_world: World) -> None:
    world = any_world
    await world.create("p", "python", "-c", _FAMILY, args=["60"])
    pod = await world.logged("p", "pids")
    await world.client.delete(PODS, "p", "default", grace_period_seconds=0)
    await dead(_family_of(world.log(pod)))


async def test_what_a_main_process_leaves_behind_is_killed(any_world: World) -> None:
    world = any_world
    await world.create("p", "python", "-c", _FAMILY, args=["0"])
    pod = await world.phase("p", "Succeeded")
    await dead(_family_of(world.log(pod)))


async def test_a_container_beyond_its_memory_is_killed_and_told_so(any_world: World) -> None:
    limits = {"limits": {"memory": "100Mi"}}
    await any_world.create("p", "python", "-c", _HUNGRY, resources=limits)
    pod = await any_world.phase("p", "Failed")
    assert state_of(pod)["reason"] == "OOMKilled" and state_of(pod)["exitCode"] == 137
    await any_world.create("modest", "python", "-c", "x = bytearray(30 << 20)", resources=limits)
    await any_world.phase("modest", "Succeeded")


async def test_a_container_that_ends_leaves_its_neighbours_alone(world: World) -> None:
    # The one's name begins with the other's.
    neighbour = {"name": "main-2", "image": "any", "command": ["sh", "-c", "sleep 1; exit 6"]}
    quick = {"name": "main", "image": "any", "command": ["true"]}
    await world.create("p", containers=[quick, neighbour])
    pod = await world.phase("p", "Failed")
    codes = [s["state"]["terminated"]["exitCode"] for s in pod["status"]["containerStatuses"]]
    assert codes == [0, 6]


async def test_a_recreated_pod_has_its_address_again(world: World) -> None:
    await world.create("p", "sleep", "60")
    first = await world.phase("p", "Running")
    await world.client.delete(PODS, "p", "default", grace_period_seconds=5)
    await world.gone("p")
    await world.create("p", "sleep", "60")
    second = await world.phase("p", "Running")
    assert first["status"]["podIP"] == second["status"]["podIP"]
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_a_killed_kubelet_takes_its_processes_along_and_its_successor_goes_on(
    world: World,
) -> None:
    await world.create("always", "python", "-c", _FAMILY, args=["60"], restartPolicy="Always")
    await world.create("never", "python", "-c", _FAMILY, args=["60"])
    before = await world.logged("always", "pids")
    never = await world.logged("never", "pids")
    pids = _family_of(world.log(before)) + _family_of(world.log(never))
    os.kill(world.cluster.processes["kubelet"], signal.SIGKILL)
    await dead(pids)
    pod = await world.until(
        "always",
        lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1,
    )
    assert pod["status"]["podIP"] == before["status"]["podIP"]
    assert state_of(await world.phase("never", "Failed"))["exitCode"] == 255


async def test_fake_pods_run_end_and_go_without_a_process() -> None:
    cluster = LocalCluster(
        nodes=3, gpus_per_node=8, kubelet="fake", operator=False, scheduler=False
    )
    async with asyncio.timeout(120), cluster, cluster.client() as client:
        world = World(cluster, client)
        local = "local.volcano-elastic.io"
        notes = {f"{local}/exit-code": "3", f"{local}/run-seconds": "0.5"}
        await world.create("ends", "any", metadata={"annotations": notes})
        await world.create("stays", "any")
        assert (await world.phase("stays", "Running"))["status"]["podIP"]
        assert state_of(await world.phase("ends", "Failed"))["exitCode"] == 3
        await client.delete(PODS, "stays", "default")
        await world.gone("stays")
        await world.create("slow", "any", metadata={"annotations": {f"{local}/leave-seconds": "1"}})
        await world.phase("slow", "Running")
        begin = time.monotonic()
        await client.delete(PODS, "slow", "default")
        await world.gone("slow")
        assert time.monotonic() - begin >= 1
        await asyncio.gather(*(world.create(f"p-{index}", "any") for index in range(200)))
        while True:
            pods = (await client.list(PODS, "default"))["items"]
            if sum(pod.get("status", {}).get("phase") == "Running" for pod in pods) == 200:
                break
            await asyncio.sleep(0.05)


async def test_fake_pods_that_were_there_before_the_kubelet_run_too() -> None:
    """Though nothing about them changes any more."""
    cluster = LocalCluster(kubelet="none", operator=False, scheduler=False)
    async with asyncio.timeout(120), cluster, cluster.client() as client:
        world = World(cluster, client)
        await world.create("early", "any")
        pods = Informer(client, PODS)
        watching = asyncio.create_task(pods.run())
        await pods.synced.wait()
        walking = asyncio.create_task(FakePods(client, pods, frozenset({"node-1"})).run())
        try:
            await world.phase("early", "Running")
        finally:
            for task in (walking, watching):
                task.cancel()
            await asyncio.gather(walking, watching, return_exceptions=True)
