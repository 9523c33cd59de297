"""Draws requests that clients may send to the embedded API server: random, right, nearly right."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

POD = "/api/v1/namespaces/default/pods"
TOY = "/apis/fuzz.example.org/v1/namespaces/default/toys"
THINGS = "/apis/fuzz.example.org/v1/namespaces/default/things"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COLLECTIONS = (
    POD,
    TOY,
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/events",
    "/api/v1/nodes",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    CRDS,
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
CRD = {
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
TEXTS = st.one_of(
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
    TEXTS,
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=25,
)
OBJECTS = st.builds(
    lambda meta, rest: {**rest, "metadata": {"name": "fuzz", **meta}},
    st.dictionaries(_NAMES, VALUES, max_size=3),
    st.dictionaries(_NAMES, VALUES, max_size=4),
)
OPERATIONS = st.lists(
    st.fixed_dictionaries({"op": TEXTS, "path": TEXTS}, optional={"value": VALUES, "from": TEXTS}),
    max_size=4,
)
QUERIES = st.dictionaries(
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
        TEXTS,
        st.sampled_from(["true", "All", "Exact", "a=b", "a in (b", "!a", "Strict", "x" * 300]),
        st.builds(
            lambda told: base64.urlsafe_b64encode(json.dumps(told).encode()).decode(),
            st.lists(st.one_of(st.integers(), st.floats(), TEXTS), max_size=4),
        ),
    ),
    max_size=4,
)
FORMATS = st.sampled_from(
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
ACCEPTED = st.sampled_from(
    ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "*/*", ";;as=,"]
)


# Right as they are; the tests spoil them in a place or two.
RIGHT: dict[str, Any] = {
    POD: {
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
    TOY: {
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
    CRDS: {
        "metadata": {"name": "things.fuzz.example.org"},
        "spec": {
            **CRD["spec"],
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [
                {
                    **CRD["spec"]["versions"][0],
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
            holder[last] = draw(VALUES)
        elif isinstance(holder, dict) and draw(st.booleans()):
            holder[draw(TEXTS)] = holder.pop(last)
        else:
            del holder[last]
        if not obj:
            return right
    return obj


NEARLY_RIGHT = st.sampled_from(list(RIGHT)).flatmap(
    lambda collection: st.tuples(
        st.just(collection), _spoiled(RIGHT[collection]), _spoiled(RIGHT[collection])
    )
)
