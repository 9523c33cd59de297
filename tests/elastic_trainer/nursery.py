"""Starts torchrun agents and scripts with torch imported: each would import it for seconds of CPU.

What it starts is a fork of a process of its own, not of pytest's, whose threads may hold locks that
nobody would release. For tests of a start, `Job.start(cold=True)` starts `python -m
torch.distributed.run`.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from elastic_trainer.launch.zygote import PRELOADED, Zygote, ZygoteProcess

_AGENT = ("torch.distributed.run", "elastic_trainer.agent.agent")
_PATIENCE = 600.0
"""Seconds to import all that: minutes on a machine that is new or busy."""

_ZYGOTE = """
import socket, sys
from elastic_trainer.launch.zygote import _serve
_serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
"""


class Nursery:
    """One process that forks agents.

    Args:
        modules: imported before torchrun, in order.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(os.getpid()), *modules, *_AGENT]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._zygote = Zygote(ours, self._process.pid)
        self.pid = self._process.pid
        assert self._zygote.wait_ready(_PATIENCE), f"ended with code {self._process.poll()}"

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[Any],
        errors: IO[Any] | None = None,
    ) -> ZygoteProcess:
        """Start `python ARGUMENTS`, in a session of its own; stderr goes to `log`, too, or to
        `errors`."""
        outputs = [log.fileno(), (errors or log).fileno()]
        return self._zygote.launch(arguments, dict(environment), outputs)

    def close(self) -> None:
        """End it, and with it every agent it started."""
        self._zygote.close()
        self._process.wait()


@functools.cache
def shared() -> Nursery:
    """Return the nursery of this test process; it ends with it."""
    nursery = Nursery(PRELOADED)
    atexit.register(nursery.close)
    return nursery
