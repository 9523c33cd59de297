"""Jobs of each kind, as users write them, with what their controllers' pods look like."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from volcano_elastic.adapters.adapter import ADAPTERS, Adapter

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
JOB, JOBSET, TRAINJOB = (
    next(adapter for adapter in ADAPTERS if adapter.kind == kind)
    for kind in ("Job", "JobSet", "TrainJob")
)
POD_SPEC: Object = {"containers": [{"name": "main", "resources": {"limits": {GPU: 1}}}]}


def meta(name: str, *, least: int = 1, most: int = 8, **notes: str) -> Object:
    written = {"volcano-elastic.io/min-pods": str(least), "volcano-elastic.io/max-pods": str(most)}
    return {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "annotations": written | notes,
    }


def job(name: str = "a", size: int = 2, *, least: int = 1, most: int = 8, **spec: Any) -> Object:
    template = {"spec": deepcopy(POD_SPEC)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(name, least=least, most=most),
        "spec": {"parallelism": size, "template": template} | spec,
    }


def indexed(name: str = "a", size: int = 2, completions: int = 2, **more: Any) -> Object:
    return job(name, size, completions=completions, completionMode="Indexed", **more)


def jobset(name: str = "a", size: int = 2, **more: Any) -> Object:
    def part(called: str, pods: int) -> Object:
        spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        template = {"spec": spec | {"template": {"spec": deepcopy(POD_SPEC)}}}
        return {"name": called, "replicas": 1, "template": template, "futureField": [1]}

    parts = {"replicatedJobs": [part("driver", 1), part("workers", size)]}
    notes = {"volcano-elastic.io/replicated-job": "workers"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta(name, **notes, **more),
        "spec": parts,
    }


def trainjob(name: str = "a", size: int = 2, **more: Any) -> Object:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": meta(name, **more),
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": size, "image": "t:1"}},
    }


def made(adapter: Adapter, name: str = "a", size: int = 2, **more: Any) -> Object:
    """A job of this kind, whose completions follow where they can."""
    if adapter is JOB:
        return indexed(name, size, size, **more)
    return (jobset if adapter is JOBSET else trainjob)(name, size, **more)


def pod(name: str, labels: Object, **more: Any) -> Object:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": labels,
            "creationTimestamp": "2026-01-01T12:00:00Z",
        },
        "spec": deepcopy(POD_SPEC) | more,
        "status": {"phase": "Running" if more.get("nodeName") else "Pending"},
    }


def pods_of(adapter: Adapter, name: str = "a", count: int = 2, **more: Any) -> list[Object]:
    """Return the pods that the kind's controllers make, with the labels that they give."""
    labels = {"batch.kubernetes.io/job-name": name}
    if adapter is not JOB:
        part = "node" if adapter is TRAINJOB else "workers"
        labels = {
            "batch.kubernetes.io/job-name": f"{name}-{part}-0",
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/replicatedjob-name": part,
        }
    index = "batch.kubernetes.io/job-completion-index"
    return [pod(f"{name}-{i}", labels | {index: str(i)}, **more) for i in range(count)]
