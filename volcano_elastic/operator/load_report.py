"""Reads the use of a job's containers from its coordinator; writes it for its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import merge_patch, moment
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import elastic
from volcano_elastic.pytorchjob.label import replica_name

MOST_PODS = 64
"""Pods of a job whose load its status has: one half has the most CPU in use, one the most
memory."""
_MUCH = 0.1
"""A change by this share of what is known is written after a minute."""
_WRITE_EVERY, _WRITE_ALL_EVERY = timedelta(minutes=1), timedelta(minutes=5)
"""Each is a call to the API server."""
_MOST_CPUS, _MOST_BYTES = 1e6, 1 << 60


@dataclass(frozen=True, slots=True)
class PodUse:
    cpu: Cpu
    memory: Bytes
    gpu_memory: Bytes | None = None
    gpu_percent: int | None = None

    def as_status(self) -> dict[str, Any]:
        found: dict[str, Any] = {"cpu": str(self.cpu), "memory": str(self.memory)}
        if self.gpu_memory is not None:
            found["gpuMemory"] = str(self.gpu_memory)
        if self.gpu_percent is not None:
            found["gpuPercent"] = self.gpu_percent
        return found


def read(reported: object, job: PyTorchJob) -> dict[str, PodUse]:
    """Return by pod's name what a coordinator tells of its job's containers; what makes no sense is
    left out. Nothing of a job of several roles that train: their indexes name no pod.

    Args:
        told: by pod index {cpus, memory, gpu_memory, gpu_percent}; the last two may be null.
    """
    if not isinstance(reported, dict) or job.fixed_nodes:
        return {}
    found = {}
    for index, raw in reported.items():
        if not (index.isdecimal() and len(index) < 7) or not isinstance(raw, dict):
            continue
        cpus, memory = _sensible(raw.get("cpus"), _MOST_CPUS), _whole(raw.get("memory"))
        if cpus is None or memory is None:
            continue
        gpu_memory = _whole(raw.get("gpu_memory"))
        percent = _sensible(raw.get("gpu_percent"), 100)
        found[replica_name(job.name, elastic(), int(index))] = PodUse(
            Cpu.cores(cpus),
            Bytes(memory).whole_mebibytes(),
            None if gpu_memory is None else Bytes(gpu_memory).whole_mebibytes(),
            None if percent is None else round(percent),
        )
    return found


def with_servers(
    reported: Mapping[str, PodUse],
    serving: Mapping[str, PodUse],
    known: Mapping[str, Any],
    heard: bool,
) -> dict[str, PodUse]:
    """Return the use by Workers and by parameter servers together; nothing while the coordinator of
    Workers that are known is silent, as they would leave the status.

    Args:
        told: by the coordinator.
        serving: by the servers.
        known: as for `to_write`.
        heard: whether the coordinator gave an answer.
    """
    if not heard and (known.get("pods") or {}).keys() - serving.keys():
        return {}
    return {**reported, **serving}


def to_write(
    known: Mapping[str, Any], reported: Mapping[str, PodUse], now: datetime
) -> dict[str, Any] | None:
    """Return what changes the status' field, as a merge patch; None: nothing is to be written.

    Args:
        known: the field that is there; empty: none is.
    """
    if not reported:
        return None
    before = known.get("pods") or {}
    pods = {name: use.as_status() for name, use in _most_of(reported).items()}
    at = moment.parse_optional(known.get("time"))
    if at is not None:
        age = now - at
        if age < _WRITE_EVERY or (age < _WRITE_ALL_EVERY and not _much(before, pods)):
            return None
    return {"time": moment.timestamp(now), "pods": merge_patch.difference(before, pods)}


def _most_of(reported: Mapping[str, PodUse]) -> dict[str, PodUse]:
    if len(reported) <= MOST_PODS:
        return dict(sorted(reported.items()))
    names = sorted(reported)
    by_memory = sorted(names, key=lambda name: -reported[name].memory.count)
    by_cpu = sorted(names, key=lambda name: -reported[name].cpu.count)
    chosen = {*by_memory[: MOST_PODS // 2], *by_cpu[: MOST_PODS // 2]}
    return {name: reported[name] for name in sorted(chosen)}


def _much(before: Mapping[str, Any], pods: Mapping[str, Any]) -> bool:
    if before.keys() != pods.keys():
        return True
    return any(
        _differ(Cpu.parse(before[name]["cpu"]).count, Cpu.parse(one["cpu"]).count)
        or _differ(Bytes.parse(before[name]["memory"]).count, Bytes.parse(one["memory"]).count)
        for name, one in pods.items()
    )


def _differ(before: int, now: int) -> bool:
    return abs(now - before) > _MUCH * before


def _whole(number: object) -> int | None:
    return number if type(number) is int and 0 <= number <= _MOST_BYTES else None


def _sensible(number: object, most: float) -> float | None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if 0 <= number <= most else None
