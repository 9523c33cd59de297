"""What a pod on a virtual node may rely on: pure parts first, then real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from volcano_elastic.kube.client import Client, NotFound
from volcano_elastic.kube.resource import CONFIGMAPS, EVENTS, NODES, PODS, SECRETS, SERVICES
from volcano_elastic.local.cluster import LocalCluster
from volcano_elastic.local.kubelet.address import (
    AddressBook,
    resolve_value,
    split_service_name,
)
from volcano_elastic.local.kubelet.environment import ConfigError, environment, expand
from volcano_elastic.local.kubelet.pod_status import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    phase_of,
    pod_status,
    restart_delay,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


# Pure


def test_a_pod_keeps_its_address_and_no_two_share_one() -> None:
    one, other = AddressBook(), AddressBook()
    names = [f"job-worker-{index}" for index in range(2000)]
    addresses = [one.of("default", name) for name in names]
    assert len(set(addresses)) == len(names)
    assert all(address.startswith("127.") for address in addresses)
    assert other.of("default", "job-worker-7") == one.of("default", "job-worker-7")
    assert one.of("default", "a") != one.of("other", "a")


def test_an_adopted_address_is_not_given_to_another() -> None:
    natural = AddressBook().of("default", "late")
    book = AddressBook()
    book.adopt("default", "early", natural)
    assert book.of("default", "early") == natural
    assert book.of("default", "late") != natural


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("job-worker-0", "127.16.0.9"),
        ("job-worker-0:23456", "127.16.0.9:23456"),
        ("job-worker-0:port", "job-worker-0:port"),
        ("default/job-worker-0", "default/job-worker-0"),
        ("other", "other"),
        ("", ""),
        (":80", ":80"),
    ],
)
def test_service_names_in_values_become_addresses(value: str, expected: str) -> None:
    assert resolve_value(value, {"job-worker-0": "127.16.0.9"}.get) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("web", ("ns", "web")),
        ("web.other", ("other", "web")),
        ("web.other.svc", ("other", "web")),
        ("web.other.svc.cluster.local", ("other", "web")),
        ("web.other.com", None),
        ("a b", None),
    ],
)
def test_service_names_carry_their_namespace(host: str, expected: tuple[str, str] | None) -> None:
    assert split_service_name(host, "ns") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--x=$(A)", "--x=1"),
        ("$(A)$(B)", "1$(B)"),
        ("$$(A)", "$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
    ],
)
def test_references_expand_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def _bare_pod(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u-1",
            "labels": {"role": "worker"},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **spec},
        "status": {"podIP": "127.16.0.1", "hostIP": "127.0.0.1"},
    }


def test_environment_takes_values_fields_config_maps_and_secrets() -> None:
    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    container = {
        "name": "main",
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "conf"}}],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(C_x)"},
            {"name": "NAME", "valueFrom": field("metadata.name")},
            {"name": "UID", "valueFrom": field("metadata.uid")},
            {"name": "IP", "valueFrom": field("status.podIP")},
            {"name": "NODE", "valueFrom": field("spec.nodeName")},
            {"name": "ROLE", "valueFrom": field("metadata.labels['role']")},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {
                "name": "NONE",
                "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}},
            },
        ],
    }
    sources = {
        ("ConfigMap", "conf"): {"data": {"x": "2"}},
        ("Secret", "s"): {"data": {"k": "c2VjcmV0"}},
    }
    # "p" is a service too, but the pod's own name has to stay a name.
    found = environment(container, _bare_pod(), sources, {"p": "127.9.9.9"}.get)
    assert found == {
        "C_x": "2",
        "A": "1",
        "B": "1-2",
        "NAME": "p",
        "UID": "u-1",
        "IP": "127.16.0.1",
        "NODE": "node-1",
        "ROLE": "worker",
        "KEY": "secret",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, "ConfigMap 'gone' not found"),
        ({"fieldRef": {"fieldPath": "spec.hostname"}}, "found 'spec.hostname'"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "found resourceFieldRef"),
    ],
)
def test_what_the_environment_lacks_is_named(entry: dict[str, Any], message: str) -> None:
    container = {"name": "main", "env": [{"name": "X", "valueFrom": entry}]}
    with pytest.raises(ConfigError, match=message):
        environment(container, _bare_pod(), {}, lambda host: None)


def _ended(code: int) -> ContainerRecord:
    return ContainerRecord("c", state=Terminated(code, "", _NOW, _NOW))


_RUNNING = ContainerRecord("c", state=Running(_NOW))
_WAITING = ContainerRecord("c", state=Waiting())
_CRASHED = ContainerRecord(
    "c", state=Waiting("CrashLoopBackOff"), last=Terminated(1, "Error", _NOW, _NOW)
)


@pytest.mark.parametrize(
    ("records", "policy", "expected"),
    [
        ([_WAITING], "Always", "Pending"),
        ([_WAITING, _RUNNING], "Always", "Pending"),
        ([_RUNNING], "Never", "Running"),
        ([_RUNNING, _ended(1)], "Never", "Running"),
        ([_CRASHED], "OnFailure", "Running"),
        ([_ended(0)], "Always", "Running"),
        ([_ended(0), _ended(0)], "OnFailure", "Succeeded"),
        ([_ended(0), _ended(3)], "Never", "Failed"),
        ([_ended(0), _ended(3)], "OnFailure", "Running"),
    ],
)
def test_a_pods_phase_follows_from_its_containers(
    records: list[ContainerRecord], policy: str, expected: str
) -> None:
    assert phase_of([], records, policy) == expected


def test_a_stopped_pod_is_over_whatever_its_policy() -> None:
    assert phase_of([], [_ended(0)], "Always", stopped=True) == "Succeeded"
    assert phase_of([], [_ended(143)], "Always", stopped=True) == "Failed"
    assert phase_of([], [_CRASHED], "OnFailure", stopped=True) == "Failed"
    assert phase_of([_ended(1)], [_WAITING], "Never") == "Failed"
    assert phase_of([_RUNNING], [_WAITING], "Never") == "Pending"


def test_back_off_doubles_to_its_cap_and_respects_the_policy() -> None:
    assert [restart_delay("Always", 0, n) for n in (1, 2, 3, 6, 99)] == [1, 2, 4, 30, 30]
    assert restart_delay("Never", 1, 1) is None
    assert restart_delay("OnFailure", 0, 1) is None
    assert restart_delay("OnFailure", 1, 1) == 1


def test_conditions_keep_their_time_and_those_of_others() -> None:
    pod = _bare_pod()
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    later = _NOW + timedelta(seconds=5)

    def status(pod: dict[str, Any], now: datetime) -> dict[str, Any]:
        return pod_status(pod, [], [_RUNNING], address="127.16.0.1", started=_NOW, now=now)

    first = status(pod, _NOW)
    assert status(pod | {"status": first}, later) == first
    by_type = {condition["type"]: condition["status"] for condition in first["conditions"]}
    assert by_type == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready", "DisruptionTarget"), "True"
    )


# Real processes


class World:
    """A cluster of an API server and a kubelet, whose pods are bound as they are created."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client

    async def create(self, name: str, *command: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "any", "command": list(command)}
        for key in ("env", "envFrom", "args", "volumeMounts", "workingDir"):
            if key in spec:
                container[key] = spec.pop(key)
        metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
        metadata |= spec.pop("metadata", {})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "nodeName": "node-1",
                "restartPolicy": "Never",
                "containers": [container],
                **spec,
            },
        }
        return await self.client.create(PODS, pod)

    async def until(
        self, name: str, holds: Callable[[dict[str, Any]], object], seconds: float = 15
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            pod = await self.client.get(PODS, name, "default")
            if holds(pod):
                return pod
            if time.monotonic() > deadline:
                log = (self.cluster.logs / "kubelet.log").read_text()
                pytest.fail(f"not within {seconds} s: {pod.get('status')}\n{log[-3000:]}")
            await asyncio.sleep(0.02)

    async def phase(self, name: str, phase: str) -> dict[str, Any]:
        return await self.until(name, lambda pod: pod.get("status", {}).get("phase") == phase)

    async def gone(self, name: str, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                await self.client.get(PODS, name, "default")
            except NotFound:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"{name} is still there after {seconds} s")

    def log(self, pod: dict[str, Any], container: str = "main") -> str:
        folder = pod["metadata"]["annotations"]["local.volcano-elastic.io/log-dir"]
        return (Path(folder) / f"{container}.log").read_text()

    async def logged(self, name: str, text: str) -> dict[str, Any]:
        return await self.until(
            name,
            lambda pod: (
                pod.get("status", {}).get("containerStatuses", [{}])[0].get("containerID")
                and text in self.log(pod)
            ),
        )


@pytest.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        nodes=2, gpus_per_node=3, kubelet="process", operator=False, scheduler=False
    ) as cluster:
        yield cluster


