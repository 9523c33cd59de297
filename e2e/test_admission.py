"""Refusals that kubectl is told at once, with webhooks; and what becomes of a job without."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kubectl import Kubectl
from e2e.test_doctor import doctor
from embedded_cluster.component import Component
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, EmbeddedControlPlane
from tests.patience import eventually
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import (
    EVENTS,
    MUTATINGWEBHOOKCONFIGURATIONS,
    PODS,
    PYTORCHJOBS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)

pytestmark = pytest.mark.e2e
Object = dict[str, Any]


def job(name: str, elastic: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    worker = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": worker | ({} if elastic is None else {"elasticPolicy": elastic}) | spec,
    }


@dataclass
class Guarded:
    """A control plane whose API server asks the operator."""

    plane: ControlPlane
    operator: Component


@pytest.fixture(scope="module")
def guarded(control_plane: ControlPlane) -> Iterator[Guarded]:
    if control_plane.kept:
        pytest.skip("that cluster's API server can't call a webhook on this machine")
    # Of its own: others' objects are none of these webhooks' business.
    plane = type(control_plane)()
    plane.start = control_plane.start
    with plane:
        command = [sys.executable, "-m", "volcano_elastic.operator"]
        command += ["--kubeconfig", str(plane.kubeconfig)]
        operator = plane.component("operator", [*command, "--webhook-address", "127.0.0.1:0"])
        found = re.compile(r"webhooks on https://127.0.0.1:(\d+)")

        def port() -> int | None:
            match = found.search(operator.log.read_text())
            return int(match[1]) if match else None

        plane.until(lambda: port() is not None, "the webhooks are served")
        operator.command[-1] = f"127.0.0.1:{port()}"
        asyncio.run(_configure(plane, int(port() or 0)))
        yield Guarded(plane, operator)


async def _configure(plane: ControlPlane, port: int) -> None:
    """The configuration of manifests/, by URL since nothing here routes to Services."""
    resources = (VALIDATINGWEBHOOKCONFIGURATIONS, MUTATINGWEBHOOKCONFIGURATIONS)
    kinds = {resource.kind: resource for resource in resources}
    text = (ROOT / "manifests/webhook/configuration.yaml").read_text()
    async with plane.client() as client:
        for configuration in yaml.safe_load_all(text):
            for hook in configuration["webhooks"]:
                path = hook["clientConfig"].pop("service")["path"]
                hook["clientConfig"]["url"] = f"https://127.0.0.1:{port}{path}"
            await client.create(kinds[configuration["kind"]], configuration)
        # The operator enters the authority, and then the API server has to hear of it.
        await eventually(lambda: _refuses(client), "an impossible job is refused")


async def _refuses(client: Client) -> bool:
    try:
        await client.create(PYTORCHJOBS, job("never", {"nodeUnit": 2}), dry_run=True)
    except ApiError as error:
        return error.code == 403
    return False


@pytest.fixture
def kubectl(guarded: Guarded, tmp_path: Path) -> Kubectl:
    return Kubectl(guarded.plane.kubeconfig, tmp_path)


async def test_a_refusal_is_kubeflows_and_reaches_the_user(kubectl: Kubectl) -> None:
    wrong = job("refused")
    wrong["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0].pop("image")
    said = await kubectl.refused("create", "-f", "-", stdin=wrong)
    assert (
        'admission webhook "validate.pytorchjob.volcano-elastic.io" denied the request: '
        "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image: Required value: must "
        "be required"
    ) in said


async def test_defaults_are_stored_and_a_second_apply_changes_nothing(kubectl: Kubectl) -> None:
    manifest = job("defaulted", {"min": 1, "max": 4}, runPolicy={"suspend": True})
    await kubectl("apply", "-f", "-", stdin=manifest)
    stored = yaml.safe_load(await kubectl("get", "pytorchjob", "defaulted", "-o", "yaml"))["spec"]
    assert stored["runPolicy"] == {"suspend": True, "cleanPodPolicy": "None"}
    assert stored["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert stored["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert "unchanged" in await kubectl("apply", "-f", "-", stdin=manifest)
    # An end that was filled in moves with the one that it was copied from.
    manifest["spec"]["elasticPolicy"] = {"max": 6}
    await kubectl("apply", "-f", "-", stdin=manifest)
    manifest["spec"]["elasticPolicy"] = {"max": 2}
    await kubectl("apply", "-f", "-", stdin=manifest)
    await kubectl("delete", "pytorchjob", "defaulted")


async def test_what_is_odd_is_accepted_with_a_warning(kubectl: Kubectl) -> None:
    odd = job("odd", {"nProcPerNode": 2, "rdzvBackend": "zeus"})
    warnings = await kubectl.warned("create", "--dry-run=server", "-f", "-", stdin=odd)
    assert (
        "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead" in warnings
    )
    assert any(text.startswith("spec.elasticPolicy.rdzvBackend: 'zeus'") for text in warnings)
    typo = job("typo", {"minReplica": 2})
    create = ("create", "--dry-run=server", "--validate=warn", "-f", "-")
    assert await kubectl.warned(*create, stdin=typo) == [
        'unknown field "spec.elasticPolicy.minReplica"'
    ]


async def test_a_queue_policy_that_cannot_be_applied_is_refused(kubectl: Kubectl) -> None:
    policy = {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "QueuePolicy",
        "metadata": {"name": "p"},
        "spec": {"queue": "q", "headroom": {"amount": "lots"}},
    }
    said = await kubectl.refused("create", "--dry-run=server", "-f", "-", stdin=policy)
    assert "spec.headroom.amount" in said


async def test_without_webhooks_an_impossible_job_fails_once_and_for_good(
    guarded: Guarded, kubectl: Kubectl
) -> None:
    guarded.operator.send(signal.SIGKILL)

    async def gone() -> bool:
        return not guarded.operator.running()

    await eventually(gone, "the operator is gone")
    try:
        # Let in, since nobody is there to ask: failurePolicy Ignore.
        await kubectl("create", "-f", "-", stdin=job("impossible", {"nodeUnit": 2}))
    finally:
        guarded.operator.start()
    async with guarded.plane.client() as client:

        async def failed() -> Any:
            status = (await client.get(PYTORCHJOBS, "impossible", "default")).get("status") or {}
            conditions = status.get("conditions") or [{}]
            return conditions[-1] if conditions[-1].get("type") == "Failed" else None

        condition = await eventually(failed, "the job has failed")
        assert condition["reason"] == "PyTorchJobInvalid"
        assert condition["message"] == (
            "spec.elasticPolicy.nodeUnit: Invalid value: 2: must divide Worker.replicas (1), which "
            "here is both min and max; a failed job stays failed: correct it and create it anew"
        )

        async def events() -> list[Object]:
            found = (await client.list(EVENTS, "default"))["items"]
            return [e for e in found if e["involvedObject"].get("name") == "impossible"]

        (event,) = await eventually(events, "the event")
        assert (event["type"], event["reason"]) == ("Warning", "PyTorchJobInvalid")
        # The repair is accepted, and comes too late.
        repair = {"spec": {"elasticPolicy": {"nodeUnit": 1}}}
        await client.patch(PYTORCHJOBS, "impossible", "default", repair)
        await asyncio.sleep(1)
        assert await failed() == condition
        assert (await client.list(PODS, "default"))["items"] == []
        assert len(await events()) == 1
    await kubectl("delete", "pytorchjob", "impossible")


# The API server's own rules, without any webhook


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"replicas": 0},
            "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
        ),
        (
            {"replicas": -1},
            "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
        ),
    ],
)
async def test_rules_of_the_crd_speak_kubeflows_words(
    control_plane: ControlPlane, tmp_path: Path, change: Object, words: str
) -> None:
    if isinstance(control_plane, EmbeddedControlPlane):
        pytest.skip("the embedded API server evaluates no CEL; the operator refuses there")
    wrong = job("wrong")
    wrong["spec"]["pytorchReplicaSpecs"]["Worker"] |= change
    plain = Kubectl(control_plane.kubeconfig, tmp_path)
    assert words in await plain.refused("create", "--dry-run=server", "-f", "-", stdin=wrong)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"runPolicy": {"managedBy": "me"}},
            'spec.runPolicy.managedBy: Unsupported value: "me": supported values: '
            '"kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"',
        ),
        (
            {"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": "2"},
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
        (
            {"elasticPolicy": {}, "pytorchReplicaSpecs": {"Master": {"replicas": 1}}},
            "must be configured if elastic policy is used",
        ),
    ],
)
async def test_rules_between_fields_speak_kubeflows_words(
    control_plane: ControlPlane, tmp_path: Path, spec: Object, words: str
) -> None:
    if isinstance(control_plane, EmbeddedControlPlane):
        pytest.skip("the embedded API server evaluates no CEL; the operator refuses there")
    plain = Kubectl(control_plane.kubeconfig, tmp_path)
    wrong = job("wrong") | {"spec": job("wrong")["spec"] | spec}
    assert words in await plain.refused("create", "--dry-run=server", "-f", "-", stdin=wrong)


async def test_scaling_to_nothing_is_refused_and_to_something_is_not(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    if isinstance(control_plane, EmbeddedControlPlane):
        pytest.skip("the embedded API server evaluates no CEL; the operator refuses there")
    plain = Kubectl(control_plane.kubeconfig, tmp_path)
    await plain("create", "-f", "-", stdin=job("scaled"))
    try:
        said = await plain.refused("scale", "pytorchjob", "scaled", "--replicas=0")
        assert "must be at least 1" in said
        await plain("scale", "pytorchjob", "scaled", "--replicas=3")
    finally:
        await plain("delete", "pytorchjob", "scaled")


def test_the_doctor_finds_that_the_api_server_reaches_the_webhooks(guarded: Guarded) -> None:
    _, found = doctor(guarded.plane.kubeconfig)
    assert [one["status"] for one in found["webhooks"]] == ["OK"], found["webhooks"]
