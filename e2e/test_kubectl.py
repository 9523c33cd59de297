"""A job's whole life by kubectl, as its user sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e.kubectl import Kubectl
from e2e.stage import PATIENCE, Stage
from volcano_elastic.kube.resource import PODGROUPS, PODS, SERVICES

pytestmark = pytest.mark.e2e
_BOTH_READY = "--for=jsonpath={.status.elastic.ready}=2"


def _job(name: str, *, until: Path) -> dict[str, Any]:
    """One to two workers that say who they are, and end well once the file `until` exists."""
    script = f'echo "I am $VOLCANO_ELASTIC_POD_INDEX"; until [ -e {until} ]; do sleep 0.1; done'
    container = {
        "name": "pytorch",
        "image": "any:1",
        "command": ["sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2},
            "runPolicy": {"schedulingPolicy": {"queue": "default"}, "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "restartPolicy": "OnFailure",
                    "template": {
                        "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]}
                    },
                }
            },
        },
    }


async def test_a_job_from_create_to_delete(stage: Stage, tmp_path: Path) -> None:
    kubectl = Kubectl(stage.cluster.kubeconfig, tmp_path)
    done = tmp_path / "done"
    await kubectl("create", "-f", "-", stdin=_job("job", until=done))
    await kubectl("wait", "pytorchjob/job", "--for=condition=Running", "--timeout=180s")
    await kubectl("wait", "pytorchjob/job", _BOTH_READY, "--timeout=180s")

    header, line = (await kubectl("get", "pytorchjobs")).splitlines()
    assert header.split() == ["NAME", "STATE", "AGE", "MIN", "MAX", "READY", "PROGRESS", "QUEUE"]
    name, state, _, *rest = line.split()
    assert (name, state, rest) == ("job", "Running", ["1", "2", "2", "default"])
    assert "Running" in await kubectl("get", "pods", "-l", "training.kubeflow.org/job-name=job")

    described = await kubectl("describe", "pytorchjob", "job")
    assert "Min Replicas:" in described
    assert "GrewIntoIdle" in described, "events are listed below the job"

    await kubectl("scale", "pytorchjob/job", "--replicas=3")
    path = "{.spec.pytorchReplicaSpecs.Worker.replicas}"
    assert await kubectl("get", "pytorchjob", "job", "-o", f"jsonpath={path}") == "3"

    done.touch()
    await kubectl("wait", "pytorchjob/job", "--for=condition=Succeeded", "--timeout=180s")
    await kubectl("delete", "pytorchjob", "job")
    await _nothing_left(stage, kubectl)


async def test_logs_are_read_and_followed_to_their_end(stage: Stage, tmp_path: Path) -> None:
    if stage.plane.kept:
        pytest.skip("an API server elsewhere can't reach this machine's containers for their logs")
    kubectl = Kubectl(stage.cluster.kubeconfig, tmp_path)
    done = tmp_path / "done"
    await kubectl("create", "-f", "-", stdin=_job("job", until=done))
    await kubectl("wait", "pytorchjob/job", _BOTH_READY, "--timeout=180s")
    assert (await kubectl("logs", "job-worker-1")).strip() == "I am 1"
    both = await kubectl("logs", "-l", "training.kubeflow.org/job-name=job", "-c", "pytorch")
    assert sorted(both.split("\n")[:2]) == ["I am 0", "I am 1"]
    following = asyncio.create_task(kubectl("logs", "--follow", "job-worker-0"))
    done.touch()
    assert (await following).strip() == "I am 0"


async def test_a_running_job_deleted_takes_everything_with_it(stage: Stage, tmp_path: Path) -> None:
    kubectl = Kubectl(stage.cluster.kubeconfig, tmp_path)
    await kubectl("apply", "-f", "-", stdin=_job("job", until=tmp_path / "never"))
    await kubectl("wait", "pytorchjob/job", _BOTH_READY, "--timeout=180s")
    await kubectl("delete", "pytorchjob", "job", "--timeout=180s")
    await _nothing_left(stage, kubectl)


async def _nothing_left(stage: Stage, kubectl: Kubectl) -> None:
    async with stage.cluster.client() as client:
        deadline = stage.recorder.now() + PATIENCE
        while True:
            left = [
                item["metadata"]["name"]
                for resource in (PODS, PODGROUPS, SERVICES)
                for item in (await client.list(resource, kubectl.namespace))["items"]
                if item["metadata"].get("ownerReferences")
            ]
            if not left:
                return
            assert stage.recorder.now() < deadline, f"left behind: {left}\n{stage.story()}"
            await asyncio.sleep(0.2)
