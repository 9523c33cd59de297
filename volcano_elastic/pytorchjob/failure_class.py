"""Tells whose failure the end of a pod is, by a table of data.

class         the job goes on                            counts as a restart
software      in place, or at the same index             yes
hardware      on another node (see `exclusion`)          yes
interruption  at once, wherever there is room            no: somebody wanted the room, or the node

The rows of texts are those of the trainer's `failures/node_fault.py`, which knows a worker's error
at first hand; a test holds the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod


class FailureClass(StrEnum):
    SOFTWARE = "software"
    HARDWARE = "hardware"
    INTERRUPTION = "interruption"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a pod, or of a container that its kubelet has started again."""

    kind: FailureClass
    what: str
    at: datetime | None = None
    """None where nothing tells."""


REASONS: Mapping[str, tuple[FailureClass, str]] = {
    # Of a pod's status: kubelet, scheduler, pod garbage collector.
    "Evicted": (FailureClass.INTERRUPTION, "evicted"),
    "Preempting": (FailureClass.INTERRUPTION, "preempted"),
    "Preempted": (FailureClass.INTERRUPTION, "preempted"),
    "Terminated": (FailureClass.INTERRUPTION, "its node was shut down"),
    "NodeShutdown": (FailureClass.INTERRUPTION, "its node was shut down"),
    "Shutdown": (FailureClass.INTERRUPTION, "its node was shut down"),
    "NodeAffinity": (FailureClass.INTERRUPTION, "its node fits it no longer"),
    "UnexpectedAdmissionError": (FailureClass.HARDWARE, "the node has no healthy device for it"),
    # Of a container, where the kubelet, begun anew, finds none that it knew.
    "Unknown": (FailureClass.INTERRUPTION, "its node began anew"),
    "ContainerStatusUnknown": (FailureClass.INTERRUPTION, "its node began anew"),
    # Of a container, by itself.
    "OOMKilled": (FailureClass.SOFTWARE, "out of memory"),
    "ContainerCannotRun": (FailureClass.SOFTWARE, "its container cannot run"),
    "StartError": (FailureClass.SOFTWARE, "its container cannot run"),
}

EXIT_CODES: Mapping[int, tuple[FailureClass, str]] = {
    128 + 7: (FailureClass.HARDWARE, "shared memory"),  # SIGBUS
    128 + 4: (FailureClass.SOFTWARE, "an illegal instruction"),
    128 + 6: (FailureClass.SOFTWARE, "aborted"),
    128 + 11: (FailureClass.SOFTWARE, "a segmentation fault"),
    126: (FailureClass.SOFTWARE, "its command cannot run"),
    127: (FailureClass.SOFTWARE, "its command was not found"),
}

TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        "software",
        "what a device was asked to do",
        r"device-side assert triggered"
        r"|illegal memory access|illegal instruction|misaligned address"
        r"|out of memory"
        r"|error: invalid (argument|configuration argument|device ordinal|resource handle)"
        r"|CUBLAS_STATUS_(INVALID_VALUE|NOT_SUPPORTED)"
        r"|CUDNN_STATUS_(BAD_PARAM|NOT_SUPPORTED)"
        r"|NCCL.*invalid (usage|argument)"
        r"|\bXid\b[^\n]*\): *(13|31|43|45|68|69)\b",
    ),
    (
        "software",
        "an image built for other GPUs",
        r"no kernel image is available for execution",
    ),
    (
        "peer",
        "another process",
        r"NCCL.*(remote (process|error)|aborted)|ncclRemoteError|Watchdog caught collective"
        r"|/gloo/.*(Connection (closed|reset) by peer|Broken pipe)"
        r"|^RuntimeError: (Connection reset by peer|Broken pipe|Socket Timeout)",
    ),
    (
        "hardware",
        "GPU hardware",
        r"\bXid\b|\bECC error|uncorrectable (memory|ECC)|fallen off the bus|GPU is lost"
        r"|row[- ]remap\w* fail|hardware error",
    ),
    ("hardware", "NVLink", r"\bNVLink\b.*\b(error|fail\w*|inactive|down)\b|\bSXid\b"),
    (
        "hardware",
        "InfiniBand",
        r"NET/IB\b.*\basync\b.*\b(local catastrophic|port) error"
        r"|\bmlx5_core\b.*\b(fatal|health compromised)",
    ),
    ("hardware", "cuDNN", r"cuDNN error|CUDNN_STATUS_"),
    ("hardware", "cuBLAS", r"CUBLAS_STATUS_"),
    (
        "hardware",
        "NCCL",
        r"NCCL (error|failure)|ncclSystemError|ncclInternalError|ncclUnhandledCudaError",
    ),
    (
        "hardware",
        "CUDA",
        r"No (CUDA|HIP) GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
        r"|(CUDA|HIP) (error:|unknown error|driver (initialization failed|error|version))"
        r"|cudaGetDeviceCount|NVML (error|failure)|NVIDIA driver on your system is too old",
    ),
    (
        "hardware",
        "shared memory",
        r"\bBus error\b|insufficient shared memory|unable to (mmap|open shared memory|write to "
        r"file </torch_)",
    ),
    (
        "hardware",
        "data loader's processes",
        r"DataLoader worker \(pid.*\) (is killed by signal: (Killed|Terminated|Hangup)"
        r"|exited unexpectedly)",
    ),
)
"""Class, what has failed, pattern; the first that matches a line counts."""

