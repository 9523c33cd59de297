"""Bad requests are refused as the client's fault."""

from __future__ import annotations

import io
from typing import Any

import pytest

from embedded_cluster.apiserver import json_path, selector
from embedded_cluster.apiserver.builtin import POD
from embedded_cluster.apiserver.status import StatusError
from tests.embedded_cluster.apiserver.world import pod
from volcano_elastic.kube.client import ApiError, Client, NotFound
from volcano_elastic.kube.resource import PODS, Object

# Nine of nine of nine..., which nobody could write down.
_ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefghij"
)

_DEEP = b"".join(
    [
        b'{"metadata":{"name":"x","managedFields":[{"fieldsV1":',
        *[b'{"a":' * 300, b"{}", b"}" * 300],
        b'}]},"spec":{"containers":[{"name":"c","image":"i"}]}}',
    ]
)


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"[]", 400),
        ("application/json", b'"x"', 400),
        ("application/json", b"", 400),
        ("application/json", b'{"metadata":7}', 400),
        ("application/json", b'{"metadata":{"name":7}}', 400),
        ("application/json", b'{"metadata":{"name":"x","labels":{"a":1}}}', 400),
        ("application/json", b'{"metadata":{"name":"x","ownerReferences":[7]}}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":7}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":{"containers":{}}}', 400),
        ("application/json", b'{"metadata":{"name":"x"},"spec":{"containers":[null]}}', 422),
        ("application/json", b'{"metadata":{"name":"x"},"spec":null}', 422),
        ("application/json", b'{"kind":"Node","metadata":{"name":"x"}}', 400),
        ("application/yaml", b"{a: [", 400),
        pytest.param("application/yaml", _ALIASES, 400, id="aliases"),
        pytest.param("application/json", b"[" * 100_000, 400, id="deep"),
        pytest.param("application/json", _DEEP, 400, id="deeper than can be told"),
        pytest.param("application/yaml", b"[" * 200_000 + b"]" * 200_000, 400, id="deep YAML"),
        ("application/vnd.kubernetes.protobuf", b"k8s\x00", 400),
        pytest.param("application/json", b" " * (4 * 1024 * 1024), 413, id="large"),
    ],
)
async def test_bad_bodies_are_the_clients_fault(
    client: Client, namespace: str, content_type: str, body: bytes, code: int
) -> None:
    url = client.access.server + PODS.path(namespace)
    headers = {"Content-Type": content_type}
    async with client.session.post(
        url, data=io.BytesIO(body), headers=client.access.headers | headers
    ) as answer:
        status = await answer.json()
        assert (answer.status, status["kind"], status["code"]) == (code, "Status", code), status


@pytest.mark.parametrize("patch_type", ["merge", "json", "strategic", "apply"])
@pytest.mark.parametrize(
    "body",
    [
        7,
        [7],
        [{"op": "add", "path": "x"}],
        [{"op": "replace", "path": "", "value": 7}],
        [{"op": "move", "path": "/spec"}],
        {"spec": 7},
        {"metadata": 7},
        {"metadata": {"ownerReferences": 7}},
        {"spec": {"containers": [7]}},
        {"spec": {"containers": [{"name": None}]}},
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": []}}}]}},
        {"spec": {"tolerations": {"a": 1}}},
        {"$setElementOrder/containers": 7, "spec": {"$retainKeys": 7, "volumes": 7}},
    ],
)
async def test_bad_patches_are_the_clients_fault(
    client: Client, namespace: str, patch_type: Any, body: Any
) -> None:
    await client.create(PODS, pod(namespace, "one"))
    with pytest.raises(ApiError) as caught:
        await client.patch(PODS, "one", namespace, body, patch_type=patch_type)
    assert 400 <= caught.value.code < 500, caught.value


async def test_unknown_paths_and_methods(client: Client, namespace: str) -> None:
    for path in ("/apis/none/v1/things", "/api/v1/namespaces/default/pods/a/none", "/openapi/v4"):
        with pytest.raises(NotFound):
            await client.request("GET", path)
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await client.request("GET", "/api/v1/namespaces/default/pods/a/proxy/metrics")
    with pytest.raises(ApiError) as caught:
        await client.request("PUT", PODS.path(namespace), body={})
    assert caught.value.code == 405


@pytest.mark.parametrize("name", ["resourceVersion", "limit", "timeoutSeconds"])
@pytest.mark.parametrize("text", ["word", "1.5", "9" * 5000])
async def test_what_is_no_number_is_refused(
    client: Client, namespace: str, name: str, text: str
) -> None:
    params = {"watch": "1", name: text} if name == "timeoutSeconds" else {name: text}
    with pytest.raises(ApiError, match=f"{name}: expected a number") as caught:
        await client.request("GET", PODS.path(namespace), params=params)
    assert caught.value.code == 400


async def test_no_grace_ends_after_time_itself(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "lasting", nodeName="node-1"))
    for grace in (10**15, -(10**15), "9" * 5000):
        with pytest.raises(ApiError, match="gracePeriodSeconds") as caught:
            await client.request(
                "DELETE",
                PODS.path(namespace, "lasting"),
                body={"kind": "DeleteOptions", "gracePeriodSeconds": grace},
            )
        assert caught.value.code == 400


@pytest.mark.parametrize(
    ("verb", "below", "body", "said"),
    [
        ("POST", "binding", {"kind": "Odd", "target": {"name": "n"}}, "expected a Binding"),
        ("POST", "binding", {"target": {"name": 7}}, r"Binding.target.name: expected string"),
        ("POST", "eviction", {"kind": "Odd"}, "expected a Eviction, found a Odd"),
        ("POST", "eviction", {"deleteOptions": 7}, "Eviction.deleteOptions: expected"),
        ("DELETE", "", {"preconditions": {"uid": 7}}, r"preconditions.uid: expected string"),
        ("DELETE", "", {"dryRun": "All"}, r"dryRun: expected \[string\]"),
    ],
)
async def test_a_body_of_another_type_is_refused_by_its_field(
    client: Client, namespace: str, verb: str, below: str, body: Object, said: str
) -> None:
    await client.create(PODS, pod(namespace, "one"))
    with pytest.raises(ApiError, match=said) as caught:
        await client.request(verb, PODS.path(namespace, "one", below or None), body=body)
    assert caught.value.code == 400
    assert "nodeName" not in (await client.get(PODS, "one", namespace))["spec"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("a=" + " " * 400_000 + "!", "unable to parse"),
        ("a," * 200_000, "unable to parse"),
        ("a," * 200_000 + "(", "unable to parse"),
    ],
    ids=["spaces", "commas", "parenthesis"],
)
def test_a_long_selector_is_read_once(wrong: str, said: str) -> None:
    with pytest.raises(StatusError, match=said):
        selector.of_query({"labelSelector": wrong}, POD)


def test_a_columns_path_is_read_once() -> None:
    assert json_path.find(".spec[?(@" + ".a" * 40 + " )]", {"spec": [{}]}) == []
    found = json_path.find('.spec[?(@.a.b\\.c=="d")].e', {"spec": [{"a": {"b.c": "d"}, "e": 7}]})
    assert found == [7]
