"""kubectl against the embedded API server: the everyday verbs."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from volcano_elastic.kube.resource import Object

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")

TIMEOUT = 120
_numbers = itertools.count()
Kubectl = Callable[..., str]

CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "ships.fleet.example.org"},
    "spec": {
        "group": "fleet.example.org",
        "scope": "Namespaced",
        "names": {"plural": "ships", "kind": "Ship", "shortNames": ["sh"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"replicas": {"type": "integer", "minimum": 0}},
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                    },
                },
                "additionalPrinterColumns": [
                    {
                        "name": "State",
                        "type": "string",
                        "jsonPath": ".status.conditions[-1:].type",
                    },
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    with ApiServerProcess(tmp_path_factory.mktemp("apiserver")) as process:
        yield process


def run(process: ApiServerProcess, *arguments: str, stdin: Any = None) -> Any:
    kubeconfig = process.kubeconfig()
    return subprocess.run(
        ["kubectl", *arguments],
        input=None if stdin is None else yaml.safe_dump_all(stdin),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)},
        check=False,
    )


@pytest.fixture
def kubectl(process: ApiServerProcess) -> Kubectl:
    """Runs kubectl in a namespace of the test's own; its output, and no failure."""
    namespace = f"space-{next(_numbers)}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert run(process, "create", "-f", "-", stdin=[made]).returncode == 0

    def kubectl(*arguments: str, stdin: Any = None, fails: bool = False) -> str:
        done = run(process, "-n", namespace, *arguments, stdin=stdin)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    return kubectl


def pod(name: str, **annotations: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "x"}, "annotations": annotations},
        "spec": {
            "containers": [
                {"name": "main", "image": "image", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ]
        },
    }


def ship(name: str, replicas: Any) -> Object:
    return {
        "apiVersion": "fleet.example.org/v1",
        "kind": "Ship",
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
    }


def test_version_and_resources_without_a_warning(kubectl: Kubectl) -> None:
    assert "WARNING" not in kubectl("version")
    listed = kubectl("api-resources")
    for kind in ("pods", "nodes", "priorityclasses", "horizontalpodautoscalers", "leases"):
        assert kind in listed


