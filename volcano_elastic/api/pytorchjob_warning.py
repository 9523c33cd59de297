"""Warns of values that are accepted in a PyTorchJob, and probably not meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from volcano_elastic.api import role, shape
from volcano_elastic.api.pytorchjob_defaults import bounds, scaler
from volcano_elastic.api.pytorchjob_shape import (
    ADOPT_ANNOTATION,
    ANNOTATION_PREFIX,
    BRAIN_ANNOTATION,
    CLEAN_POD_POLICIES,
    CPU_LIMIT_ANNOTATION,
    DATA_SET_ANNOTATION,
    INJECT_ANNOTATION,
    MOST_MEMORY_ANNOTATION,
    RDZV_BACKENDS,
    SHARED_MEMORY_ANNOTATION,
    SPEC,
    USER_ANNOTATION,
)
from volcano_elastic.api.pytorchjob_validation import asks_for_trainer, injected, replica_counts

_NPROC_WORDS = ("auto", "cpu", "gpu")


def warn(obj: Mapping[str, Any]) -> list[str]:
    """One sentence each. `obj` must be valid."""
    return list(_warn(obj))


def _warn(obj: Mapping[str, Any]) -> Iterator[str]:
    spec = obj["spec"]
    yield from _annotations(obj["metadata"].get("annotations") or {})
    # The API server drops these before anybody else sees them, and says so itself where it is
    # asked to; a job that comes from a file has them still.
    yield from shape.unknown(SPEC, spec, "spec")
    nproc = spec.get("nprocPerNode")
    if nproc and nproc not in _NPROC_WORDS and not nproc.isdecimal():
        yield f"spec.nprocPerNode: expected auto, cpu, gpu or a number, found {nproc!r}"
    policy = spec.get("runPolicy") or {}
    clean = policy.get("cleanPodPolicy")
    if clean and clean not in CLEAN_POD_POLICIES:
        words = ", ".join(CLEAN_POD_POLICIES)
        yield f"spec.runPolicy.cleanPodPolicy: expected {words}; {clean!r} is taken for All"
    scheduling, path = policy.get("schedulingPolicy") or {}, "spec.runPolicy.schedulingPolicy"
    if scheduling.get("scheduleTimeoutSeconds") is not None:
        yield f"{path}.scheduleTimeoutSeconds is ignored: Volcano has no such limit"
    replicas, elastic = spec["pytorchReplicaSpecs"], spec.get("elasticPolicy")
    if asks_for_trainer(obj["metadata"]) and not injected(obj["metadata"], elastic):
        yield (
            f"annotation {INJECT_ANNOTATION} has no effect: it is for elastic jobs whose pods meet "
            "in their worker 0, by rdzvBackend c10d or volcano-elastic"
        )
    counts = replica_counts(replicas)
    workers = counts.get(role.elastic().name, 0)
    low, high = (workers, workers) if elastic is None else bounds(elastic, workers)
    pods, least = sum(counts.values()) - workers + high, scheduling.get("minAvailable")
    if least is not None and least > pods:
        yield f"{path}.minAvailable: {least} is more than the job's {pods} pods: it can never start"
    if elastic is not None:
        yield from _elastic(elastic, workers, low, high)
        if any(_scheduler(replica) not in ("", "volcano") for replica in replicas.values()):
            yield (
                "spec.elasticPolicy: a pod template names another scheduler than volcano: the job "
                "gets no PodGroup and keeps its size"
            )


def _elastic(elastic: Mapping[str, Any], workers: int, low: int, high: int) -> Iterator[str]:
    path = "spec.elasticPolicy"
    if elastic.get("nProcPerNode") is not None:
        yield f"{path}.nProcPerNode is deprecated, use spec.nprocPerNode instead"
    # 1 is what an unset field becomes: nobody's statement.
    if workers != 1 and not low <= workers <= high:
        yield (
            f"spec.pytorchReplicaSpecs[{role.elastic().name}].replicas: {workers} is outside "
            f"{low}..{high}, the range of elasticPolicy, which wins"
        )
    backend = elastic.get("rdzvBackend")
    if backend and backend not in RDZV_BACKENDS:
        yield (
            f"{path}.rdzvBackend: {backend!r} is none of {', '.join(RDZV_BACKENDS)}; torchrun must "
            "find it among the plug-ins of the image"
        )
    if elastic.get("metrics") and (who := scaler(elastic)) != "hpa":
        yield f"{path}.metrics are ignored under scaler {who}"
    if elastic.get("standalone") and high > 1:
        yield f"{path}.standalone: each of up to {high} pods trains by itself"


def _scheduler(replica: Mapping[str, Any]) -> str:
    return ((replica.get("template") or {}).get("spec") or {}).get("schedulerName") or ""


def _annotations(annotations: Mapping[str, Any]) -> Iterator[str]:
    known = dict.fromkeys(
        (
            SHARED_MEMORY_ANNOTATION,
            MOST_MEMORY_ANNOTATION,
            CPU_LIMIT_ANNOTATION,
            USER_ANNOTATION,
            DATA_SET_ANNOTATION,
            BRAIN_ANNOTATION,
            ADOPT_ANNOTATION,
            INJECT_ANNOTATION,
        )
    )
    for name in annotations:
        if name.startswith(ANNOTATION_PREFIX) and name not in known:
            yield f"unknown annotation {name}" + shape.likely(name, known)
