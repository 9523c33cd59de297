"""Whatever anybody sends: no answer of 500 and more, and the store stays whole."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedded_cluster.apiserver.builtin import SYSTEM_PRIORITIES
from tests.embedded_cluster.apiserver.process import TOKEN, ApiServerProcess
from tests.embedded_cluster.apiserver.random_requests import (
    ACCEPTED,
    COLLECTIONS,
    CRD,
    CRDS,
    FORMATS,
    NEARLY_RIGHT,
    OBJECTS,
    OPERATIONS,
    QUERIES,
    RIGHT,
    THINGS,
    TOY,
    VALUES,
)

pytestmark = pytest.mark.process

_SETTINGS = settings(
    max_examples=max(300, settings.default.max_examples),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class _Server:
    def __init__(self, process: ApiServerProcess) -> None:
        self._process = process

    def ask(
        self, verb: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        host = self._process.server.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=20)
        try:
            headers |= {"Authorization": f"Bearer {TOKEN}"}
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    folder = tmp_path_factory.mktemp("fuzz")
    with ApiServerProcess(folder, data_dir=folder / "data") as process:
        server = _Server(process)
        code, said = server.ask("POST", CRDS, json.dumps(CRD).encode())
        assert code == 201, said
        yield server
        before = _everything(server)
        process.stop()
        process.start()
        assert _everything(server) == before, "what was answered is not what was kept"


def _everything(server: _Server) -> dict[str, Any]:
    found = {}
    for path in COLLECTIONS:
        code, said = server.ask("GET", path)
        assert code == 200 or (code == 404 and path == TOY), said
        found[path] = [
            item
            for item in (json.loads(said)["items"] if code == 200 else ())
            # Made anew at each start, where somebody deleted them.
            if item["metadata"]["name"] not in SYSTEM_PRIORITIES
        ]
    return found


@_SETTINGS
@given(
    verb=st.sampled_from(["POST", "PUT", "PATCH", "PATCH", "PATCH", "DELETE", "GET"]),
    collection=st.sampled_from(COLLECTIONS),
    below=st.sampled_from(
        [
            "",
            "/fuzz",
            "/fuzz",
            "/fuzz/status",
            "/fuzz/scale",
            "/fuzz/binding",
            "/fuzz/eviction",
            "/fuzz/log",
            "/toys.fuzz.example.org",
        ]
    ),
    query=QUERIES,
    content=FORMATS,
    accept=ACCEPTED,
    body=st.one_of(
        OBJECTS.map(json.dumps), OPERATIONS.map(json.dumps), VALUES.map(json.dumps), st.text()
    ),
)
def test_no_request_is_the_servers_fault(
    server: _Server,
    verb: str,
    collection: str,
    below: str,
    query: dict[str, str],
    content: str,
    accept: str,
    body: str,
) -> None:
    if "watch" in query:
        query["timeoutSeconds"] = "1"
    path = f"{collection}{below}?{urllib.parse.urlencode(query)}"
    headers = {"Content-Type": content, "Accept": accept}
    code, said = server.ask(verb, path, body.encode(errors="replace"), **headers)
    assert code < 500, (code, said)
    _can_be_read(server, collection)


@_SETTINGS
@given(
    nearly_right=NEARLY_RIGHT,
    subresource=st.sampled_from(["", "", "/status", "/scale"]),
    content=FORMATS,
)
def test_nothing_nearly_right_is_the_servers_fault(
    server: _Server, nearly_right: tuple[str, Any, Any], subresource: str, content: str
) -> None:
    collection, first, second = nearly_right
    name = RIGHT[collection]["metadata"]["name"]
    one = f"{collection}/{name}"
    for verb, path, body, sent_as in (
        ("POST", collection, first, "application/json"),
        ("PATCH", f"{one}{subresource}?fieldManager=fuzz&force=true", second, content),
        # Of a kind as the spoiled CRD has it.
        ("POST", THINGS, {**RIGHT[TOY], "kind": "Thing"}, "application/json"),
        ("PUT", one + subresource, second, "application/json"),
    ):
        code, said = server.ask(verb, path, json.dumps(body).encode(), **{"Content-Type": sent_as})
        assert code < 500, (verb, path, code, said)
    _can_be_read(server, collection)
    ended = {"gracePeriodSeconds": 0}
    for path in (one, f"{THINGS}/right"):
        unfinished = json.dumps({"metadata": {"finalizers": None}}).encode()
        merge = {"Content-Type": "application/merge-patch+json"}
        assert server.ask("PATCH", path, unfinished, **merge)[0] < 500
        code, said = server.ask("DELETE", path, json.dumps(ended).encode())
        assert code < 500, (path, code, said)


def _can_be_read(server: _Server, collection: str) -> None:
    """List what was written, as objects and as a table."""
    code, said = server.ask("GET", collection)
    if code == 404 and collection == TOY:
        return  # Its CRD may have been deleted, or its group changed.
    assert code == 200, said
    assert all(item["metadata"]["uid"] for item in json.loads(said)["items"])
    code, said = server.ask(
        "GET", collection, Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    assert code == 200 and json.loads(said)["kind"] == "Table", said
