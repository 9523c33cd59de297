"""The webhook server, and API servers that ask it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.operator.admission_review import VALIDATE, job, review
from tests.patience import eventually
from volcano_elastic.api.problem import Problem
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.kube.client import ApiError, Client, NotFound
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import (
    CRDS,
    MUTATINGWEBHOOKCONFIGURATIONS,
    PYTORCHJOBS,
    SECRETS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)
from volcano_elastic.operator import webhook
from volcano_elastic.operator.__main__ import main
from volcano_elastic.operator.admission import WEBHOOKS
from volcano_elastic.operator.certificate import Certificates, renewed

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("w.team.svc", "localhost", "127.0.0.1")
CRD = "kubeflow.org_pytorchjobs.yaml"
KINDS = {r.kind: r for r in (VALIDATINGWEBHOOKCONFIGURATIONS, MUTATINGWEBHOOKCONFIGURATIONS)}
Object = dict[str, Any]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Client]:
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client:
            yield client


def configurations() -> list[Object]:
    text = (ROOT / "manifests/webhook/configuration.yaml").read_text()
    found: list[Object] = list(yaml.safe_load_all(text))
    return found


@contextlib.asynccontextmanager
async def serving(server: webhook.WebhookServer, *, leads: bool) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(server.serve())]
    if leads:
        tasks.append(asyncio.create_task(server.lead()))
    try:
        async with asyncio.timeout(120):
            await server.listening.wait()
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def bundles(api: Client) -> set[str | None]:
    found = set()
    for resource in (VALIDATINGWEBHOOKCONFIGURATIONS, MUTATINGWEBHOOKCONFIGURATIONS):
        for item in (await api.list(resource))["items"]:
            found |= {hook["clientConfig"].get("caBundle") for hook in item["webhooks"]}
    return found


async def ask(port: int, bundle: str, path: str = VALIDATE, body: Any = None) -> tuple[int, str]:
    tls = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    data = io.BytesIO(json.dumps(review(job()) if body is None else body).encode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}{path}", data=data, ssl=tls) as got,
    ):
        return got.status, await got.text()


@pytest.mark.process
async def test_replicas_serve_what_the_leader_keeps_and_renews(api: Client) -> None:
    for configuration in configurations():
        await api.create(KINDS[configuration["kind"]], configuration)
    now = datetime.now(UTC)
    leader = webhook.WebhookServer(api, webhook.Options(), clock=lambda: now)
    standby = webhook.WebhookServer(api, webhook.Options())
    async with serving(leader, leads=True), serving(standby, leads=False):

        async def believed() -> str | None:
            (bundle, *more) = await bundles(api)
            return None if more else bundle

        bundle = await eventually(believed, "every webhook believes one authority")
        for server in (leader, standby):
            status, text = await ask(server.port, bundle)
            assert status == 200 and json.loads(text)["response"]["allowed"]
        secret = await api.get(SECRETS, webhook.NAME, "default")

        # Two thirds of the certificate's life later.
        now += timedelta(days=61)
        # Somebody applies the manifests again, which wakes the leader.
        reset = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        await api.patch(MUTATINGWEBHOOKCONFIGURATIONS, webhook.NAME, None, reset, patch_type="json")

        async def renewed_() -> bool:
            found = await api.get(SECRETS, webhook.NAME, "default")
            return bool(found["data"]["tls.crt"] != secret["data"]["tls.crt"])

        await eventually(renewed_, "a new certificate")
        assert await eventually(believed, "the bundle is back") == bundle

        async def serves_the_new() -> bool:
            found = await api.get(SECRETS, webhook.NAME, "default")
            served = await asyncio.to_thread(
                ssl.get_server_certificate, ("127.0.0.1", standby.port)
            )
            return served.strip() == base64.b64decode(found["data"]["tls.crt"]).decode().strip()

        await eventually(serves_the_new, "the standby serves it without a restart")


@pytest.mark.process
async def test_a_secret_that_somebody_broke_or_deleted_is_mended(api: Client) -> None:
    nonsense = {"ca.crt": "bm9uc2Vuc2U="}
    meta = {"name": webhook.NAME, "namespace": "default"}
    await api.create(
        SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": nonsense}
    )
    server = webhook.WebhookServer(api, webhook.Options())
    async with serving(server, leads=True):
        secret = await api.get(SECRETS, webhook.NAME, "default")
        assert (await ask(server.port, secret["data"]["ca.crt"]))[0] == 200
        await api.delete(SECRETS, webhook.NAME, "default")

        async def made_again() -> bool:
            with contextlib.suppress(NotFound, aiohttp.ClientError):
                new = await api.get(SECRETS, webhook.NAME, "default")
                return (await ask(server.port, new["data"]["ca.crt"]))[0] == 200
            return False

        await eventually(made_again, "another Secret, and what is in it serves")


def write(folder: Path, made: Certificates) -> tuple[Path, Path]:
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(made.server)
    key.write_bytes(made.server_key)
    return certificate, key


def nobody() -> Client:
    return Client(Access("http://127.0.0.1:1", {}, None))


async def test_certificates_given_as_files_are_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_FILE_SECONDS", 0.05)
    first, second = renewed(None, NAMES, datetime.now(UTC)), renewed(None, NAMES, datetime.now(UTC))
    assert first is not None and second is not None
    certificate, key = write(tmp_path, first)
    options = webhook.Options(certificate=certificate, key=key)
    server = webhook.WebhookServer(nobody(), options)
    async with serving(server, leads=True):
        bundle = base64.b64encode(first.authorities).decode()
        assert (await ask(server.port, bundle))[0] == 200
        # Half of a change: a certificate that doesn't fit the key.
        certificate.write_bytes(second.server)
        await asyncio.sleep(0.2)
        assert (await ask(server.port, bundle))[0] == 200
        write(tmp_path, second)

        async def believed() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                new = base64.b64encode(second.authorities).decode()
                return (await ask(server.port, new))[0] == 200
            return False

        await eventually(believed, "the new certificate serves")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[int, str]]:
    made = renewed(None, NAMES, datetime.now(UTC))
    assert made is not None
    certificate, key = write(tmp_path, made)
    found = webhook.WebhookServer(nobody(), webhook.Options(certificate=certificate, key=key))
    async with serving(found, leads=False):
        yield found.port, base64.b64encode(made.authorities).decode()


async def test_bad_bodies_are_refused_in_words(server: tuple[int, str]) -> None:
    port, bundle = server
    assert await ask(port, bundle, body=[]) == (400, "expected an AdmissionReview object")
    status, text = await ask(port, bundle, body="[" * 100_000)
    assert status == 400 and "expected" in text
    status, text = await ask(port, bundle, body=review(job({"rdzvId": "x" * 9_000_000})))
    assert status == 413 and "exceeded" in text
    assert (await ask(port, bundle, path="/elsewhere"))[0] == 404
    tls = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    url = f"https://127.0.0.1:{port}{VALIDATE}"
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=tls) as got:
            assert got.status == 405
        async with session.post(url, data=b"{not json", ssl=tls) as got:
            assert got.status == 400
            assert (await got.text()).startswith("expected an AdmissionReview in JSON, found:")


async def test_a_body_that_never_ends_is_given_up(
    server: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_BODY_SECONDS", 0.2)
    port, bundle = server
    tls = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(f"POST {VALIDATE} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{{".encode())
    async with asyncio.timeout(120):
        assert b" 408 " in await reader.readline()
    writer.close()


async def test_a_large_review_does_not_hold_the_event_loop(
    server: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def check(obj: Any) -> list[Problem]:
        threads.append(threading.current_thread() is threading.main_thread())
        return validate(obj)

    monkeypatch.setattr("volcano_elastic.operator.admission.validate", check)
    for size in (10, 1_000_000):
        status, text = await ask(*server, body=review(job({"rdzvId": "x" * size})))
        assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
    assert threads == [True, False]


async def test_a_defect_of_ours_keeps_nobody_out(
    server: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(obj: Any) -> Any:
        raise KeyError("defect")

    monkeypatch.setattr("volcano_elastic.operator.admission.validate", broken)
    status, text = await ask(*server)
    response = json.loads(text)["response"]
    assert (status, response["allowed"]) == (200, True)
    assert "could not check" in response["warnings"][0]


async def test_an_address_in_use_is_told_at_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(webhook.AddressTaken, match=f"--webhook-address 127.0.0.1:{port}: "):
            webhook.WebhookServer(nobody(), webhook.Options(port=port))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--webhook-cert", "a"], "expected --webhook-cert and --webhook-key together"),
        (
            ["--webhook-address", "127.0.0.1:0", "--webhook-cert", "a", "--webhook-key", "b"],
            "--webhook-cert a, --webhook-key b: expected a certificate in PEM and its key, found:",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_in_words(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    names = {"clusters": "cluster", "users": "user", "contexts": "context"}
    named: Object = {kind: [{"name": "a", one: {}}] for kind, one in names.items()}
    named["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:1"}
    named["contexts"][0]["context"] = {"cluster": "a", "user": "a"}
    kubeconfig.write_text(yaml.safe_dump(named | {"current-context": "a"}))
    assert main(["--kubeconfig", str(kubeconfig), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_configuration_names_every_path_that_is_served() -> None:
    hooks = [hook for found in configurations() for hook in found["webhooks"]]
    assert {hook["clientConfig"]["service"]["path"] for hook in hooks} == set(WEBHOOKS)
    for hook in hooks:
        wanted = WEBHOOKS[hook["clientConfig"]["service"]["path"]].resource
        (rule,) = hook["rules"]
        assert rule["apiGroups"] == [wanted.group] and rule["apiVersions"] == [wanted.version]
        assert rule["resources"] == [wanted.plural]
        assert hook["failurePolicy"] == "Ignore" and hook["timeoutSeconds"] <= 5
        assert hook["clientConfig"]["service"]["name"] == webhook.NAME
    assert {found["metadata"]["name"] for found in configurations()} == {webhook.NAME}


async def configure(api: Client, port: int, bundle: str | None, policy: str = "Fail") -> None:
    for configuration in configurations():
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            hook["failurePolicy"] = policy
        await api.create(KINDS[configuration["kind"]], configuration)


@pytest.fixture
async def asked(api: Client, server: tuple[int, str]) -> Client:
    for file in (ROOT / "crds").glob("*.yaml"):
        await api.create(CRDS, yaml.safe_load(file.read_text()))
    await configure(api, *server)
    return api


def of_default(obj: Object) -> Object:
    return obj | {"metadata": {"name": "a", "namespace": "default"}}


def nameless(body: Object) -> Object:
    """Wrong in a way that the CRD's own rules don't see."""
    template = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["name"] = "main"
    return body


@pytest.mark.process
async def test_defaults_are_stored_and_refusals_reach_the_client(asked: Client) -> None:
    stored = await asked.create(PYTORCHJOBS, of_default(job({"max": 4})))
    assert stored["spec"]["runPolicy"] == {"cleanPodPolicy": "None", "suspend": False}
    assert stored["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    wrong = nameless(of_default(job()))
    wrong["metadata"]["name"] = "b"
    with pytest.raises(ApiError) as refused:
        await asked.create(PYTORCHJOBS, wrong)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    assert refused.value.message == (
        'admission webhook "validate.pytorchjob.volcano-elastic.io" denied the request: '
        "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must have "
        "at least one container with name pytorch"
    )


@pytest.mark.process
async def test_a_change_is_asked_about_with_what_was_before(asked: Client) -> None:
    await asked.create(PYTORCHJOBS, of_default(job()))
    queue = {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "b"}}}}
    with pytest.raises(ApiError, match="queue is immutable"):
        await asked.patch(PYTORCHJOBS, "a", "default", queue)
    emptied = {"spec": {"runPolicy": {"cleanPodPolicy": None, "backoffLimit": 3}}}
    stored = await asked.patch(PYTORCHJOBS, "a", "default", emptied)
    # What was taken out is filled in again, in the same write.
    run_policy = {"cleanPodPolicy": "None", "backoffLimit": 3, "suspend": False}
    assert stored["spec"]["runPolicy"] == run_policy
    assert stored["metadata"]["generation"] == 2
    status = {"status": {"conditions": []}}
    await asked.patch(PYTORCHJOBS, "a", "default", status, subresource="status")


@pytest.mark.process
async def test_server_side_apply_owns_what_was_applied_and_not_what_was_filled_in(
    asked: Client,
) -> None:
    stored: Object = {}
    for high in (4, 6):
        applied = of_default(job({"max": high}))
        stored = await asked.patch(PYTORCHJOBS, "a", "default", applied, patch_type="apply")
    assert stored["spec"]["elasticPolicy"]["max"] == 6
    assert stored["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
    (owner,) = stored["metadata"]["managedFields"]
    assert "f:cleanPodPolicy" not in json.dumps(owner)
    assert "f:max" in json.dumps(owner)


@pytest.mark.process
async def test_warnings_reach_the_client(asked: Client) -> None:
    body = of_default(job({"nProcPerNode": 2, "minReplica": 1}))
    url = asked.access.server + PYTORCHJOBS.path("default")
    async with asked.session.post(url, json=body, headers=asked.access.headers) as got:
        assert got.status == 201
        assert got.headers.getall("Warning") == [
            '299 - "unknown field \\"spec.elasticPolicy.minReplica\\""',
            '299 - "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"',
        ]


@pytest.mark.process
async def test_writers_that_meet_at_a_webhook_both_get_through(asked: Client) -> None:
    await asked.create(PYTORCHJOBS, of_default(job()))
    labels = [{"metadata": {"labels": {f"l{i}": "x"}}} for i in range(4)]
    await asyncio.gather(*(asked.patch(PYTORCHJOBS, "a", "default", one) for one in labels))
    stored = await asked.get(PYTORCHJOBS, "a", "default")
    assert set(stored["metadata"]["labels"]) == {"l0", "l1", "l2", "l3"}


@pytest.mark.process
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_a_webhook_that_is_away_is_ignored_or_not_as_its_policy_says(
    api: Client, policy: str
) -> None:
    await api.create(CRDS, yaml.safe_load((ROOT / "crds" / CRD).read_text()))
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        await configure(api, nobody_listens.getsockname()[1], None, policy)
        if policy == "Ignore":
            await api.create(PYTORCHJOBS, nameless(of_default(job())))
            return
        with pytest.raises(ApiError, match="failed calling webhook") as failed:
            await api.create(PYTORCHJOBS, of_default(job()))
        assert failed.value.code == 500


@pytest.mark.process
async def test_a_webhook_behind_a_service_is_asked_by_the_services_name(tmp_path: Path) -> None:
    names = webhook.names_of(webhook.NAME, "volcano-elastic-system")
    made = renewed(None, names, datetime.now(UTC))
    assert made is not None
    certificate, key = write(tmp_path, made)
    hooks = webhook.WebhookServer(nobody(), webhook.Options(certificate=certificate, key=key))
    address = ("--webhook-service-address", f"127.0.0.1:{hooks.port}")
    with ApiServerProcess(tmp_path, arguments=address) as process:
        async with serving(hooks, leads=False), process.client() as api:
            await api.create(CRDS, yaml.safe_load((ROOT / "crds" / CRD).read_text()))
            for configuration in configurations():
                for hook in configuration["webhooks"]:
                    bundle = base64.b64encode(made.authorities).decode()
                    hook["clientConfig"]["caBundle"] = bundle
                    hook["failurePolicy"] = "Fail"
                await api.create(KINDS[configuration["kind"]], configuration)
            stored = await api.create(PYTORCHJOBS, of_default(job()))
            assert stored["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
