"""Lets a process end with its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def kill_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; exit if it has ended already."""
    kill_with_parent()
    if os.getppid() != parent:
        os._exit(1)
