"""The kinds that are served without a CRD."""

from __future__ import annotations

from volcano_elastic.local.apiserver.kind import Kind

NAMESPACE = Kind(
    "",
    "v1",
    "namespaces",
    "Namespace",
    namespaced=False,
    short_names=("ns",),
    status=True,
)
NODE = Kind("", "v1", "nodes", "Node", namespaced=False, short_names=("no",), status=True)
POD = Kind(
    "",
    "v1",
    "pods",
    "Pod",
    short_names=("po",),
    categories=("all",),
    status=True,
    generation=True,
    subresources=("binding", "eviction", "log"),
)
SERVICE = Kind(
    "", "v1", "services", "Service", short_names=("svc",), categories=("all",), status=True
)
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io",
    "v1",
    "priorityclasses",
    "PriorityClass",
    namespaced=False,
    singular="priorityclass",
    short_names=("pc",),
    generation=True,
)
CRD = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    status=True,
    generation=True,
)
MUTATING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
    categories=("api-extensions",),
    generation=True,
)
VALIDATING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
    categories=("api-extensions",),
    generation=True,
)
EVENT = Kind("", "v1", "events", "Event", short_names=("ev",))

SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",))
# There from the start; the first two of the namespaces, for good.
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}

BUILTIN = (
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    EVENT,
    Kind("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Kind("", "v1", "secrets", "Secret"),
    SERVICE_ACCOUNT,
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    PRIORITY_CLASS,
    Kind(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        short_names=("hpa",),
        categories=("all",),
        status=True,
    ),
    CRD,
    MUTATING,
    VALIDATING,
)