_PATTERNS = tuple((kind, what, re.compile(text, re.IGNORECASE)) for kind, what, text in TEXTS)


def of_text(text: str) -> tuple[FailureClass, str] | None:
    """Return whose failure an error's text tells of; None if nothing says so. A peer's end is
    nobody's here: the peer tells its own."""
    for line in text.splitlines():
        for kind, what, pattern in _PATTERNS:
            if pattern.search(line):
                return None if kind == "peer" else (FailureClass(kind), what)
    return None


class Rule(Protocol):
    """A row beside those here, which goes before them."""

    @property
    def failure_class(self) -> FailureClass: ...

    @property
    def what(self) -> str: ...

    def applies(self, *, text: str, code: int, reason: str) -> bool: ...


def of_pod(pod: Mapping[str, Any], container: str, rules: Sequence[Rule] = ()) -> Failure | None:
    """Return how a pod that has failed did; None if it has not."""
    status = pod.get("status") or {}
    if status.get("phase") != "Failed":
        return None
    at = api_pod.finished_at(pod)
    if (evicted := api_pod.evicted_at(pod)) is not None:
        return Failure(FailureClass.INTERRUPTION, "evicted", evicted)
    reason = status.get("reason") or ""
    for rule in rules:
        if rule.applies(text=status.get("message") or "", code=0, reason=reason):
            return Failure(rule.failure_class, rule.what, at)
    known = REASONS.get(reason)
    if known is not None:
        return Failure(*known, at)
    found = _of_container(_container(pod, container).get("state") or {}, rules)
    return found or Failure(FailureClass.SOFTWARE, "", at)


def of_restart(
    pod: Mapping[str, Any], container: str, rules: Sequence[Rule] = ()
) -> Failure | None:
    """Return why a running pod's container was started again; None if it was not."""
    return _of_container(_container(pod, container).get("lastState") or {}, rules)


def _of_container(state: Mapping[str, Any], rules: Sequence[Rule]) -> Failure | None:
    ended = state.get("terminated") or {}
    if not ended or ended.get("exitCode") == 0:
        return None
    at = moment.parse_optional(ended.get("finishedAt"))
    text, reason = ended.get("message") or "", ended.get("reason") or ""
    for rule in rules:
        if rule.applies(text=text, code=ended.get("exitCode") or 0, reason=reason):
            return Failure(rule.failure_class, rule.what, at)
    for found in _words(ended):
        if found is not None:
            return Failure(*found, at)
    return Failure(FailureClass.SOFTWARE, "", at)


def _words(ended: Mapping[str, Any]) -> Iterator[tuple[FailureClass, str] | None]:
    """Yield what the end of a container says, the surest first."""
    yield REASONS.get(ended.get("reason") or "")
    yield of_text(ended.get("message") or "")
    yield EXIT_CODES.get(ended.get("exitCode") or 0)


def _container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((s for s in statuses if s.get("name") == name), {})
