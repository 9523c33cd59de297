"""Tells a failure of the node (its GPU, driver, shared memory) from one of the script; pure.

Such errors are plain RuntimeErrors in Python, and come again on the same node as faithfully as a
script's own error does: only the text or the signal tells them apart. What counts as the node's is
never the script's, on however many nodes it shows, so a row has to be sure. How often a node may
fail so is `coordinator/failure_policy.py`'s.
"""

from __future__ import annotations

import re
import signal

EXIT_CODES: dict[int, str] = {-signal.SIGBUS: "shared memory"}
"""Failures of the node, by the exit code of a worker that said nothing; a signal's is negative."""

TABLE: tuple[tuple[str, str, str], ...] = (
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
"""Class, what has failed, pattern; the first that matches counts. The operator has the same rows
(`failure_class.py`), for pods of which it sees the end alone."""

_PATTERNS = tuple((kind, fault, re.compile(text, re.IGNORECASE)) for kind, fault, text in TABLE)


def node_fault(message: str, stack: str, code: int) -> str:
    """Return what of the node has failed; empty if nothing says that the node did.

    Args:
        message: a worker's error.
        stack: its call stack, with the errors that it followed from.
        code: exit code, a signal's number negative.
    """
    kind, fault = _row(message, stack)
    if kind == "hardware":
        return fault
    return EXIT_CODES.get(code, "") if not kind else ""


def ended_by_a_peer(message: str, stack: str) -> bool:
    """Return whether a worker failed only because another process had gone.

    Args:
        message: as for `node_fault`.
        stack: likewise.
    """
    return _row(message, stack)[0] == "peer"


def _row(message: str, stack: str) -> tuple[str, str]:
    """Return class and fault of the first text that a row has; empty where none has one."""
    # Of a traceback only what begins a line is an error's text; the rest is source code.
    errors = [line for line in stack.splitlines() if line and not line[0].isspace()]
    for text in (message, *reversed(errors)):
        for kind, fault, pattern in _PATTERNS:
            if pattern.search(text):
                return kind, fault
    return "", ""
