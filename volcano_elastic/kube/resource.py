"""The kinds this project reads and writes, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# A Kubernetes object as it travels: a plain dict, so that fields newer than us survive.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """Locates a kind in the API: its group ("" is core), version and plural."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path; namespace None means all of them (or a cluster-scoped kind)."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
EVENTS = Resource("", "v1", "events", "Event")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
PERSISTENTVOLUMECLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITYCLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMITRANGES = Resource("", "v1", "limitranges", "LimitRange")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
VALIDATINGWEBHOOKCONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATINGWEBHOOKCONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
QUEUEPOLICIES = Resource(
    "policy.volcano-elastic.io", "v1alpha1", "queuepolicies", "QueuePolicy", namespaced=False
)
SCALEPLANS = Resource("policy.volcano-elastic.io", "v1alpha1", "scaleplans", "ScalePlan")


def key_of(obj: Object) -> str:
    """`namespace/name`, or `name` for a cluster-scoped object."""
    meta = obj["metadata"]
    namespace = meta.get("namespace")
    return f"{namespace}/{meta['name']}" if namespace else str(meta["name"])
