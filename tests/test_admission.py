"""Admission: what the webhooks answer, over which certificates, and how these are renewed."""

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
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.apiserver_process import ApiServerProcess
from tests.operator_process import eventually
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
from volcano_elastic.local.apiserver.patch import json_patch
from volcano_elastic.operator import webhook
from volcano_elastic.operator.__main__ import main
from volcano_elastic.operator.admission import WEBHOOKS, BadReview, answer
from volcano_elastic.operator.certificate import Certificates, renewed

ROOT = Path(__file__).parents[1]
VALIDATE = "/validate-kubeflow-org-v1-pytorchjob"
MUTATE = "/mutate-kubeflow-org-v1-pytorchjob"
POLICY = "/validate-policy-volcano-elastic-io-v1alpha1-queuepolicy"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("w.team.svc", "localhost", "127.0.0.1")
CRD = "kubeflow.org_pytorchjobs.yaml"
KINDS = {r.kind: r for r in (VALIDATINGWEBHOOKCONFIGURATIONS, MUTATINGWEBHOOKCONFIGURATIONS)}
Object = dict[str, Any]


def job(elastic: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    worker = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": worker | ({} if elastic is None else {"elasticPolicy": elastic}) | spec,
    }


def review(obj: Any, old: Any = None, **request: Any) -> Object:
    operation = "CREATE" if old is None else "UPDATE"
    asked = {"uid": "u1", "operation": operation, "object": obj, "oldObject": old} | request
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def respond(path: str, obj: Any, old: Any = None, **request: Any) -> Object:
    found = answer(WEBHOOKS[path], review(obj, old, **request))
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Object = found["response"]
    assert response["uid"] == "u1"
    return response


def test_a_sound_job_is_let_in() -> None:
    assert respond(VALIDATE, job()) == {"uid": "u1", "allowed": True}


def test_a_refusal_reads_as_kubeflows_do() -> None:
    response = respond(VALIDATE, job({"min": 3, "max": 2}, runPolicy={"managedBy": "me"}))
    assert not response["allowed"]
    assert response["status"] == {
        "status": "Failure",
        "code": 403,
        "reason": "Forbidden",
        "message": '[spec.runPolicy.managedBy: Unsupported value: "me": supported values: '
        '"kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue", '
        "spec.elasticPolicy.min: Invalid value: 3: must be at most max (2)]",
    }


def test_a_warning_lets_in() -> None:
    response = respond(VALIDATE, job({"nProcPerNode": 2}))
    assert response["allowed"]
    assert response["warnings"] == [
        "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
    ]


def test_no_warning_is_longer_than_the_api_server_takes() -> None:
    response = respond(VALIDATE, job({"rdzvBackend": "x" * 9999}))
    assert [len(text) for text in response["warnings"]] == [256]


def test_queue_and_manager_may_not_change() -> None:
    old = job(runPolicy={"schedulingPolicy": {"queue": "a"}})
    new = job(runPolicy={"schedulingPolicy": {"queue": "b"}})
    assert "queue is immutable" in respond(VALIDATE, new, old)["status"]["message"]
    new = job(runPolicy=old["spec"]["runPolicy"] | {"managedBy": "kueue.x-k8s.io/multikueue"})
    assert "field is immutable" in respond(VALIDATE, new, old)["status"]["message"]


def test_a_job_that_was_wrong_all_along_can_be_labelled_deleted_and_repaired() -> None:
    wrong = job({"min": 3, "max": 2})
    labelled = wrong | {"metadata": wrong["metadata"] | {"labels": {"a": "b"}}}
    assert respond(VALIDATE, labelled, wrong)["allowed"]
    going = job({"min": 4, "max": 2})
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert respond(VALIDATE, going, wrong)["allowed"]
    assert respond(VALIDATE, job({"min": 2, "max": 2}), wrong)["allowed"]
    assert not respond(VALIDATE, job({"min": 5, "max": 2}), wrong)["allowed"]


