"""Objects that a job's coordinator needs: a token, and where it is dedicated a pod and a
service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from volcano_elastic.api.pytorchjob import BACKEND, PyTorchJob
from volcano_elastic.api.role import elastic
from volcano_elastic.pytorchjob import environment, rendezvous
from volcano_elastic.pytorchjob.action import (
    Action,
    CreatePod,
    CreateSecret,
    CreateService,
    DeletePod,
    EmitEvent,
)
from volcano_elastic.pytorchjob.environment import TrainerSettings
from volcano_elastic.pytorchjob.label import (
    coordinator_labels,
    coordinator_name,
    owner_reference,
    replica_name,
    token_secret_name,
)
from volcano_elastic.pytorchjob.observed import Observed

# With 1,000 agents: 0.4 CPU seconds to form a round, under half a core besides, 122 MiB
# (benchmarks/rendezvous.py); with 128 a seventh of a core.
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
_FROM_POD = ("serviceAccountName", "imagePullSecrets", "tolerations", "securityContext")
_FROM_CONTAINER = ("image", "imagePullPolicy", "securityContext")

Object = dict[str, Any]


def used(job: PyTorchJob) -> bool:
    """Return whether the job's pods meet at a coordinator of ours."""
    return job.elastic is not None and job.elastic.rdzv_backend == BACKEND


def dedicated(job: PyTorchJob) -> bool:
    """Return whether the coordinator has a pod of its own."""
    policy = job.elastic
    return policy is not None and used(job) and policy.coordinator == "dedicated"


def host_name(job: PyTorchJob) -> str:
    """Return the name of the pod, and of its service, that the job's coordinator runs in."""
    return coordinator_name(job) if dedicated(job) else replica_name(job.name, elastic(), 0)


def _token(job: PyTorchJob) -> list[Action]:
    """A Secret that goes with the job, and that its pods wait for. The executor fills in the token,
    which a decision need not know."""
    return [
        CreateSecret(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "immutable": True,
                "metadata": {
                    "name": token_secret_name(job.name, job.uid),
                    "namespace": job.namespace,
                    "labels": coordinator_labels(job),
                    "ownerReferences": [owner_reference(job)],
                },
            }
        )
    ]


def difference(
    job: PyTorchJob, observed: Observed, *, wanted: bool, starting: bool
) -> list[Action]:
    """Return what gives the job its coordinator, or takes it away.

    A lost one is made anew; agents tell it what it must know.

    Args:
        wanted: the job goes on.
        starting: pods of the job are created, which wait for the token.
    """
    if not wanted:
        return _remove(job, observed)
    pod, separate = _pod_of(job, observed), dedicated(job)
    # A job that began under another backend, or another version of us, has no Secret yet.
    begins = starting or (separate and pod is None)
    actions: list[Action] = _token(job) if begins and environment.has_token(job) else []
    if not separate:
        return actions
    name = coordinator_name(job)
    if pod is None:
        actions.append(CreatePod(_pod(job, observed.trainer)))
    elif pod["metadata"].get("uid") in observed.lost:
        actions.append(DeletePod(name, pod["metadata"]["uid"], timedelta(0)))
        why = observed.lost[pod["metadata"]["uid"]]
        message = f"Pod {name}: {why}; workers train on while another takes its place"
        actions += [
            CreatePod(_pod(job, observed.trainer)),
            EmitEvent("CoordinatorLost", message, True),
        ]
    elif (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        actions += _remove(job, observed)
        message = f"Pod {name} ended; workers train on while another takes its place"
        actions.append(EmitEvent("CoordinatorLost", message, True))
    if not any(service["metadata"]["name"] == name for service in observed.services):
        actions.append(CreateService(_service(job)))
    return actions


def _remove(job: PyTorchJob, observed: Observed) -> list[Action]:
    pod = _pod_of(job, observed)
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return []
    return [DeletePod(coordinator_name(job), pod["metadata"]["uid"])]


def _pod_of(job: PyTorchJob, observed: Observed) -> Mapping[str, Any] | None:
    name = coordinator_name(job)
    return next((pod for pod in observed.pods if pod["metadata"]["name"] == name), None)


def _pod(job: PyTorchJob, trainer: TrainerSettings) -> Object:
    """Return the coordinator's pod, of the elastic role's image. It is outside the gang, which
    counts replicas, hence placed by the cluster's own scheduler where those are Volcano's."""
    policy, worker = job.elastic, job.sized
    assert policy is not None and worker is not None
    sizes, port = rendezvous.nodes(job), rendezvous.of(job).port
    arguments = [
        "--host=$(VOLCANO_ELASTIC_POD_IP)",
        f"--port={port}",
        f"--min={sizes[0]}",
        f"--max={sizes[1]}",
        f"--node-unit={policy.node_unit}",
        f"--job={job.key}",
    ]
    container: Object = {
        "name": "coordinator",
        **{f: worker.container[f] for f in _FROM_CONTAINER if f in worker.container},
        "command": ["python", "-m", "elastic_trainer.coordinator"],
        "args": arguments,
        "env": [
            *environment.pod_identity(),
            environment.token(job),
            *trainer.variables(),
        ],
        "ports": [{"name": "coordinator", "containerPort": port}],
        "resources": {"requests": dict(_REQUESTS)},
    }
    spec: Object = {f: worker.pod_spec[f] for f in _FROM_POD if f in worker.pod_spec}
    # Another role's template alone may name another scheduler.
    if not job.uses_volcano and worker.pod_spec.get("schedulerName"):
        spec["schedulerName"] = worker.pod_spec["schedulerName"]
    if job.run_policy.scheduling.priority_class:
        spec["priorityClassName"] = job.run_policy.scheduling.priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job),
        "spec": {**spec, "restartPolicy": "Always", "containers": [container]},
    }


def _service(job: PyTorchJob) -> Object:
    port = rendezvous.of(job).port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": coordinator_labels(job),
            "ports": [{"name": "coordinator", "port": port, "protocol": "TCP"}],
        },
    }


def _metadata(job: PyTorchJob) -> Object:
    return {
        "name": coordinator_name(job),
        "namespace": job.namespace,
        "labels": coordinator_labels(job),
        "ownerReferences": [owner_reference(job)],
    }
