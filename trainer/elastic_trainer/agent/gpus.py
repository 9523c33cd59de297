"""Reads what the GPUs that this container sees are used for, from NVIDIA's management library
(libnvidia-ml), which the driver brings. No CUDA context is made.

Never run on a device yet; `make test-gpu` does.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class GpuUsage:
    memory: int
    """Bytes in use, of all GPUs."""
    percent: int | None
    """Share of time in which a GPU computed, lately, on average; None where it can't say."""
    memory_total: int
    """Bytes that they have."""


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpus:
    """Raises OSError where the library, or a GPU, is not there.

    Args:
        library: its name or path.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._nvml = ctypes.CDLL(library)
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if not count.value:
            raise OSError(f"{library} knows no GPU")
        self._devices = [self._device(index) for index in range(count.value)]

    def read(self) -> GpuUsage:
        """Raises OSError where a GPU tells nothing of its memory."""
        memory, total, busy = 0, 0, list[int]()
        for device in self._devices:
            held, used = _Memory(), _Utilization()
            self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(held))
            memory, total = memory + held.used, total + held.total
            # A part of a GPU (MIG) has memory of its own, but no utilisation.
            if not self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)):
                busy.append(used.gpu)
        return GpuUsage(memory, round(sum(busy) / len(busy)) if busy else None, total)

    def _device(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._nvml, name)(*arguments)
        except AttributeError as error:
            raise OSError(f"{name} is not in this libnvidia-ml") from error
        if code:
            raise OSError(f"{name} answers {code}")
