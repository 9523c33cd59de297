"""`check-nodes`: which pods it makes, what it says of each node, and that it leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.embedded_cluster.process import ROOT, eventually, local_cluster
from volcano_elastic.cli.check_nodes import (
    LABEL,
    CheckOptions,
    check_nodes,
    choose,
    coordinator_pod,
    member_pod,
    result,
    text,
)
from volcano_elastic.cli.observation import Trouble, ask
from volcano_elastic.kube.resource import NODES, PODS, SECRETS, Resource

TOOL = (sys.executable, "-m", "volcano_elastic.cli", "check-nodes")
PATIENCE = 120.0
OPTIONS = CheckOptions("check-nodes-1", "default", "train:1", 8, 600, 60, {"NCCL_DEBUG": "INFO"})


def node(name: str, ready: bool = True) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def test_the_coordinator_goes_beside_the_nodes_that_are_checked_where_it_can() -> None:
    assert choose([node("a"), node("b"), node("c")], ["b", "a"], False) == (["b", "a"], "c")
    assert choose([node("a", False), node("b")], ["a", "b"], False) == (["a", "b"], "b")


def test_nodes_that_are_not_there_or_too_few_are_refused() -> None:
    with pytest.raises(Trouble, match="there is no node x; there are: a"):
        choose([node("a")], ["x", "a"], False)
    with pytest.raises(Trouble, match="expected two nodes or more"):
        choose([node("a")], ["a", "a"], False)
    with pytest.raises(Trouble, match="no node is Ready"):
        choose([node("a", False), node("b", False)], [], True)


def test_pods_are_bound_to_their_nodes_and_end_by_themselves() -> None:
    made = member_pod(OPTIONS, 3, "gpu-3", "fd00::1")
    assert made["metadata"]["labels"] == {LABEL: "check-nodes-1"}
    assert made["spec"]["nodeName"] == "gpu-3"
    assert made["spec"]["activeDeadlineSeconds"] == 660
    [container] = made["spec"]["containers"]
    assert "--endpoint=[fd00::1]:23456" in container["command"]
    assert "--gpus=8" in container["command"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
    [leader] = coordinator_pod(OPTIONS, "gpu-0", 4)["spec"]["containers"]
    assert "resources" not in leader, "it takes no GPU from anybody"


def test_a_node_whose_pod_did_not_come_is_unknown_with_the_pods_reason() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    pods = {
        "b": {"status": {"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}},
        "c": {"status": {"phase": "Pending", "containerStatuses": [waiting]}},
    }
    one = {"node": "a", "worker": 0, "verdict": "proven", "straggler": True, "note": ""}
    found = result(["a", "b", "c", "d"], {"rounds": 1, "seconds": 2.0, "nodes": [one]}, pods)
    assert [(o["node"], o["verdict"], o["straggler"], o["note"]) for o in found["nodes"]] == [
        ("a", "proven", True, ""),
        ("b", "unknown", False, "its pod is Failed (OutOfnvidia.com/gpu)"),
        ("c", "unknown", False, "its pod is Pending (ErrImagePull no such image)"),
        ("d", "unknown", False, "its pod is not there"),
    ]
    assert text(found).splitlines()[-2:] == ["a  proven, straggler", "1 rounds, 2.0 s"]
    assert result(["a", "b"], None, {})["rounds"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--image", "i"],
        ["a", "b", "-l", "x=y", "--image", "i"],
        ["a", "b"],
        ["a", "b", "--image", "i", "--env", "NAME"],
        ["a", "b", "--image", "i", "--env", "=1"],
        ["a", "b", "--image", "i", "--gpus", "-1"],
        ["a", "b", "--image", "i", "--timeout", "0"],
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(arguments: list[str]) -> None:
    assert CliRunner().invoke(check_nodes, arguments).exit_code == 2


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster(folder, nodes=4, kubelet="process") as kubeconfig:
        yield kubeconfig


def names_of(kubeconfig: Path, kind: Resource, label: str | None = None) -> list[str]:
    listed = ask(str(kubeconfig), lambda client: client.list(kind, label_selector=label))
    return [one["metadata"]["name"] for one in listed["items"]]


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOOL, *arguments],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.process
def test_nodes_that_have_lost_their_gpus_are_not_checked_on_their_cpus(kubeconfig: Path) -> None:
    names = names_of(kubeconfig, NODES)[:2]
    none = ("--env", "CUDA_VISIBLE_DEVICES=")
    done = run(kubeconfig, *names, "--image", "local", "--gpus", "1", *none, "--timeout", "280")
    assert done.returncode == 1, done.stdout + done.stderr
    told = "unknown: TrialError: expected a GPU for process 0, found 0"
    assert told in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("  unknown: ") == len(names), "each with what is known"


@pytest.mark.process
def test_a_check_that_is_interrupted_takes_its_pods_with_it(kubeconfig: Path) -> None:
    names = names_of(kubeconfig, NODES)
    hung = ("--env", "VOLCANO_ELASTIC_NODE_CHECK_FAULT=hang")
    with subprocess.Popen(
        [*TOOL, *names, "--image", "local", *hung],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Where a shell started the tests in its background, they ignore it, and so would the tool.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as tool:
        try:
            made = len(names) + 1
            eventually(lambda: len(names_of(kubeconfig, PODS, LABEL)) == made, "the pods are made")
            tool.send_signal(signal.SIGINT)
            assert tool.wait(PATIENCE) == 1
        finally:
            tool.kill()
    assert not names_of(kubeconfig, SECRETS, LABEL)
    eventually(lambda: not names_of(kubeconfig, PODS, LABEL), "the pods are gone")
