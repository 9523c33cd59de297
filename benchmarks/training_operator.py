"""Kubeflow's training-operator, release 1.9, as a process of its own: the peer of our operator.

TRAINING_OPERATOR_BIN names its program. What its manifests would bring is made here: a namespace,
an empty Secret and a webhook configuration, without which it does not begin. The kubelet's part,
the Secret's certificates in a folder, is ours too; that folder is fixed in the program, so only
one can run on a machine.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.resource import (
    NAMESPACES,
    SECRETS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)

NAME = "training-operator"
_NAMESPACE, _SECRET = "kubeflow", "training-operator-webhook-cert"
_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
# Its webhook is never called: no such resource exists.
_WEBHOOK = {
    "name": "never.training-operator.kubeflow.org",
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "clientConfig": {"service": {"name": "none", "namespace": _NAMESPACE}},
    "rules": [
        {
            "apiGroups": ["none.example"],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["none"],
        }
    ],
}


def program() -> str | None:
    """None where there is none to compare with.

    Raises:
        SystemExit: TRAINING_OPERATOR_BIN names something else.
    """
    found = os.environ.get("TRAINING_OPERATOR_BIN")
    if found and not os.access(found, os.X_OK):
        raise SystemExit(f"error: TRAINING_OPERATOR_BIN: expected a program, found {found}")
    return found or None


def command(program: str, kubeconfig: Path, metrics: int, health: int, webhook: int) -> list[str]:
    """With its limits raised, as it is fastest; the numbers are ports."""
    return [
        *(program, "--enable-scheme=pytorchjob", f"--kubeconfig={kubeconfig}"),
        *("--kube-api-qps=2000", "--kube-api-burst=2000", "--controller-threads=10"),
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--webhook-server-port={webhook}",
    ]


@contextlib.asynccontextmanager
async def surroundings(client: Client) -> AsyncIterator[None]:
    """Provide what training-operator needs to begin, and to go on."""
    configuration = "validator.training-operator.kubeflow.org"
    for resource, body in (
        (NAMESPACES, {"metadata": {"name": _NAMESPACE}}),
        (SECRETS, {"metadata": {"name": _SECRET, "namespace": _NAMESPACE}}),
        (
            VALIDATINGWEBHOOKCONFIGURATIONS,
            {"metadata": {"name": configuration}, "webhooks": [_WEBHOOK]},
        ),
    ):
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, kind | body)
    _CERTIFICATES.mkdir(parents=True, exist_ok=True)
    mounting = asyncio.create_task(_mount(client))
    try:
        yield
    finally:
        mounting.cancel()
        await asyncio.gather(mounting, return_exceptions=True)
        for file in _CERTIFICATES.iterdir():
            file.unlink()


async def _mount(client: Client) -> None:
    while True:
        secret = await client.get(SECRETS, _SECRET, _NAMESPACE)
        for name, data in (secret.get("data") or {}).items():
            (_CERTIFICATES / name).write_bytes(base64.b64decode(data))
        if secret.get("data"):
            return
        await asyncio.sleep(0.2)
