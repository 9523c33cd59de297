"""Reads what a job's parameter servers say of their loads, as the first one tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.operator import job_answer
from volcano_elastic.operator.load_report import PodUse
from volcano_elastic.pytorchjob.label import replica_name

_MOST_SERVERS = 1024
_MOST_CPUS, _MOST_BYTES, _MOST_STEPS = 1e6, 1 << 60, 1e9


@dataclass(frozen=True, slots=True)
class ServersReport:
    cpus: tuple[float, ...]
    """That each server uses."""
    memory: tuple[int, ...]
    """Bytes, likewise."""
    steps_per_second: float
    """Sum over all workers."""
    slow: frozenset[str]
    """Names of pods whose servers take far longer for a row than the others."""
    uses: Mapping[str, PodUse] = field(default_factory=dict)
    """Use of servers, by their pods' names."""
    tables: Bytes | None = None
    """Bytes of all rows that the servers hold; None: not all servers tell."""


def endpoint(job: PyTorchJob, pod: Mapping[str, Any] | None) -> str | None:
    """Return where the first server serves HTTP; None while it doesn't run."""
    servers, status = job.servers, (pod or {}).get("status") or {}
    address = status.get("podIP")
    if servers is None or status.get("phase") != "Running" or not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{servers.port + 1}"


def first_server(job: PyTorchJob) -> str:
    """Return the name of the first server's pod; empty where the job has none."""
    return "" if job.servers is None else replica_name(job.name, job.servers.role, 0)


def read(body: bytes, job: PyTorchJob) -> ServersReport | None:
    """Return the loads of all servers that tell theirs; None where that is another job's answer."""
    answer = job_answer.parse(body)
    # Those of a job of fixed size don't know its name.
    if not isinstance(answer, dict) or answer.get("job") not in ("", job.key):
        return None
    listed, slow = answer.get("servers"), answer.get("slow")
    steps = _sensible(answer.get("steps_per_second"), _MOST_STEPS)
    if job.servers is None or steps is None:
        return None
    if not isinstance(listed, dict) or len(listed) > _MOST_SERVERS:
        return None
    reported = []
    for address, one in listed.items():
        if isinstance(one, dict):
            cpus = _sensible(one.get("cpus"), _MOST_CPUS)
            memory = _sensible(one.get("memory"), _MOST_BYTES)
            if cpus is not None and memory is not None:
                reported.append((_host(address), cpus, int(memory)))
    hosts = {_host(str(one)) for one in slow} if isinstance(slow, list) else set()
    names = [
        replica_name(job.name, job.servers.role, index) for index in range(job.servers.replicas)
    ]
    held = _sensible(answer.get("bytes"), _MOST_BYTES)
    is_whole = {host for host, _, _ in reported} >= set(names)
    return ServersReport(
        tuple(cpus for _, cpus, _ in reported),
        tuple(memory for _, _, memory in reported),
        steps,
        frozenset(hosts.intersection(names)),
        {
            host: PodUse(Cpu.cores(cpus), Bytes(memory).whole_mebibytes())
            for host, cpus, memory in reported
            if host in names
        },
        Bytes(int(held)) if held is not None and is_whole else None,
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _sensible(number: object, most: float) -> float | None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if 0 <= number <= most else None
