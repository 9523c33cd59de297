"""The pods of one role: the template with our names, labels, environment and scheduling; the rest
untouched.

A job may have a thousand of them, so what they have in common is made once and shared between
the bodies, which nobody changes afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.pytorchjob import (
    CONTAINER,
    SCHEDULER,
    SHARED_MEMORY_ANNOTATION,
    PyTorchJob,
)
from volcano_elastic.api.role import Role
from volcano_elastic.podgroup.pod_annotation import pod_annotations
from volcano_elastic.pytorchjob import environment, label, out_of_memory
from volcano_elastic.pytorchjob.environment import TrainerSettings
from volcano_elastic.pytorchjob.init_container import init_container
from volcano_elastic.pytorchjob.injection import inject
from volcano_elastic.pytorchjob.settings import DEFAULTS, Settings

# Restarts of this replica so far, by the kubelet and by the operator, in all its pods; and those of
# pods that have gone, which another takes over.
RESTARTS = "volcano-elastic.io/restarts"
# How many of its pods failed one soon after the other, up to this one.
FAILURES = "volcano-elastic.io/failures-in-a-row"
# Names of the nodes that the pod must not go to, as it was made.
AVOIDS = "volcano-elastic.io/avoids"
_SHARED_MEMORY, _SHARED_MEMORY_PATH = "volcano-elastic-shared-memory", "/dev/shm"

Object = dict[str, Any]
Resources = Mapping[str, Mapping[str, Any]]
"""`requests` and `limits` of the container that trains; what they don't name is the template's."""


class PodTemplate:
    """Makes the pods of one role. They are equal but for who they are, unless one is given
    resources of its own.

    Args:
        running: nodes of pods that run, as in `rendezvous.peers`.
    """

    def __init__(
        self,
        job: PyTorchJob,
        role: Role,
        settings: Settings,
        avoid: Sequence[str] = (),
        *,
        trainer: TrainerSettings = environment.DEFAULTS,
        running: Mapping[int, str] | None = None,
    ) -> None:
        self._job, self._role, self._avoid = job, role, avoid
        replica = job.replicas[role.name]
        meta = replica.template.get("metadata") or {}
        self._annotations = dict(meta.get("annotations") or {})
        self._labels = dict(meta.get("labels") or {})
        self._owners = [label.owner_reference(job)]
        self._environment = environment.shared(job, trainer=trainer, running=running)
        spec: Object = dict(replica.pod_spec)
        # ExitCode is ours to judge, so the kubelet must not restart anything.
        policy = replica.restart_policy
        spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
        if role.grace is not None and spec.get("terminationGracePeriodSeconds") is None:
            spec["terminationGracePeriodSeconds"] = role.grace
        if job.uses_volcano:
            spec["schedulerName"] = SCHEDULER
        if job.leader is not None and role.trains and not role.leads:
            wait = init_container(job, job.leader.role, replica.container, settings)
            spec["initContainers"] = [*(spec.get("initContainers") or ()), wait]
        ports = replica.ports
        spec["containers"] = [
            {**c, "ports": ports} if c["name"] == CONTAINER else c for c in spec["containers"]
        ]
        size = _shared_memory(job, role)
        if size is not None:
            _mount_shared_memory(spec, size)
        if job.elastic is not None and job.elastic.injected:
            inject(spec, job, settings)
        if avoid:
            spec = with_anti_affinity(spec, avoid)
        self.spec: Mapping[str, Any] = spec
        """Spec of the pods, but for what differs between them: environment, and resources of their
        own."""

    def pod(
        self,
        index: int,
        *,
        protected: bool,
        restarts: int = 0,
        failures: int = 0,
        protect: timedelta | None = None,
        resources: Resources | None = None,
        memory: Bytes | None = None,
    ) -> Object:
        """Return the pod with this index.

        Args:
            protected: Volcano may not evict it.
            restarts: as RESTARTS says.
            failures: as FAILURES says.
            protect: as in pod_annotations.
            resources: its own; None: the template's.
            memory: the least that its training container asks for; None: as much as it says.
        """
        job, role = self._job, self._role
        annotations = dict(self._annotations)
        if job.uses_volcano:
            annotations |= pod_annotations(job, role, index, protected=protected, protect=protect)
        if self._avoid:
            annotations[AVOIDS] = ",".join(self._avoid)
        for name, count in ((RESTARTS, restarts), (FAILURES, failures)):
            if count:
                annotations[name] = str(count)
        # After the template's own, since later entries win.
        own = environment.own(job, role, index)
        variables = list({v["name"]: v for v in (*self._environment, *own)}.values())
        containers = [
            {**c, "env": [*(c.get("env") or ()), *variables]} for c in self.spec["containers"]
        ]
        if resources:
            containers = [
                _with_resources(c, resources) if c["name"] == CONTAINER else c for c in containers
            ]
        if memory is not None:
            containers = [
                _with_resources(c, out_of_memory.resources(c, memory))
                if c["name"] == CONTAINER
                else c
                for c in containers
            ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": label.replica_name(job.name, role, index),
                "namespace": job.namespace,
                "labels": {**self._labels, **label.labels(job, role, index)},
                "annotations": annotations,
                "ownerReferences": self._owners,
            },
            "spec": {**self.spec, "containers": containers},
        }


def requests(job: PyTorchJob, role: Role) -> dict[str, int]:
    """Return what a pod of the role without resources of its own is going to ask for, in
    thousandths: with the init container that waits for a leader, whose requests no setting
    changes."""
    return api_pod.requests(PodTemplate(job, role, DEFAULTS).spec)


def with_anti_affinity(spec: Mapping[str, Any], avoid: Sequence[str]) -> dict[str, Any]:
    """Return a pod's spec that keeps it away from these nodes too."""
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node.get(kind) or {}).get("nodeSelectorTerms")
    # By the API's rules each requirement on the name has one value.
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in avoid]
    node[kind] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or ()), *others]}
            # A term that asks for nothing matches no node, and must go on doing so.
            if term or terms is None
            else term
            for term in ([{}] if terms is None else terms)
        ]
    }
    return {**spec, "affinity": {**affinity, "nodeAffinity": node}}


def _with_resources(container: Object, own: Resources) -> Object:
    given = container.get("resources") or {}
    return {
        **container,
        "resources": {**given, **{k: {**(given.get(k) or {}), **v} for k, v in own.items()}},
    }


def _shared_memory(job: PyTorchJob, role: Role) -> str | None:
    """Return the size of the role's /dev/shm, by annotation of the template or the job; None leaves
    it to the container runtime (64 MiB with most)."""
    meta: Mapping[str, Any] = job.replicas[role.name].template.get("metadata") or {}
    found = (meta.get("annotations") or {}).get(SHARED_MEMORY_ANNOTATION)
    return found or job.annotations.get(SHARED_MEMORY_ANNOTATION)


def _mount_shared_memory(spec: Object, size: str) -> None:
    """On the container that trains, unless its template has something there already."""

    def mounted(container: Mapping[str, Any]) -> Object:
        mounts = container.get("volumeMounts") or ()
        if container["name"] != CONTAINER or any(
            mount.get("mountPath", "").rstrip("/") == _SHARED_MEMORY_PATH for mount in mounts
        ):
            return dict(container)
        mount = {"name": _SHARED_MEMORY, "mountPath": _SHARED_MEMORY_PATH}
        return {**container, "volumeMounts": [*mounts, mount]}

    containers = [mounted(container) for container in spec["containers"]]
    if containers != spec["containers"]:
        spec["containers"] = containers
        volume = {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        spec["volumes"] = [*(spec.get("volumes") or ()), volume]
