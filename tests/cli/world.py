"""A small cluster, and manifests that would change it, for tests of the command line."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from click.testing import CliRunner, Result

from tests.queue_policy.world import GPU, NOW, job, node, pods, world
from volcano_elastic.cli.main import main

A = job(
    "a",
    *(1, 4, 4),
    speeds={4: 120.0},
    last_scale=NOW - timedelta(seconds=30),
    last_reason="GrewIntoIdle",
)
FULL = world([node("n", 4)], [A], pods(A, "n", "n", "n", "n"))
"""`a` holds all four GPUs, three of them as surplus."""
B = job("b", 2, 2)
WAITING = replace(FULL, jobs=(A, B))
"""`b` needs two of them."""


def run(*arguments: object, text: str | None = None) -> Result:
    environment = {"KUBECONFIG": "/nowhere"}
    return CliRunner().invoke(main, [str(word) for word in arguments], input=text, env=environment)


def torch_job(name: str, low: int, high: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "i", "resources": {"limits": {GPU: 1}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "elasticPolicy": {"min": low, "max": high},
            "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [container]}}}},
        }
        | spec,
    }


def policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "QueuePolicy",
        "metadata": {"name": name},
        "spec": {"queue": "default"} | spec,
    }


def queue(name: str = "default", **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return head | {"metadata": {"name": name}, "spec": spec}


def a_node(name: str = "n", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} | parts


PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
