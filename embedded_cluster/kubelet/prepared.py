"""Containers that begin as forks of a Python that has imported what they need.

For tests: each of their containers would import torch anew, for seconds of CPU. The module that is
named has `takes(words, variables)`, whether a command may begin so, and `run(words)`, which is to
do what the command does and returns its exit code.

The process that forks is a child of the kubelet's. What it forks is a shim (shim.py), whose parent
is the kubelet, too: the process between them has ended before the shim begins.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import IO, NoReturn

from embedded_cluster.kubelet import shim


class ForkedShim:
    """A shim, with as much of subprocess.Popen as the kubelet uses."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class PreparedPython:
    """Make it before this process has threads, and let it end with this process.

    Args:
        module: the name of the module that says which commands it takes, and runs them.
    """

    def __init__(self, module: str) -> None:
        self._module = importlib.import_module(module)
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                ours.close()
                _serve(theirs, self._module.run)
            os._exit(1)
        theirs.close()
        self._control = ours

    def takes(self, words: Sequence[str], variables: Mapping[str, str]) -> bool:
        return bool(self._module.takes(words, variables))

    def start(self, plan: int) -> ForkedShim:
        """Start a shim with this plan (see shim.py), a file.

        Raises:
            OSError: the process that forks is gone.
        """
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._control, [b"f"], [plan, writing])
            answer = self._control.recv(16)
            if not answer:
                raise OSError("the process that forks containers is gone")
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return ForkedShim(int(answer), open(reading, "rb", buffering=0))


def _serve(control: socket.socket, run: shim.Run) -> NoReturn:
    os.setpgid(0, 0)
    gc.collect()
    gc.freeze()  # a collection in a fork must not touch, hence copy, every page
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not asked:
            os._exit(0)
        plan, report = descriptors
        told, tell = os.pipe()
        go, begin = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(tell, b"%d" % pid)
                os._exit(0)
            os.close(begin)
            if not os.read(go, 1):
                os._exit(1)
            for source, target in ((plan, 0), (report, 1)):
                os.dup2(source, target)
            for used in (control.detach(), plan, report, told, tell, go):
                os.close(used)
            os.setsid()
            os._exit(shim.main(run))
        pid = int(os.read(told, 16))
        os.waitpid(between, 0)
        os.write(begin, b"g")
        for used in (plan, report, told, tell, go, begin):
            os.close(used)
        control.sendall(b"%d" % pid)
