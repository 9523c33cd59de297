"""What a data loader's worker process does before its first sample."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


class LoaderProcess:
    """A `worker_init_fn`: the process ends with its trainer at once, then the user's own runs.

    torch's own check lets it live five seconds longer, with the trainer's sockets open.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then
        self._trainer = os.getpid()

    def __call__(self, worker: int) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._trainer:
            os._exit(1)  # it ended before we asked
        if self._then is not None:
            self._then(worker)
