"""Prepares a data loader's worker process before its first sample."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable

from elastic_trainer.parent_death import kill_with_parent


class LoaderProcess:
    """A `worker_init_fn`: the process ends with its trainer at once, then the user's own runs.

    torch's own check lets it live five seconds longer, with the trainer's sockets open, and for
    ever under the start method "forkserver".
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then
        self._trainer = os.getpid()

    def __call__(self, worker: int) -> None:
        if os.getppid() == self._trainer:
            kill_with_parent()
        if os.getppid() != self._trainer:
            # It ended before we asked, or our parent is a fork server, which its children keep up.
            threading.Thread(target=_end_with_trainer, name="trainer", daemon=True).start()
        if self._then is not None:
            self._then(worker)


def _end_with_trainer() -> None:
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        trainer.join()
    os._exit(1)
