"""Tells a failure of the node (its GPU, driver, shared memory) from one of the script; pure.

Such errors are plain RuntimeErrors in Python, and come again on the same node as faithfully as a
script's own error does: only the text or the signal tells them apart. A wrong guess does no harm,
since what shows on a second node, too, is taken for the script's all the same.
"""

from __future__ import annotations

import re
import signal

_SCRIPTS_OWN = re.compile(
    r"device-side assert triggered"  # an index out of range, most likely
    r"|illegal memory access|illegal instruction|misaligned address"  # a kernel's, most likely
    r"|out of memory"
    r"|error: invalid (argument|configuration argument|device ordinal|resource handle)"
    r"|CUBLAS_STATUS_(INVALID_VALUE|NOT_SUPPORTED)"
    r"|CUDNN_STATUS_(BAD_PARAM|NOT_SUPPORTED)"
    r"|NCCL.*invalid (usage|argument)",
    re.IGNORECASE,
)
"""Errors that a device reports of what it was asked to do."""

_OF_A_PEER = re.compile(
    r"NCCL.*(remote (process|error)|aborted)|ncclRemoteError|Watchdog caught collective",
    re.IGNORECASE,
)
"""Errors that follow from another node's end, or from waiting for it."""

_FAULTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (fault, re.compile(pattern, re.IGNORECASE))
    for fault, pattern in (
        ("GPU hardware", r"\bXid\b|\bECC error|fallen off the bus|GPU is lost|hardware error"),
        ("cuDNN", r"cuDNN error|CUDNN_STATUS_"),
        ("cuBLAS", r"CUBLAS_STATUS_"),
        ("NCCL", r"NCCL (error|failure)|ncclSystemError|ncclInternalError|ncclUnhandledCudaError"),
        (
            "CUDA",
            r"No (CUDA|HIP) GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
            r"|(CUDA|HIP) (error:|unknown error|driver (initialization failed|error|version))"
            r"|cudaGetDeviceCount|NVML (error|failure)|NVIDIA driver on your system is too old",
        ),
        (
            "shared memory",
            r"\bBus error\b|insufficient shared memory|unable to (mmap|open shared memory|write to "
            r"file </torch_)",
        ),
        (
            "data loader's processes",
            r"DataLoader worker \(pid.*\) (is killed by signal: (Killed|Terminated|Hangup)"
            r"|exited unexpectedly)",
        ),
    )
)


def node_fault(message: str, stack: str, code: int) -> str:
    """Return what of the node has failed; empty if nothing says that the node did.

    Args:
        message: a worker's error.
        stack: its call stack, with the errors that it followed from.
        code: exit code, a signal's number negative.
    """
    # Of a traceback only what begins a line is an error's text; the rest is source code.
    errors = [line for line in stack.splitlines() if line and not line[0].isspace()]
    for text in (message, *reversed(errors)):
        if _SCRIPTS_OWN.search(text) or _OF_A_PEER.search(text):
            return ""
        for fault, pattern in _FAULTS:
            if pattern.search(text):
                return fault
    return "shared memory" if code == -signal.SIGBUS else ""
