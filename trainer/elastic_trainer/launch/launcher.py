"""Lets torchrun start its workers through the zygote, and tells when one fails.

torchrun reads PYTHON_EXEC before it creates the rendezvous handler, and a client process named
there would cost an interpreter's start a worker. So the one function that makes a worker's process
is wrapped; anything unexpected (another interpreter, NUMA binding, a lost zygote) starts cold.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed.elastic.multiprocessing.api as multiprocessing_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from elastic_trainer.failures.failure import Exit
from elastic_trainer.launch import log_folder
from elastic_trainer.launch.newcomer import worker_environment
from elastic_trainer.launch.zygote import Zygote, ZygoteError
from elastic_trainer.link import error_file
from elastic_trainer.link.worker_link import ROUND_VARIABLE

log = logging.getLogger(__name__)


STOPPED_SECONDS = 0.6
"""How long a worker may seem stopped."""
ASK_AGAIN_SECONDS = 0.05
"""While a worker ends, whether it needs to be waited for."""


class _Watched:
    """A worker's process, as torchrun sees it, that tells when it ends by itself in a failure, and
    ends where it is stopped by a signal: it would hold all others up. So it would where it goes on
    after torchrun's SIGTERM: it is waited for as long as `patience` says, not for torchrun's 30 s.
    """

    def __init__(
        self,
        process: Any,
        environment: Mapping[str, str],
        failed: Callable[[Exit], None],
        patience: Callable[[int], float],
        may_end: Callable[[int, Mapping[str, str]], bool],
    ) -> None:
        self.pid: int = process.pid
        self.sent: set[int] = set()
        """Signals by which torchrun ends it. It may have failed before: its agent hears of that at
        once, and torchrun then restarts all, maybe before it looks at this one."""
        self._process, self._environment = process, environment
        self._failed, self._patience, self._may_end = failed, patience, may_end
        self._told = False
        self._stopped_since: float | None = None
        self._note = ""

    def poll(self) -> int | None:
        code = self._seen(self._process.poll())
        if code is None:
            self._end_if_stopped(time.monotonic())
        if code == 0 and not self.sent and not self._may_end(self.pid, self._environment):
            return None  # for torchrun it still runs, so that it can be started again
        return code

    @property
    def gone(self) -> bool:
        """Return whether the process has ended, whatever torchrun was told."""
        return self._process.poll() is not None

    def wait(self, timeout: float | None = None) -> int | None:
        # One that is killed already needs no hurry, but a moment: torchrun would think it wedged.
        if timeout is None or signal.SIGTERM not in self.sent or signal.SIGKILL in self.sent:
            return self._seen(self._process.wait(timeout))
        began = time.monotonic()
        while True:
            left = min(timeout, self._patience(self.pid)) - (time.monotonic() - began)
            try:
                return self._seen(self._process.wait(max(0.0, min(left, ASK_AGAIN_SECONDS))))
            except subprocess.TimeoutExpired:
                if left <= 0.0:
                    raise  # torchrun kills it then

    def _end_if_stopped(self, now: float) -> None:
        if _state(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since >= STOPPED_SECONDS:
            self._note = f"it was stopped for {STOPPED_SECONDS} s, so it was killed"
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _seen(self, code: int | None) -> int | None:
        if code and not self._told:
            self._told = True
            path = self._environment.get(error_file.VARIABLE, "")
            if -code not in self.sent or os.path.exists(path):
                names = (ROUND_VARIABLE, "RANK", "LOCAL_RANK")
                number, rank, local_rank = (int(self._environment.get(n, "0")) for n in names)
                ended = getattr(self._process, "ended", None) or time.time()
                self._failed(
                    Exit(
                        round=number,
                        rank=rank,
                        local_rank=local_rank,
                        pid=self.pid,
                        code=code,
                        time=ended,
                        error_file=path,
                        note=self._note,
                    )
                )
        return code


def _state(pid: int) -> str:
    """The process's state as the kernel has it; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def start_workers_from(
    zygote: Zygote | None,
    failed: Callable[[Exit], None],
    patience: Callable[[int], float],
    may_end: Callable[[int, Mapping[str, str]], bool],
) -> bool:
    """Let torchrun fork its workers from the zygote; return False where this torch has no such
    function to wrap.

    Args:
        zygote: None starts all workers cold.
        failed: called on torchrun's main thread.
        patience: likewise; seconds that a worker, by its process id, may take to end by SIGTERM.
        may_end: likewise; whether torchrun may hear that a worker, by process id and environment,
            has ended with code 0.
    """
    original = getattr(multiprocessing_api, "get_subprocess_handler", None)
    if original is None:
        log.warning("this torch starts workers in another way; they will start cold and unwatched")
        return False

    class WatchedHandler(SubprocessHandler):
        proc: Any

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            plain = args[0] == sys.executable
            env = worker_environment(env)
            log_folder.note(env.get(error_file.VARIABLE, ""))
            return _Watched(
                (self._warm(args, env) if plain else None) or super()._popen(args, env),
                env,
                failed,
                patience,
                may_end,
            )

        def _warm(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            if zygote is None:
                return None
            outputs = [
                stream.fileno() if stream is not None else number
                for number, stream in ((1, self._stdout), (2, self._stderr))
            ]
            try:
                return zygote.launch(args[1:], env, outputs)
            except ZygoteError as error:
                log.warning("starting a worker cold: %s", error)
                return None

        def close(self, death_sig: signal.Signals | None = None) -> None:
            self.proc.sent.add(int(death_sig or signal.SIGTERM))
            if self.proc.gone:  # maybe long ago: its process id may be another's now
                for stream in (self._stdout, self._stderr):
                    if stream is not None:
                        stream.close()
                return
            # The zygote reaps its children, so one that just died has no group to be signalled.
            with contextlib.suppress(ProcessLookupError):
                super().close(death_sig)

    setattr(multiprocessing_api, "get_subprocess_handler", WatchedHandler)  # noqa: B010
    return True