def test_defaults_come_as_a_patch_that_leaves_nothing_to_fill_in() -> None:
    obj = job({"max": 4})
    response = respond(MUTATE, obj)
    assert response["patchType"] == "JSONPatch"
    filled = json_patch(obj, json.loads(base64.b64decode(response["patch"])))
    assert filled["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
    assert filled["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert respond(MUTATE, filled) == {"uid": "u1", "allowed": True}


def test_defaults_never_refuse_what_they_cannot_fill_in() -> None:
    assert respond(MUTATE, job() | {"spec": 5})["allowed"]


def test_a_queue_policy_is_checked_at_its_own_path() -> None:
    policy = {
        "apiVersion": "policy.volcano-elastic.io/v1alpha1",
        "kind": "QueuePolicy",
        "metadata": {"name": "p"},
        "spec": {"queue": "research", "mode": "Active"},
    }
    assert respond(POLICY, policy)["allowed"]
    wrong = policy | {"spec": {"queue": "research", "mode": "Fast"}}
    assert "spec.mode" in respond(POLICY, wrong)["status"]["message"]
    message = respond(VALIDATE, policy)["status"]["message"]
    assert message == "expected a PyTorchJob of kubeflow.org/v1"


@pytest.mark.parametrize("request_", [{"operation": "DELETE"}, {"subResource": "status"}])
def test_what_is_not_asked_about_is_let_pass(request_: Object) -> None:
    assert respond(VALIDATE, job({"min": -1}), job(), **request_)["allowed"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "expected an AdmissionReview object"),
        ([1], "expected an AdmissionReview object"),
        (job(), "expected an AdmissionReview object"),
        (review(job()) | {"apiVersion": "v2"}, "expected admission.k8s.io/v1, found 'v2'"),
        (review(job()) | {"request": None}, "request: expected an object with a uid"),
        (review(job(), uid=None), "request: expected an object with a uid"),
    ],
)
def test_what_is_no_review_is_refused_with_what_was_expected(body: Any, words: str) -> None:
    with pytest.raises(BadReview, match=words):
        answer(WEBHOOKS[VALIDATE], body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["spec", "a"]), inner)
    ),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WEBHOOKS)), _json, _json)
def test_no_object_breaks_a_review(path: str, spec: Any, old: Any) -> None:
    wanted = WEBHOOKS[path].resource
    whole = {"apiVersion": wanted.api_version, "kind": wanted.kind, "metadata": {"name": "a"}}
    for obj, before in ((spec, old), (whole | {"spec": spec}, whole | {"spec": old})):
        response = answer(WEBHOOKS[path], review(obj, before, operation="UPDATE"))["response"]
        assert response["allowed"] or response["status"]["message"]


# Certificates


def test_nothing_leads_to_an_authority_and_a_certificate_for_every_name() -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    server = x509.load_pem_x509_certificate(made.server)
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(made.authorities))
    assert Certificates.of_secret(made.secret_data()) == made
    assert renewed(made, NAMES, NOW) is None


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_a_secret_that_somebody_broke_is_nothing(key: str) -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    data = made.secret_data()
    assert Certificates.of_secret(data | {key: "bm9uc2Vuc2U="}) is None
    assert Certificates.of_secret(data | {key: "?"}) is None
    assert Certificates.of_secret({k: v for k, v in data.items() if k != key}) is None
    other = renewed(None, NAMES, NOW)
    assert other is not None
    assert Certificates.of_secret(data | {key: other.secret_data()[key]}) is None


def test_other_names_are_signed_for_by_the_same_authority() -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    again = renewed(made, ("other.svc",), NOW)
    assert again is not None
    assert again.authorities == made.authorities and again.server != made.server


def test_through_twenty_years_what_is_served_was_always_believed_a_step_before() -> None:
    current, now, steps = renewed(None, NAMES, NOW), NOW, 0
    assert current is not None
    while now < NOW + timedelta(days=7300):
        now += timedelta(days=7)
        new = renewed(current, NAMES, now)
        if new is not None:
            steps += 1
        latest = new or current
        # API server and replicas may each be a step behind the other.
        for believed, served in ((latest, latest), (current, latest), (latest, current)):
            server = x509.load_pem_x509_certificate(served.server)
            authorities = x509.load_pem_x509_certificates(believed.authorities)
            (signer,) = [a for a in authorities if a.subject == server.issuer]
            server.verify_directly_issued_by(signer)
            assert signer.not_valid_after_utc > now < server.not_valid_after_utc
        assert len(x509.load_pem_x509_certificates(latest.authorities)) <= 2
        current = latest
    assert steps > 100


# The server


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
        async with asyncio.timeout(20):
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
    async with asyncio.timeout(10):
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


# The embedded API server asks them


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


async def test_warnings_reach_the_client(asked: Client) -> None:
    body = of_default(job({"nProcPerNode": 2, "minReplica": 1}))
    url = asked.access.server + PYTORCHJOBS.path("default")
    async with asked.session.post(url, json=body, headers=asked.access.headers) as got:
        assert got.status == 201
        assert got.headers.getall("Warning") == [
            '299 - "unknown field \\"spec.elasticPolicy.minReplica\\""',
            '299 - "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"',
        ]


async def test_writers_that_meet_at_a_webhook_both_get_through(asked: Client) -> None:
    await asked.create(PYTORCHJOBS, of_default(job()))
    labels = [{"metadata": {"labels": {f"l{i}": "x"}}} for i in range(4)]
    await asyncio.gather(*(asked.patch(PYTORCHJOBS, "a", "default", one) for one in labels))
    stored = await asked.get(PYTORCHJOBS, "a", "default")
    assert set(stored["metadata"]["labels"]) == {"l0", "l1", "l2", "l3"}


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
