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
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from elastic_trainer.launch.zygote import PRELOADED, Zygote, ZygoteProcess

_ROOT = Path(__file__).parents[2]
_AGENT = ("torch.distributed.run", "elastic_trainer.agent.agent")
_PATIENCE = 600.0
"""Seconds to import all that: minutes on a machine that is new or busy."""

_ZYGOTE = """
import socket, sys
from elastic_trainer.launch.zygote import _serve
_serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
"""


_FORKED_ZYGOTE = """
import os, socket, sys
from elastic_trainer.launch.zygote import _serve
sys.path[0] = sys.argv[1]
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[2])
if os.fork():  # a fork leads a session, and can't have a group of its own beside it
    control.close()
    os.wait()
else:
    _serve(control, os.getppid(), sys.argv[3:])
"""


class Nursery:
    """One process that forks agents.

    Args:
        modules: imported before torchrun, in order.
        within: the nursery that forks this one, with what it has imported.
        here: this process, which has no threads yet, forks it, with what it has imported.
    """

    def __init__(
        self, modules: Sequence[str], within: Nursery | None = None, here: bool = False
    ) -> None:
        imported = [*modules, *_AGENT]
        self._process: ZygoteProcess | subprocess.Popen[bytes] | None = None
        if here:
            self._zygote = Zygote.start(imported)
        else:
            begin = _begin if within is None else within._begin
            control, self._process = begin(imported)
            self._zygote = Zygote(control, self._process.pid)
        self.pid = self._zygote.pid
        assert self._zygote.wait_ready(_PATIENCE), "it ended, see its stderr"

    def _begin(self, modules: Sequence[str]) -> tuple[socket.socket, ZygoteProcess]:
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.socket(socket.AF_UNIX) as server,
            open(os.dup(2), "w") as log,
        ):
            script, address = Path(folder, "zygote.py"), f"{folder}/socket"
            script.write_text(_FORKED_ZYGOTE)
            server.bind(address)
            server.listen()
            server.settimeout(_PATIENCE)
            process = self.start([str(script), str(_ROOT), address, *modules], os.environ, log)
            return server.accept()[0], process

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
        if self._process is not None:
            self._process.wait()


def _begin(modules: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", _ZYGOTE, str(theirs.fileno()), str(os.getpid()), *modules],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    return ours, process


@functools.cache
def shared() -> Nursery:
    """Return the nursery of this test process; it ends with it."""
    nursery = Nursery(PRELOADED)
    atexit.register(nursery.close)
    return nursery