def test_apply_get_describe_delete(kubectl: Kubectl) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "svc"},
        "spec": {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 23456}]},
    }
    things = [pod("one"), service]
    assert kubectl("apply", "-f", "-", stdin=things) == "pod/one created\nservice/svc created\n"
    again = kubectl("apply", "-f", "-", stdin=things)
    assert again == "pod/one unchanged\nservice/svc unchanged\n"
    things[0]["metadata"]["labels"] = {"app": "other"}
    assert "pod/one configured" in kubectl("apply", "-f", "-", stdin=things)
    assert kubectl("get", "pods", "-l", "app=other", "-o", "name") == "pod/one\n"
    table = kubectl("get", "pods").split()
    assert table[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert table[5:9] == ["one", "0/1", "Pending", "0"]
    assert "23456/TCP" in kubectl("get", "svc")
    described = kubectl("describe", "pod", "one")
    assert "nvidia.com/gpu:" in described and "Events:" in described
    assert "deleted" in kubectl("delete", "pod", "one")
    assert "NotFound" in kubectl("get", "pod", "one", fails=True)


def test_create_refuses_what_exists_and_apply_server_side_works(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[pod("one")])
    assert "AlreadyExists" in kubectl("create", "-f", "-", stdin=[pod("one")], fails=True)
    applied = kubectl("apply", "--server-side", "-f", "-", stdin=[pod("two")])
    assert applied == "pod/two serverside-applied\n"
    kubectl("apply", "--server-side", "-f", "-", stdin=[pod("two")])


def test_a_kind_that_is_not_there_is_named(kubectl: Kubectl) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    for verb in ("create", "apply"):
        said = kubectl(verb, "-f", "-", stdin=[deployment], fails=True)
        assert 'no matches for kind "Deployment" in version "apps/v1"' in said


def test_label_annotate_and_patch(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[pod("one")])
    assert "labeled" in kubectl("label", "pod", "one", "colour=red")
    assert "not labeled" in kubectl("label", "pod", "one", "colour=red")
    kubectl("label", "pod", "one", "colour-")
    kubectl("annotate", "pod", "one", "note=x")
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    kubectl("patch", "pod", "one", "-p", json.dumps(image))
    operations = [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]
    kubectl("patch", "pod", "one", "--type", "json", "-p", json.dumps(operations))
    found = json.loads(kubectl("get", "pod", "one", "-o", "json"))
    assert found["metadata"]["labels"] == {"app": "x", "a": "b"}
    assert found["metadata"]["annotations"] == {"note": "x"}
    assert found["spec"]["containers"][0]["image"] == "other"


def test_a_custom_resource_from_crd_to_scale(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=[CRD])
    kubectl("wait", "--for=condition=established", "crd/ships.fleet.example.org", "--timeout=10s")
    kubectl("apply", "-f", "-", stdin=[ship("one", 2)])
    refused = kubectl("apply", "-f", "-", stdin=[ship("two", -1)], fails=True)
    assert "spec.replicas in body should be greater than or equal to 0" in refused
    typo = {**ship("three", 1), "spec": {"replica": 1}}
    assert 'unknown field "spec.replica"' in kubectl("apply", "-f", "-", stdin=[typo], fails=True)
    status = {"status": {"conditions": [{"type": "Created"}, {"type": "Running"}]}}
    body = json.dumps(status)
    kubectl("patch", "ship", "one", "--subresource=status", "--type=merge", "-p", body)
    kubectl("scale", "ship/one", "--replicas=5")
    lines = kubectl("get", "sh").splitlines()
    assert lines[0].split() == ["NAME", "STATE", "SIZE", "AGE"]
    assert lines[1].split()[:3] == ["one", "Running", "5"]
    kubectl("wait", "--for=jsonpath={.spec.replicas}=5", "ship/one", "--timeout=10s")
    assert "replicas" in kubectl("explain", "ships.spec")
    assert "configured" in kubectl("apply", "-f", "-", stdin=[ship("one", 3)])
    kubectl("delete", "ship", "one")


def test_logs(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "main.log").write_text("first\nsecond\n")
    folder = {"local.volcano-elastic.io/log-dir": str(tmp_path)}
    there = pod("one", **folder)
    there["spec"]["nodeName"] = "somewhere"
    kubectl("create", "-f", "-", stdin=[there])
    assert kubectl("logs", "one") == "first\nsecond\n"
    assert kubectl("logs", "one", "-c", "main", "--tail=1") == "second\n"
    done = json.dumps({"status": {"phase": "Succeeded"}})
    kubectl("patch", "pod", "one", "--subresource=status", "--type=merge", "-p", done)
    assert kubectl("logs", "-f", "one") == "first\nsecond\n"


def test_get_watch_prints_what_happens(process: ApiServerProcess, kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[pod("one")])
    namespace = json.loads(kubectl("get", "pod", "one", "-o", "json"))["metadata"]["namespace"]
    kubeconfig = process.kubeconfig()
    watching = subprocess.Popen(
        ["kubectl", "-n", namespace, "get", "pods", "-w", "--request-timeout=20s"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)},
    )
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[0] == "NAME"
        assert watching.stdout.readline().split()[0] == "one"
        time.sleep(0.3)
        running = json.dumps({"status": {"phase": "Running"}})
        kubectl("patch", "pod", "one", "--subresource=status", "--type=merge", "-p", running)
        assert watching.stdout.readline().split()[:3] == ["one", "0/1", "Running"]
    finally:
        watching.kill()
        watching.communicate(timeout=120)


def test_events_show_in_get_and_describe(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[pod("one")])
    found = json.loads(kubectl("get", "pod", "one", "-o", "json"))
    about = {name: found["metadata"][name] for name in ("name", "namespace", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", **about},
        "reason": "Started",
        "message": "a remarkable message",
        "type": "Normal",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl("create", "-f", "-", stdin=[event])
    assert "a remarkable message" in kubectl("get", "events")
    assert "a remarkable message" in kubectl("describe", "pod", "one")


def test_typed_commands_send_protobuf(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "one", "--from-literal=a=b")
    assert json.loads(kubectl("get", "configmap", "one", "-o", "json"))["data"] == {"a": "b"}
    kubectl("create", "secret", "generic", "one", "--from-literal=a=b")
    assert json.loads(kubectl("get", "secret", "one", "-o", "json"))["data"] == {"a": "Yg=="}
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "service", "clusterip", "one", "--tcp=80:8080")
    port = json.loads(kubectl("get", "service", "one", "-o", "json"))["spec"]["ports"][0]
    assert (port["port"], port["targetPort"]) == (80, 8080)
    kubectl("create", "priorityclass", "high-one", "--value=-7", "--description=low")
    assert json.loads(kubectl("get", "priorityclass", "high-one", "-o", "json"))["value"] == -7
    kubectl("delete", "priorityclass", "high-one")
    kubectl("create", "namespace", "typed-one")
    kubectl("delete", "namespace", "typed-one")
