"""Whatever anybody sends: no answer of 500 and more, and the store stays whole."""

from __future__ import annotations

import copy
import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver_process import TOKEN, ApiServerProcess
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volcano_elastic.local.apiserver.builtin import SYSTEM_PRIORITIES

_POD = "/api/v1/namespaces/default/pods"
_TOY = "/apis/fuzz.example.org/v1/namespaces/default/toys"
_THINGS = "/apis/fuzz.example.org/v1/namespaces/default/things"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_COLLECTIONS = (
    _POD,
    _TOY,
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/events",
    "/api/v1/nodes",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    _CRDS,
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
)
_SPEC = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 1, "default": 2},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "value": {"x-kubernetes-preserve-unknown-fields": True},
    },
    "x-kubernetes-validations": [{"rule": "!has(self.parts) || size(self.parts) < 3"}],
}
_CRD = {
    "metadata": {"name": "toys.fuzz.example.org"},
    "spec": {
        "group": "fuzz.example.org",
        "scope": "Namespaced",
        "names": {"plural": "toys", "kind": "Toy"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size",
                    },
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": _SPEC, "status": _SPEC},
                    }
                },
            }
        ],
    },
}
_NAMES = st.sampled_from(
    [
        "metadata",
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "uid",
        "resourceVersion",
        "deletionTimestamp",
        "managedFields",
        "spec",
        "status",
        "data",
        "containers",
        "initContainers",
        "image",
        "resources",
        "limits",
        "requests",
        "cpu",
        "env",
        "ports",
        "port",
        "protocol",
        "tolerations",
        "schedulingGates",
        "volumes",
        "conditions",
        "type",
        "phase",
        "nodeName",
        "priorityClassName",
        "size",
        "parts",
        "value",
        "ports",
        "selector",
        "clusterIP",
        "webhooks",
        "rules",
        "clientConfig",
        "versions",
        "names",
        "schema",
        "openAPIV3Schema",
        "properties",
        "items",
        "group",
        "scope",
        "involvedObject",
        "regarding",
        "preconditions",
        "propagationPolicy",
        "gracePeriodSeconds",
        "target",
        "kind",
        "apiVersion",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "op",
        "path",
        "from",
        "maxReplicas",
        "scaleTargetRef",
        "holderIdentity",
        "renewTime",
        "replicas",
    ]
)
_TEXTS = st.one_of(
    _NAMES,
    st.sampled_from(
        [
            "",
            "a",
            "1",
            "500m",
            "1e9999",
            "replace",
            "delete",
            "add",
            "test",
            "/metadata/labels/a",
            "/spec/containers/0/image",
            "/-",
            "~2",
            "v1",
            "Pod",
            "Toy",
            "fuzz.example.org/v1",
            "é\x00",
        ]
    ),
    st.text(max_size=8),
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    _TEXTS,
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=5)
    ),
    max_leaves=25,
)
_OBJECTS = st.builds(
    lambda meta, rest: {**rest, "metadata": {"name": "fuzz", **meta}},
    st.dictionaries(_NAMES, _VALUES, max_size=3),
    st.dictionaries(_NAMES, _VALUES, max_size=4),
)
_OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": _TEXTS, "path": _TEXTS}, optional={"value": _VALUES, "from": _TEXTS}
    ),
    max_size=4,
)
_QUERIES = st.dictionaries(
    st.sampled_from(
        [
            "watch",
            "timeoutSeconds",
            "resourceVersion",
            "resourceVersionMatch",
            "limit",
            "continue",
            "labelSelector",
            "fieldSelector",
            "dryRun",
            "fieldManager",
            "fieldValidation",
            "force",
            "propagationPolicy",
            "gracePeriodSeconds",
            "sendInitialEvents",
            "allowWatchBookmarks",
            "includeObject",
            "container",
            "tailLines",
        ]
    ),
    st.one_of(
        _TEXTS, st.sampled_from(["true", "All", "a=b", "a in (b", "!a", "Strict", "x" * 300])
    ),
    max_size=4,
)
_FORMATS = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/vnd.kubernetes.protobuf",
        "text/odd",
        "",
    ]
)
_ACCEPTED = st.sampled_from(
    ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "*/*", ";;as=,"]
)


