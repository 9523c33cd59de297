"""Kueue's and JobSet's own controllers (`make controllers`), beside ours on a real control plane.

There is no network of pods, so that their webhooks are called at a port of this machine, with
certificates of an authority made here; the rest is as their projects install it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from embedded_cluster.readiness import HOST, free_port
from volcano_elastic.kube.authority import subject_of
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.resource import CRDS, NAMESPACES, Object, Resource

FOLDER = ROOT / "build" / "controllers"
_LIFE = timedelta(days=365)
_START_SECONDS = 120.0
_SECRETS = Resource("", "v1", "secrets", "Secret")
_ADMISSION = "admissionregistration.k8s.io"
_HOOKS = {
    kind: Resource(_ADMISSION, "v1", f"{kind.lower()}s", kind, namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One of these controllers."""

    name: str
    """Name of its program; its namespace is NAME-system."""
    version: str
    """`config.NAME.x-k8s.io/VERSION` of its configuration."""
    webhooks: frozenset[str]
    """Names of the webhooks whose kinds are served here."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More of its configuration."""

    @property
    def namespace(self) -> str:
        return f"{self.name}-system"


KUEUE = Neighbour(
    name="kueue",
    version="v1beta2",
    webhooks=frozenset(
        f"{kind}{of}.kb.io"
        for kind in "mv"
        for of in ("job", "clusterqueue", "cohort", "resourceflavor", "workload")
    ),
    settings={
        "namespace": "kueue-system",
        "integrations": {"frameworks": ["batch/job"]},
        # Its certificates are looked for in a Secret, where it finds those made here.
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": "kueue-webhook-service",
            "webhookSecretName": "kueue-webhook-server-cert",
        },
        "featureGates": {"ElasticJobsViaWorkloadSlices": True, "VisibilityOnDemand": False},
    },
)
JOBSET = Neighbour(
    name="jobset",
    version="v1alpha1",
    webhooks=frozenset(("mjobset.kb.io", "vjobset.kb.io")),
    settings={
        "internalCertManagement": {"enable": False},
        "featureGates": {"ElasticJobSet": True},
    },
)


async def run(neighbour: Neighbour, plane: ControlPlane, client: Client, folder: Path) -> None:
    """Start it; it ends with the control plane.

    Skips the test where it isn't built, and on the embedded control plane.
    """
    if plane.name == "embedded":
        pytest.skip("nobody carries Jobs out here")
    program = FOLDER / neighbour.name
    if not program.exists():
        pytest.skip(f"{neighbour.name}'s controller is not built: make controllers")
    port, health = free_port(), free_port()
    certificates = folder / f"{neighbour.name}-certificates"
    authority = await _certified(neighbour, client, certificates)
    await _served(neighbour, client, f"https://{HOST}:{port}", authority)
    settings = {
        "apiVersion": f"config.{neighbour.name}.x-k8s.io/{neighbour.version}",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": HOST, "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        **neighbour.settings,
    }
    configuration = folder / f"{neighbour.name}.yaml"
    configuration.write_text(yaml.safe_dump(settings))
    access = ("--kubeconfig", str(plane.kubeconfig))
    controller = plane.component(
        neighbour.name, [str(program), *access, "--config", str(configuration)]
    )
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while not await _answers(port):
        if not controller.running() or asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"{neighbour.name}'s controller does not answer:\n{controller.tail(40)}")
        await asyncio.sleep(0.1)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


async def _certified(neighbour: Neighbour, client: Client, folder: Path) -> bytes:
    """Write the webhook server's certificate to the folder, and to the Secret in which Kueue would
    put one of its own; return the authority's."""
    parts = _certificates(f"{neighbour.name}-webhook-service.{neighbour.namespace}.svc")
    folder.mkdir()
    for name, part in parts.items():
        (folder / name).write_bytes(part)
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": neighbour.namespace}})
    meta = {"name": f"{neighbour.name}-webhook-server-cert", "namespace": neighbour.namespace}
    data = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    await client.create(_SECRETS, {"metadata": meta, "data": data})
    return parts["ca.crt"]


def _certificates(service: str) -> dict[str, bytes]:
    """Return an authority that Kueue takes for its own, by its name and the kind of its key, and
    a server's certificate for the service and this machine."""
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    authority, server = subject_of("kueue-ca"), subject_of(service)
    called = [x509.DNSName(service), x509.IPAddress(ip_address(HOST))]
    server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])

    def signed(
        subject: x509.Name, key: rsa.RSAPrivateKey, ca: bool, names: list[Any], usage: Any
    ) -> bytes:
        now, constraints = datetime.now(UTC), x509.BasicConstraints(ca, None)
        number = x509.random_serial_number()
        builder = (
            x509.CertificateBuilder(authority, subject, key.public_key(), number)
            .not_valid_before(now - timedelta(minutes=10))
            .not_valid_after(now + _LIFE)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        if usage is not None:
            builder = builder.add_extension(usage, critical=False)
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    own, its = (
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        for key in keys
    )
    return {
        "ca.crt": signed(authority, keys[0], True, [x509.DNSName("kueue-ca")], None),
        "ca.key": own,
        "tls.crt": signed(server, keys[1], False, called, server_only),
        "tls.key": its,
    }


async def _served(neighbour: Neighbour, client: Client, url: str, authority: bytes) -> None:
    """Have the API server serve its kinds, and call its webhooks."""
    bundle = base64.b64encode(authority).decode()
    called = {"url": f"{url}/convert", "caBundle": bundle}
    for obj in _objects(neighbour):
        if obj["kind"] == "CustomResourceDefinition":
            if len(obj["spec"]["versions"]) > 1:
                webhook = {"clientConfig": called, "conversionReviewVersions": ["v1"]}
                obj["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            await client.create(CRDS, obj)
            continue
        ours = [hook for hook in obj["webhooks"] if hook["name"] in neighbour.webhooks]
        assert ours, f"expected webhooks named {sorted(neighbour.webhooks)}"
        for hook in ours:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": url + path, "caBundle": bundle}
        name = f"{neighbour.name}-{obj['kind'].removesuffix('WebhookConfiguration').lower()}"
        made = {"metadata": {"name": f"{name}-webhook-configuration"}, "webhooks": ours}
        await client.create(_HOOKS[obj["kind"]], made)


def _objects(neighbour: Neighbour) -> Iterator[Object]:
    for file in sorted((FOLDER / f"{neighbour.name}-config").glob("*.yaml")):
        yield from (obj for obj in yaml.safe_load_all(file.read_text()) if obj)
