"""Configuration and credentials by the official client: volcano_elastic/kube/kubeconfig.py."""

from __future__ import annotations

import copy
import json
import re
import ssl
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from volcano_elastic.kube.authority import Authority
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.kubeconfig import Access, KubeconfigError, in_cluster, load
from volcano_elastic.kube.resource import PODS

EMPTY = {"metadata": {"resourceVersion": "1"}, "items": []}
# Prints a new token at each run, which holds for an hour.
PLUGIN = """#!{python}
import json, pathlib
runs = pathlib.Path({runs!r})
count = len(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text("x" * count)
print(json.dumps({{
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {{"token": f"token-{{count}}", "expirationTimestamp": {expires!r}}},
}}))
"""


def write(
    file: Path,
    server: str = "http://127.0.0.1:1",
    *,
    user: dict[str, Any] | None = None,
    namespace: str = "team",
    **cluster: Any,
) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": server} | cluster}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "secret"}}],
    }
    file.write_text(yaml.safe_dump(config))
    return file


def plugin(folder: Path, expires: datetime) -> dict[str, Any]:
    """A user whose credentials come from a program beside the kubeconfig."""
    program = folder / "login"
    text = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
    program.write_text(
        PLUGIN.format(python=sys.executable, runs=str(folder / "runs"), expires=text)
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    api = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": api, "command": "./login", "interactiveMode": "Never"}}


@asynccontextmanager
async def serving(
    answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Yields the port."""
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Guarded:
    """An API server that accepts one token, and keeps those it was shown."""

    def __init__(self, accepted: str = "") -> None:
        self.accepted = accepted
        self.shown: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.shown.append(request.headers.get("Authorization", ""))
        known = self.shown[-1] == f"Bearer {self.accepted}"
        return web.json_response(EMPTY, status=200 if known else 401)


@pytest.mark.process
async def test_a_token_that_is_refused_is_got_anew_from_its_plugin(tmp_path: Path) -> None:
    guard = Guarded("token-1")
    async with serving(guard.answer) as port:
        user = plugin(tmp_path, datetime.now(UTC) + timedelta(hours=1))
        file = write(tmp_path / "config", f"http://127.0.0.1:{port}", user=user)
        async with Client(load(str(file))) as client:
            await client.list(PODS)
            await client.list(PODS)
            guard.accepted = "token-2"
            await client.list(PODS)
    assert guard.shown == [f"Bearer token-{n}" for n in (1, 1, 1, 2)]


@pytest.mark.process
def test_a_token_that_runs_out_soon_is_got_anew_before(tmp_path: Path) -> None:
    user = plugin(tmp_path, datetime.now(UTC) + timedelta(minutes=2))
    access = load(str(write(tmp_path / "config", user=user)))
    assert access.renew is not None
    first, second = access.renew(False), access.renew(False)
    assert first != second and second["Authorization"].startswith("Bearer token-")


@pytest.mark.process
def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    user = plugin(tmp_path, datetime.now(UTC))
    (tmp_path / "login").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(KubeconfigError, match=r"expected credentials from the plug-in './login'"):
        load(str(write(tmp_path / "config", user=user)))


async def test_a_token_that_never_changes_is_not_shown_twice() -> None:
    guard = Guarded("another")
    async with serving(guard.answer) as port:
        access = Access(f"http://127.0.0.1:{port}", {"Authorization": "Bearer mine"}, None)
        async with Client(access) as client:
            with pytest.raises(ApiError, match="401"):
                await client.list(PODS)
    assert guard.shown == ["Bearer mine"]


def test_a_token_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    access = load(str(write(tmp_path / "config", user={"tokenFile": "token"})))
    assert access.renew is not None
    assert access.renew(False) == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    assert access.renew(False) == {"Authorization": "Bearer two"}
    assert access.secrets() == ("two",)


def test_several_files_are_one_configuration_whose_paths_begin_at_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.new("a", datetime.now(UTC), timedelta(days=1))
    clusters, users = tmp_path / "clusters", tmp_path / "users"
    for folder in (clusters, users):
        folder.mkdir()
    (clusters / "ca.crt").write_bytes(authority.certificate)
    (users / "token").write_text("secret")
    whole = yaml.safe_load(
        write(
            tmp_path / "whole",
            "https://api.example:6443",
            user={"tokenFile": "token"},
            **{"certificate-authority": "ca.crt"},
        ).read_text()
    )
    parts = {"users": whole.pop("users")}
    (clusters / "config").write_text(yaml.safe_dump(whole))
    (users / "config").write_text(yaml.safe_dump(parts))
    named = [tmp_path / "is-not-there", clusters / "config", users / "config"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, named)))
    monkeypatch.chdir("/")
    access = load()
    assert (access.server, access.namespace) == ("https://api.example:6443", "team")
    assert access.headers == {"Authorization": "Bearer secret"}
    assert access.tls is not None and access.tls.cert_store_stats()["x509_ca"] == 1


async def test_a_server_is_known_by_the_name_that_the_file_gives(tmp_path: Path) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(EMPTY)

    now, day = datetime.now(UTC), timedelta(days=1)
    authority = Authority.new("a", now, day)
    certificate, key = authority.server("s", ["api.example"], now, day)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "server.pem").write_bytes(certificate + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    known = {"certificate-authority": "ca.crt", "tls-server-name": "api.example"}
    async with serving(answer, tls) as port:
        file = write(tmp_path / "config", f"https://127.0.0.1:{port}", **known)
        async with Client(load(str(file))) as client:
            assert (await client.list(PODS))["items"] == []
            watched = [x async for x in client.watch(PODS, resource_version="1")]
            assert [kind for kind, _ in watched] == []


@pytest.mark.parametrize("named", [True, False], ids=["proxy-url", "HTTP_PROXY"])
async def test_a_server_behind_a_proxy_is_asked_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    asked: list[str] = []

    async def proxy(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(str(request.url))
        return web.json_response(EMPTY)

    async with serving(proxy) as port:
        url = f"http://127.0.0.1:{port}"
        if not named:
            monkeypatch.setenv("http_proxy", url)
            monkeypatch.setenv("no_proxy", "other.example")
        file = write(tmp_path / "c", "http://api.example", **({"proxy-url": url} if named else {}))
        async with Client(load(str(file))) as client:
            await client.list(PODS)
    assert asked == ["http://api.example/api/v1/pods"]


def test_what_is_on_this_machine_is_not_asked_through_the_environments_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert load(str(write(tmp_path / "c", "http://127.0.0.1:8080"))).proxy is None
    monkeypatch.setenv("no_proxy", "api.example")
    assert load(str(write(tmp_path / "c", "http://api.example"))).proxy is None


def test_name_and_password_are_shown(tmp_path: Path) -> None:
    user = {"username": "ann", "password": "word"}
    access = load(str(write(tmp_path / "c", user=user)))
    assert access.headers == {"Authorization": "Basic YW5uOndvcmQ="}


def test_in_a_pod_the_service_account_is_taken(tmp_path: Path) -> None:
    authority = Authority.new("a", datetime.now(UTC), timedelta(days=1))
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "token").write_text("mine\n")
    (tmp_path / "namespace").write_text("volcano\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = in_cluster(tmp_path, environment)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "volcano")
    assert access.headers == {"Authorization": "Bearer mine"} and access.tls is not None
    with pytest.raises(KubeconfigError, match="not set"):
        in_cluster(tmp_path, {})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"/config: No such file or directory; give --kubeconfig"),
        ("a: [", "is not YAML"),
        ("[]", "expected an object, found a list, in .*/config at its top"),
        ("\x00", "is not YAML"),
        (json.dumps({"current-context": "x", "contexts": []}), "name x in"),
        ("", "empty"),
    ],
)
def test_a_file_that_can_not_be_used_is_told_with_the_reason(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    with pytest.raises(KubeconfigError, match=complaint):
        load(str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("cluster", "complaint"),
    [
        ({"proxy-url": "socks5://127.0.0.1:1"}, "expected http:// or https://, found 'socks5"),
        ({"certificate-authority": "missing.crt"}, "missing.crt"),
    ],
)
def test_a_cluster_that_can_not_be_reached_so_is_told(
    tmp_path: Path, cluster: dict[str, str], complaint: str
) -> None:
    file = write(tmp_path / "config", "https://api.example", **cluster)
    with pytest.raises(KubeconfigError, match=complaint):
        load(str(file))


WRONG = (7, 1.5, True, "text", ["a"], {"a": 1}, "2026-01-01")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    steps: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict | list):
        steps = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in steps:
        yield from places(inner, (*path, key))


def test_a_wrong_type_anywhere_is_a_sentence_with_its_place(tmp_path: Path) -> None:
    user = {
        "token": "s",
        "client-certificate-data": "YQ==",
        "exec": {
            "apiVersion": "v1",
            "command": "c",
            "args": ["a"],
            "env": [{"name": "n", "value": "v"}],
        },
    }
    cluster = {"insecure-skip-tls-verify": True, "proxy-url": "http://p", "tls-server-name": "n"}
    whole = yaml.safe_load(write(tmp_path / "whole", user=user, **cluster).read_text())
    tried = 0
    for path in places(whole):
        for wrong in WRONG:
            odd = copy.deepcopy(whole)
            inner: Any = {"": odd}
            for key in ("", *path)[:-1]:
                inner = inner[key]
            last = ("", *path)[-1]
            if path[:1] in (("apiVersion",), ("kind",)) or type(inner[last]) is type(wrong):
                continue
            inner[last] = wrong
            file = tmp_path / "config"
            file.write_text(yaml.safe_dump(odd if path else wrong))
            with pytest.raises(KubeconfigError) as told:
                load(str(file))
            text = str(told.value)
            assert re.search(rf"expected [^,]+, found [^,]+, in {file} at ", text), text
            assert "NoneType" not in text and "object has no" not in text and "<" not in text
            tried += 1
    assert tried > 100


def test_a_certificate_that_is_no_base64_is_named_and_not_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "config", user={"client-key-data": "-----BEGIN"})
    with pytest.raises(KubeconfigError, match=r"expected base64, .* at users\[0\].user.client-key"):
        load(str(file))
    numeric = write(tmp_path / "config", user={"token": 123456789})
    with pytest.raises(KubeconfigError, match="expected a string, found a number") as told:
        load(str(numeric))
    assert "123456789" not in str(told.value)
