"""Tells whether this process has initialised CUDA, after which no fork of it can use a GPU.

A mapped driver says nothing: cuBLASLt's and cuSPARSELt's constructors load `libcuda.so.1` without
calling it, so `import torch` maps it on every machine that has NVIDIA's driver.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

DRIVER = "libcuda.so.1"
DEVICE = "/dev/nvidia-uvm"
"""Opened by `cuInit`; NVML, which survives a fork, does without."""

NVML_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what the driver answers to everything until `cuInit`."""


def cuda_is_initialised() -> bool:
    """Return whether `cuInit` was called in this process, as the driver itself says."""
    return _driver_is_initialised() or _is_open(DEVICE)


def initialiser(environment: Mapping[str, str]) -> str:
    """Return who has initialised CUDA in torchrun's process, and what to do about it.

    torchrun does itself, where it counts GPUs (`--nproc-per-node gpu`), and since torch 2.15 to see
    whether there are any.
    """
    if environment.get(NVML_VARIABLE) != "1":
        return f"torchrun has initialised CUDA to look for GPUs: set {NVML_VARIABLE}=1"
    return (
        "something that torchrun's process imported (a plug-in, a sitecustomize) has initialised "
        "CUDA: let it do so in the workers only"
    )


def _driver_is_initialised() -> bool:
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        current = driver.cuCtxGetCurrent
    except (OSError, AttributeError):
        return False  # not mapped, so nobody can have called it
    return bool(current(ctypes.byref(ctypes.c_void_p())) != _NOT_INITIALIZED)


def _is_open(path: str) -> bool:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                return True
        except OSError:  # closed meanwhile
            continue
    return False