_SETTINGS = settings(
    max_examples=max(300, settings.default.max_examples),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Right as they are; the tests spoil them in a place or two.
_RIGHT: dict[str, Any] = {
    _POD: {
        "metadata": {
            "name": "right",
            "labels": {"a": "b"},
            "annotations": {"a": "b"},
            "finalizers": ["example.org/f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "image:1",
                    "command": ["true"],
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    ],
                    "ports": [{"containerPort": 80, "name": "p"}],
                    "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 1},
                }
            ],
            "initContainers": [{"name": "first", "image": "image"}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
            "schedulingGates": [{"name": "example.org/g"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
            "nodeName": "node",
            "terminationGracePeriodSeconds": 1,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "restartCount": 1,
                    "state": {"terminated": {"exitCode": 1, "reason": "Error"}},
                }
            ],
        },
    },
    _TOY: {
        "apiVersion": "fuzz.example.org/v1",
        "kind": "Toy",
        "metadata": {"name": "right"},
        "spec": {"size": 1, "parts": [{"name": "a"}], "labels": {"a": "b"}, "value": [1]},
        "status": {"size": 1},
    },
    "/api/v1/namespaces/default/services": {
        "metadata": {"name": "right"},
        "spec": {"ports": [{"port": 80, "targetPort": "p"}], "selector": {"a": "b"}},
    },
    "/api/v1/namespaces/default/events": {
        "metadata": {"name": "right"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "source": {"component": "c"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "eventTime": "2026-01-01T00:00:00.000001Z",
        "count": 1,
        "message": "m",
    },
    "/api/v1/nodes": {
        "metadata": {"name": "right", "labels": {"node-role.kubernetes.io/x": ""}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
        "status": {
            "capacity": {"cpu": "4"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1"},
        },
    },
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers": {
        "metadata": {"name": "right"},
        "spec": {
            "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "v1", "kind": "Toy", "name": "t"},
        },
    },
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {
        "metadata": {"name": "right"},
        "webhooks": [
            {
                "name": "a.example.org",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "Exists"}]},
                "rules": [
                    {
                        "apiGroups": ["fuzz.example.org"],
                        "apiVersions": ["*"],
                        "resources": ["toys"],
                        "operations": ["CREATE"],
                    }
                ],
            }
        ],
    },
    _CRDS: {
        "metadata": {"name": "things.fuzz.example.org"},
        "spec": {
            **_CRD["spec"],
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [
                {
                    **_CRD["spec"]["versions"][0],
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
                    ],
                }
            ],
        },
    },
}


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything within."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*way, key)
        if isinstance(one, dict | list):
            yield from _places(one, (*way, key))


@st.composite
def _spoiled(draw: st.DrawFn, right: Any) -> Any:
    """`right`, other or without something in one to three places."""
    obj = copy.deepcopy(right)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(_places(obj))))
        holder = obj
        for step in way:
            holder = holder[step]
        if draw(st.booleans()):
            holder[last] = draw(_VALUES)
        elif isinstance(holder, dict) and draw(st.booleans()):
            holder[draw(_TEXTS)] = holder.pop(last)
        else:
            del holder[last]
        if not obj:
            return right
    return obj


_NEARLY_RIGHT = st.sampled_from(list(_RIGHT)).flatmap(
    lambda collection: st.tuples(
        st.just(collection), _spoiled(_RIGHT[collection]), _spoiled(_RIGHT[collection])
    )
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
        code, said = server.ask("POST", _CRDS, json.dumps(_CRD).encode())
        assert code == 201, said
        yield server
        before = _everything(server)
        process.stop()
        process.start()
        assert _everything(server) == before, "what was answered is not what was kept"


def _everything(server: _Server) -> dict[str, Any]:
    found = {}
    for path in _COLLECTIONS:
        code, said = server.ask("GET", path)
        assert code == 200 or (code == 404 and path == _TOY), said
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
    collection=st.sampled_from(_COLLECTIONS),
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
    query=_QUERIES,
    content=_FORMATS,
    accept=_ACCEPTED,
    body=st.one_of(
        _OBJECTS.map(json.dumps), _OPERATIONS.map(json.dumps), _VALUES.map(json.dumps), st.text()
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
        query["timeoutSeconds"] = "1" if query["watch"] in ("true", "1") else "0"
    path = f"{collection}{below}?{urllib.parse.urlencode(query)}"
    headers = {"Content-Type": content, "Accept": accept}
    code, said = server.ask(verb, path, body.encode(errors="replace"), **headers)
    assert code < 500, (code, said)
    _can_be_read(server, collection)


@_SETTINGS
@given(
    nearly_right=_NEARLY_RIGHT,
    subresource=st.sampled_from(["", "", "/status", "/scale"]),
    content=_FORMATS,
)
def test_nothing_nearly_right_is_the_servers_fault(
    server: _Server, nearly_right: tuple[str, Any, Any], subresource: str, content: str
) -> None:
    collection, first, second = nearly_right
    name = _RIGHT[collection]["metadata"]["name"]
    one = f"{collection}/{name}"
    for verb, path, body, sent_as in (
        ("POST", collection, first, "application/json"),
        ("PATCH", f"{one}{subresource}?fieldManager=fuzz&force=true", second, content),
        # Of a kind as the spoiled CRD has it.
        ("POST", _THINGS, {**_RIGHT[_TOY], "kind": "Thing"}, "application/json"),
        ("PUT", one + subresource, second, "application/json"),
    ):
        code, said = server.ask(verb, path, json.dumps(body).encode(), **{"Content-Type": sent_as})
        assert code < 500, (verb, path, code, said)
    _can_be_read(server, collection)
    ended = {"gracePeriodSeconds": 0}
    for path in (one, f"{_THINGS}/right"):
        unfinished = json.dumps({"metadata": {"finalizers": None}}).encode()
        merge = {"Content-Type": "application/merge-patch+json"}
        assert server.ask("PATCH", path, unfinished, **merge)[0] < 500
        code, said = server.ask("DELETE", path, json.dumps(ended).encode())
        assert code < 500, (path, code, said)


def _can_be_read(server: _Server, collection: str) -> None:
    """What was written is listed, as objects and as a table."""
    code, said = server.ask("GET", collection)
    if code == 404 and collection == _TOY:
        return  # Its CRD may have been deleted, or its group changed.
    assert code == 200, said
    assert all(item["metadata"]["uid"] for item in json.loads(said)["items"])
    code, said = server.ask(
        "GET", collection, Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    assert code == 200 and json.loads(said)["kind"] == "Table", said
