"""Lets torchrun start its workers through the zygote.

torchrun reads PYTHON_EXEC before it creates the rendezvous handler, and a client process named
there would cost an interpreter's start a worker. So the one function that makes a worker's process
is wrapped; anything unexpected (another interpreter, NUMA binding, a lost zygote) starts cold.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from typing import Any

import torch.distributed.elastic.multiprocessing.api as multiprocessing_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from trainer.agent.zygote import Zygote, ZygoteError

log = logging.getLogger(__name__)


def start_workers_from(zygote: Zygote) -> bool:
    """Whether this torch has the function to wrap."""
    cold = getattr(multiprocessing_api, "get_subprocess_handler", None)
    if cold is None:
        log.warning("this torch starts workers in another way; they will start cold")
        return False

    class WarmSubprocessHandler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            outputs = [
                stream.fileno() if stream is not None else number
                for number, stream in ((1, self._stdout), (2, self._stderr))
            ]
            try:
                return zygote.launch(args[1:], env, outputs)
            except ZygoteError as error:
                log.warning("starting a worker cold: %s", error)
                return super()._popen(args, env)

        def close(self, death_sig: signal.Signals | None = None) -> None:
            # The zygote reaps its children, so one that just died has no group to be signalled.
            with contextlib.suppress(ProcessLookupError):
                super().close(death_sig)

    def get_subprocess_handler(*arguments: Any, **options: Any) -> Any:
        plain = options.get("entrypoint") == sys.executable and not options.get("numa_options")
        return (WarmSubprocessHandler if plain else cold)(*arguments, **options)

    setattr(multiprocessing_api, "get_subprocess_handler", get_subprocess_handler)  # noqa: B010
    return True
