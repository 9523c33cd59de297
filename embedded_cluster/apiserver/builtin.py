"""The kinds that are served without a CRD."""

from __future__ import annotations

from functools import partial

from embedded_cluster.apiserver.kind import Kind

_core = partial(Kind, "", "v1")
_hooks = partial(
    Kind,
    "admissionregistration.k8s.io",
    "v1",
    namespaced=False,
    categories=("api-extensions",),
    generation=True,
)

NAMESPACE = _core("namespaces", "Namespace", namespaced=False, short_names=("ns",), status=True)
NODE = _core("nodes", "Node", namespaced=False, short_names=("no",), status=True)
POD = _core(
    *("pods", "Pod"),
    short_names=("po",),
    categories=("all",),
    status=True,
    generation=True,
    subresources=("binding", "eviction", "log", "resize"),
)
SERVICE = _core("services", "Service", short_names=("svc",), categories=("all",), status=True)
EVENT = _core("events", "Event", short_names=("ev",))
SERVICE_ACCOUNT = _core("serviceaccounts", "ServiceAccount", short_names=("sa",))
PRIORITY_CLASS = Kind(
    *("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"),
    namespaced=False,
    singular="priorityclass",
    short_names=("pc",),
    generation=True,
)
CRD = Kind(
    *("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    status=True,
    generation=True,
)
MUTATING = _hooks("mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
VALIDATING = _hooks("validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
# There from the start; the first three of the namespaces, for good.
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}

BUILTIN = (
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    EVENT,
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core("secrets", "Secret"),
    SERVICE_ACCOUNT,
    _core("resourcequotas", "ResourceQuota", short_names=("quota",), status=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    PRIORITY_CLASS,
    Kind(
        *("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
        short_names=("hpa",),
        categories=("all",),
        status=True,
    ),
    CRD,
    MUTATING,
    VALIDATING,
)