@pytest.fixture(loop_scope="module")
async def world(cluster: LocalCluster) -> AsyncIterator[World]:
    async with asyncio.timeout(60), cluster.client() as client:
        yield World(cluster, client)
        for resource in (PODS, SERVICES, CONFIGMAPS, SECRETS):
            for item in (await client.list(resource, "default"))["items"]:
                with contextlib.suppress(NotFound):
                    name = item["metadata"]["name"]
                    await client.delete(resource, name, "default", grace_period_seconds=0)


def _state(pod: dict[str, Any], kind: str = "terminated") -> dict[str, Any]:
    state: dict[str, Any] = pod["status"]["containerStatuses"][0]["state"]
    return state.get(kind, {})


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def _dead(pids: list[int], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while any(map(_alive, pids)):
        assert time.monotonic() < deadline, f"{[p for p in pids if _alive(p)]} still run"
        await asyncio.sleep(0.02)


# Both a child in the same group and one in a session of its own, as torchrun makes its workers.
_FAMILY = """
import subprocess, sys, time
ours = subprocess.Popen(["sleep", "60"])
own = subprocess.Popen(["sleep", "60"], start_new_session=True)
print("pids", ours.pid, own.pid, flush=True)
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
    assert _state(pod)["exitCode"] == 0 and _state(pod)["reason"] == "Completed"
    assert _state(pod)["startedAt"] <= _state(pod)["finishedAt"]
    assert pod["status"]["podIP"].startswith("127.") and pod["status"]["hostIP"] == "127.0.0.1"
    served = b"".join([chunk async for chunk in world.client.logs("p", "default")])
    assert served.decode() == world.log(pod)


async def test_exit_codes_signals_and_missing_commands_are_told(world: World) -> None:
    await world.create("code", "sh", "-c", "exit 3")
    await world.create("signal", "sh", "-c", "kill -9 $$")
    await world.create("missing", "no-such-program", "--flag")
    await world.create("no-command")
    await world.create("no-directory", "true", workingDir="/no/such/folder")
    assert _state(await world.phase("code", "Failed"))["exitCode"] == 3
    assert _state(await world.phase("signal", "Failed"))["exitCode"] == 137
    for name, what in (
        ("missing", "'no-such-program'"),
        ("no-command", "expected a command"),
        ("no-directory", "'/no/such/folder'"),
    ):
        pod = await world.phase(name, "Failed")
        assert _state(pod)["exitCode"] == 127 and _state(pod)["reason"] == "StartError"
        assert what in _state(pod)["message"]
        assert what in world.log(pod)


async def test_environment_arguments_and_service_names(world: World) -> None:
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
    script = 'echo "$PEER|$OWN_NAME|$OWN_IP|$A|$B|$HOSTNAME"; echo "$0 $1"'
    env = [
        {"name": "PEER", "value": "job-worker-0:23456"},
        {"name": "OWN_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OWN_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    sources = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "conf"}}]
    # The peer's address is known before the peer is.
    await world.create("p", "sh", "-c", script, args=["zero", "$(PEER)"], env=env, envFrom=sources)
    pod = await world.phase("p", "Succeeded")
    await world.create("job-worker-0", "sleep", "60")
    peer = (await world.phase("job-worker-0", "Running"))["status"]["podIP"]
    own = pod["status"]["podIP"]
    assert peer != own
    assert world.log(pod) == f"{peer}:23456|p|{own}|a|b|p\nzero {peer}:23456\n"


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
    script = f"echo again; test -e {tmp_path}/seen && exit 0; touch {tmp_path}/seen; exit 5"
    await world.create("p", "sh", "-c", script, restartPolicy="OnFailure")
    pod = await world.until("p", lambda pod: "CrashLoopBackOff" in str(pod.get("status")))
    assert pod["status"]["phase"] == "Running"
    pod = await world.phase("p", "Succeeded")
    status = pod["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 5
    assert world.log(pod) == "again\nagain\n"


async def test_a_volume_that_cant_be_honoured_is_refused_in_words(world: World) -> None:
    await world.create(
        "p",
        "true",
        volumes=[{"name": "v", "emptyDir": {}}],
        volumeMounts=[{"name": "v", "mountPath": "/data"}],
    )
    pod = await world.until("p", lambda pod: "CreateContainerConfigError" in str(pod))
    assert "plain processes" in _state(pod, "waiting")["message"]
    await asyncio.sleep(0.2)
    events = (await world.client.list(EVENTS, "default"))["items"]
    assert any(e["type"] == "Warning" and "plain processes" in e["message"] for e in events)


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
    await _dead([child])


async def test_deletion_kills_after_the_grace_period(world: World) -> None:
    await world.create("p", "sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done")
    await world.logged("p", "up")
    begin = time.monotonic()
    await world.client.delete(PODS, "p", "default", grace_period_seconds=1)
    await world.gone("p")
    assert 0.9 < time.monotonic() - begin < 8


async def test_a_pod_removed_by_force_leaves_no_process(world: World) -> None:
    await world.create("p", "python", "-c", _FAMILY, args=["60"])
    pod = await world.logged("p", "pids")
    await world.client.delete(PODS, "p", "default", grace_period_seconds=0)
    await _dead(_family_of(world.log(pod)))


async def test_what_a_main_process_leaves_behind_is_killed(world: World) -> None:
    await world.create("p", "python", "-c", _FAMILY, args=["0"])
    pod = await world.phase("p", "Succeeded")
    await _dead(_family_of(world.log(pod)))


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
    await _dead(pids)
    pod = await world.until(
        "always",
        lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1,
    )
    assert pod["status"]["podIP"] == before["status"]["podIP"]
    assert _state(await world.phase("never", "Failed"))["exitCode"] == 137


async def test_fake_pods_run_end_and_go_without_a_process() -> None:
    cluster = LocalCluster(
        nodes=3, gpus_per_node=8, kubelet="fake", operator=False, scheduler=False
    )
    async with asyncio.timeout(60), cluster, cluster.client() as client:
        world = World(cluster, client)
        local = "local.volcano-elastic.io"
        notes = {f"{local}/exit-code": "3", f"{local}/run-seconds": "0.5"}
        await world.create("ends", "any", metadata={"annotations": notes})
        await world.create("stays", "any")
        assert (await world.phase("stays", "Running"))["status"]["podIP"]
        assert _state(await world.phase("ends", "Failed"))["exitCode"] == 3
        await client.delete(PODS, "stays", "default")
        await world.gone("stays")
        begin = time.monotonic()
        await asyncio.gather(*(world.create(f"p-{index}", "any") for index in range(200)))
        while True:
            pods = (await client.list(PODS, "default"))["items"]
            if sum(pod.get("status", {}).get("phase") == "Running" for pod in pods) == 200:
                break
            await asyncio.sleep(0.05)
        assert time.monotonic() - begin < 10
