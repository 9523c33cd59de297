"""Containers are given addresses and names, environment, files."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embedded_cluster.kubelet import not_served
from embedded_cluster.kubelet.__main__ import parser
from embedded_cluster.kubelet.address import AddressBook, resolve_value
from embedded_cluster.kubelet.environment import environment, expand
from embedded_cluster.kubelet.kubelet import Options, serve
from embedded_cluster.kubelet.names import Names, hosts_file
from embedded_cluster.kubelet.source import ConfigError
from embedded_cluster.kubelet.volume import (
    NotMounted,
    Volumes,
    refusal,
    without_namespaces,
)
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PODS, SERVICES


def test_a_pod_keeps_its_address_and_no_two_share_one() -> None:
    one, other = AddressBook(), AddressBook()
    names = [f"job-worker-{index}" for index in range(2000)]
    addresses = [one.of("default", name) for name in names]
    assert len(set(addresses)) == len(names)
    assert all(address.startswith("127.") for address in addresses)
    assert other.of("default", "job-worker-7") == one.of("default", "job-worker-7")
    assert one.of("default", "a") != one.of("other", "a")


def test_two_clusters_on_one_machine_give_a_name_two_addresses() -> None:
    assert AddressBook("one").of("default", "a") != AddressBook("other").of("default", "a")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("job-worker-0", "127.16.0.9"),
        ("job-worker-0:23456", "127.16.0.9:23456"),
        ("job-worker-0:port", "job-worker-0:port"),
        ("default/job-worker-0", "default/job-worker-0"),
        ("job-worker-0,other,job-worker-0:80", "127.16.0.9,other,127.16.0.9:80"),
        ("other", "other"),
        ("", ""),
        (":80", ":80"),
    ],
)
def test_service_names_in_values_become_addresses(value: str, expected: str) -> None:
    assert resolve_value(value, {"job-worker-0": "127.16.0.9"}.get) == expected


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
            {"name": "HOSTS", "valueFrom": field("status.hostIPs")},
            {"name": "ACCOUNT", "valueFrom": field("spec.serviceAccountName")},
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
        "HOSTS": "127.0.0.1",
        "ACCOUNT": "default",
        "KEY": "secret",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, "ConfigMap 'gone' not found"),
        ({"fieldRef": {"fieldPath": "spec.hostname"}}, "found 'spec.hostname'"),
        ({"resourceFieldRef": {"resource": "cpu"}}, "found resourceFieldRef"),
        ({"fileKeyRef": {"path": "a"}}, "found fileKeyRef"),
    ],
)
def test_what_the_environment_lacks_is_named(entry: dict[str, Any], message: str) -> None:
    container = {"name": "main", "env": [{"name": "X", "valueFrom": entry}]}
    with pytest.raises(ConfigError, match=message):
        environment(container, _bare_pod(), {})


def _mounting(*volumes: dict[str, Any], path: str = "/data") -> dict[str, Any]:
    mounts = [{"name": volume["name"], "mountPath": path} for volume in volumes]
    container = {"name": "main", "volumeMounts": mounts}
    return _bare_pod(containers=[container], volumes=list(volumes))


def test_a_volume_holds_the_keys_that_are_asked_for(tmp_path: Path) -> None:
    items = [{"key": "x", "path": "deep/x", "mode": 0o600}, {"key": "y", "path": "y"}]
    conf = {"name": "c", "configMap": {"name": "conf", "items": items, "defaultMode": 0o400}}
    secret = {"name": "s", "secret": {"secretName": "s"}}
    gone = {"name": "g", "configMap": {"name": "gone", "optional": True}}
    sources = {
        ("ConfigMap", "conf"): {"data": {"x": "2", "z": "3"}, "binaryData": {"y": "/w=="}},
        ("Secret", "s"): {"data": {"k": "c2VjcmV0"}},
    }
    volumes = Volumes(tmp_path / "disk", tmp_path / "memory")
    volumes.make(_mounting(conf, secret, gone), sources)
    files = [path for path in (tmp_path / "disk").rglob("*") if path.is_file()]
    found = {str(path.relative_to(tmp_path / "disk")): path for path in files}
    assert {name: path.read_bytes() for name, path in found.items()} == {
        "c/deep/x": b"2",
        "c/y": b"\xff",
        "s/k": b"secret",
    }
    modes = {name: path.stat().st_mode & 0o777 for name, path in found.items()}
    assert modes == {"c/deep/x": 0o600, "c/y": 0o400, "s/k": 0o644}
    with pytest.raises(NotMounted, match="volume 's': Secret 's' not found"):
        Volumes(tmp_path / "other", tmp_path / "memory").make(_mounting(secret), {})


def test_a_volume_that_could_not_be_made_whole_is_none_the_next_time_either(
    tmp_path: Path,
) -> None:
    items = [{"key": "x", "path": "a"}, {"key": "x", "path": "a/below-a-file"}]
    pod = _mounting({"name": "c", "configMap": {"name": "conf", "items": items}})
    volumes = Volumes(tmp_path / "disk", tmp_path / "memory")
    for _ in range(2):
        with pytest.raises(NotMounted, match="volume 'c'"):
            volumes.make(pod, {("ConfigMap", "conf"): {"data": {"x": "1"}}})


def test_containers_that_start_together_all_find_their_volume_whole(tmp_path: Path) -> None:
    pod = _mounting({"name": "c", "configMap": {"name": "conf"}})
    sources = {("ConfigMap", "conf"): {"data": {f"key-{i}": "1" for i in range(200)}}}

    def start(volumes: Volumes, folder: Path, together: threading.Barrier) -> int:
        together.wait(120)
        volumes.make(pod, sources)
        return len(list((folder / "c").iterdir()))

    with ThreadPoolExecutor(3) as threads:
        for turn in range(10):
            folder = tmp_path / str(turn)
            volumes, together = Volumes(folder, tmp_path / "memory"), threading.Barrier(3)
            starts = [threads.submit(start, volumes, folder, together) for _ in range(3)]
            assert [one.result(120) for one in starts] == [200] * 3


@pytest.mark.parametrize("kind", ["", "DirectoryOrCreate"])
def test_a_folder_of_the_machine_that_another_pod_makes_meanwhile_will_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"

    def exists_in_a_moment(path: Path) -> bool:
        there = shared.is_dir()
        shared.mkdir(exist_ok=True)
        return there

    monkeypatch.setattr(Path, "exists", exists_in_a_moment)
    volume = {"name": "v", "hostPath": {"path": str(shared), "type": kind}}
    Volumes(tmp_path / "disk", tmp_path / "memory").make(_mounting(volume), {})
    assert shared.is_dir()


def test_volumes_of_kinds_that_are_not_served_are_refused_in_words() -> None:
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    assert "found persistentVolumeClaim" in str(refusal(_mounting(claim)))
    token = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
    assert "found projected" in str(refusal(_mounting(token)))
    # Every pod of a real API server has it, and our processes don't use it.
    usual = _mounting(token, path="/var/run/secrets/kubernetes.io/serviceaccount")
    assert refusal(usual) is None


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"restartPolicy": "Always"}, "no sidecars"),
        ({"lifecycle": {"postStart": {"exec": {}}}}, "postStart is not served"),
        ({"volumeMounts": [{"name": "v", "subPath": "a"}]}, "'v': subPath is not served"),
        ({"volumeMounts": [{"name": "v", "subPathExpr": "$(A)"}]}, "'v': subPath is not served"),
        ({"lifecycle": {"preStop": {"exec": {}}}, "livenessProbe": {"exec": {}}}, "None"),
    ],
)
def test_what_a_container_may_not_ask_for_is_refused_in_words(
    asked: dict[str, Any], complaint: str
) -> None:
    assert complaint in str(not_served.refusal({"name": "main", **asked}))


def test_what_a_pod_does_without_is_named() -> None:
    probes = {"livenessProbe": {"exec": {}}, "readinessProbe": {"httpGet": {"port": 1}}}
    found = str(not_served.ignored({"name": "main", **probes}, _bare_pod()))
    assert found.startswith("container main: livenessProbe, readinessProbe not served here")
    hook = {"name": "main", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
    gated = _bare_pod(readinessGates=[{"conditionType": "x"}])
    assert "lifecycle.preStop, readinessGates not" in str(not_served.ignored(hook, gated))
    assert not_served.ignored({"name": "main"}, _bare_pod()) is None


@pytest.mark.parametrize(
    ("volume", "path", "served"),
    [
        ({"emptyDir": {}}, "/dev/shm", True),
        ({"emptyDir": {}}, "/data", False),
        ({"hostPath": {"path": "/data/"}}, "/data", True),
        ({"hostPath": {"path": "/other"}}, "/data", False),
        ({"configMap": {"name": "c"}}, "/tmp", False),
    ],
)
def test_a_plain_process_is_given_only_mounts_that_change_nothing(
    volume: dict[str, Any], path: str, served: bool
) -> None:
    pod = _mounting({"name": "v", **volume}, path=path)
    found = without_namespaces(pod["spec"]["containers"][0], pod)
    assert (found is None) == served, found


def test_the_hosts_file_names_the_pod_its_aliases_and_all_services() -> None:
    pod = _bare_pod(
        subdomain="job", hostAliases=[{"ip": "10.0.0.1", "hostnames": ["db", "db.local"]}]
    )
    text = hosts_file(pod, "127.16.0.1", [("ns", "web", "127.16.0.2"), ("b", "api", "127.16.0.3")])
    assert [line.split() for line in text.splitlines()[3:]] == [
        ["127.16.0.1", "p.job.ns.svc.cluster.local", "p"],
        ["10.0.0.1", "db", "db.local"],
        ["127.16.0.2", "web", "web.ns", "web.ns.svc", "web.ns.svc.cluster.local"],
        ["127.16.0.3", "api.b", "api.b.svc", "api.b.svc.cluster.local"],
    ]


def test_names_in_values_are_those_of_services_seen_from_the_pods_namespace() -> None:
    client: Any = None  # nothing is listed or watched
    pods, services = Informer(client, PODS), Informer(client, SERVICES)
    about = {"resourceVersion": "1"}
    for namespace, name in (("ns", "web-0"), ("other", "api-0"), ("ns", "early")):
        labels = {"app": name.partition("-")[0]}
        meta = about | {"namespace": namespace, "name": name, "uid": name, "labels": labels}
        pods.note_write({"metadata": meta, "spec": {}})
    for namespace, name in (("ns", "web"), ("other", "api")):
        meta = about | {"namespace": namespace, "name": name, "uid": name}
        services.note_write({"metadata": meta, "spec": {"selector": {"app": name}}})
    book = AddressBook()
    resolve = Names(pods, services, book).resolver("ns")
    for host in ("web", "web.ns", "web.ns.svc", "web.ns.svc.cluster.local"):
        assert resolve(host) == book.of("ns", "web-0")
    assert resolve("api.other.svc") == book.of("other", "api-0")
    assert resolve("early") == book.of("ns", "early"), "its service is on its way"
    for host in ("api", "web.other", "web.ns.com", "a b"):
        assert resolve(host) is None


async def test_what_a_pod_writes_to_its_hosts_file_holds_up_no_other(tmp_path: Path) -> None:
    client: Any = None  # nothing is listed or watched
    services = Informer(client, SERVICES)
    names = Names(Informer(client, PODS), services, AddressBook())
    spoilt, other, dropped = (tmp_path / name for name in ("spoilt", "other", "dropped"))
    for file in (spoilt, other, dropped):
        names.keep_hosts(file, _bare_pod(), "127.16.0.1")
    spoilt.write_bytes(b"\xff")
    names.drop_hosts(dropped)
    meta = {"namespace": "ns", "name": "web", "uid": "web", "resourceVersion": "1"}
    services.note_write({"metadata": meta, "spec": {}})
    deadline = time.monotonic() + 120
    while "web.ns.svc" not in other.read_text():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert spoilt.read_text() == other.read_text()
    assert "web" not in dropped.read_text()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("--nodes", "0"), "expected a whole number from 1 to 1000000, found '0'"),
        (("--nodes", "1000001"), "expected a whole number from 1 to 1000000, found '1000001'"),
        (("--nodes", "1.5"), "expected a whole number from 1 to 1000000, found '1.5'"),
        (("--gpus-per-node", "-1"), "expected a whole number from 0 to 1000000, found '-1'"),
        (("--restart-back-off", "nan"), "expected seconds from 0.001 to 1000000, found 'nan'"),
        (
            ("--node-monitor-grace-period", "inf"),
            "expected seconds from 0.001 to 1000000, found 'inf'",
        ),
    ],
)
def test_numbers_that_a_kubelet_cannot_have_are_refused_in_words(
    given: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(given)
    assert complaint in capsys.readouterr().err
    assert parser().parse_args(("--nodes", "3"), namespace=Options()) == Options(nodes=3)


@pytest.mark.parametrize("given", [True, False])
async def test_a_temporary_folder_is_made_only_where_none_is_given(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would outlive a kubelet that is killed."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    kubeconfig, state = tmp_path / "kubeconfig", tmp_path / "state"
    kubeconfig.write_text(json.dumps(_NO_SERVER))
    running = asyncio.create_task(
        serve(Options(str(kubeconfig), state_dir=state if given else None))
    )
    deadline = time.monotonic() + 120
    while not (made := [*temporary.iterdir(), *tmp_path.glob("state")]):
        assert time.monotonic() < deadline and not running.done()
        await asyncio.sleep(0.01)
    assert made == [state] if given else made[0].name.startswith("volcano-elastic-pods-")
    running.cancel()
    await asyncio.wait([running])
    assert list(temporary.iterdir()) == [], "it goes with the kubelet"


_NO_SERVER = {
    "current-context": "none",
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "none", "user": {}}],
}
