"""Processes of a script that needs torch, forked with torch imported.

An interpreter of its own would import it for seconds of CPU, for each rank of each test.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.elastic_trainer import nursery

_ROOT = Path(__file__).parents[2]
_STDIN = "STDIN_OF_TORCH_PROCESS"
# A fork has its parent's stdin until it opens the pipe that is meant for it.
_HEAD = f"import os; os.dup2(os.open(os.environ.pop({_STDIN!r}), os.O_RDONLY), 0)\n"


class TorchProcess:
    """`python SCRIPT ARGUMENTS`; what it has of `subprocess.Popen` is the same.

    Args:
        script: text, whose first line is line 2 to Python.
        environment: default: this process's.
        within: the nursery that forks it; default: the one that tests share.
    """

    def __init__(
        self,
        script: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        within: nursery.Nursery | None = None,
    ) -> None:
        self._stdin, stdin = os.pipe()
        stdout, output = os.pipe()
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self._errors = os.fdopen(os.memfd_create("stderr"), "w+")
        for one in (self.stdin, self.stdout, self._errors):
            weakref.finalize(self, one.close)
        variables = dict(os.environ if environment is None else environment)
        with open(output, "w") as log:
            self._process = (within or nursery.shared()).start(
                [str(_file(_HEAD + script)), *map(str, arguments)],
                variables | {_STDIN: f"/proc/{os.getpid()}/fd/{self._stdin}"},
                log,
                self._errors,
            )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, said: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Say this and nothing more; return the rest of stdout and all of stderr at its end.

        Raises:
            subprocess.TimeoutExpired: it had not ended after `timeout` seconds.
        """
        if not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(said)
                self.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        rest: list[str] = []
        reader = threading.Thread(target=lambda: rest.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired("a script with torch", timeout or 0.0)
        self.wait(timeout)
        if self._stdin >= 0:  # until now it may not have opened it
            os.close(self._stdin)
            self._stdin = -1
        self._errors.seek(0)
        return rest[0], self._errors.read()


def module(name: str) -> str:
    """Return the script that does what `python -m NAME` does in the checkout."""
    run = f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return f"import runpy, sys; sys.path[0] = {str(_ROOT)!r}; {run}\n"


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="torch-process-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _file(script: str) -> Path:
    file = _folder() / f"script-{len(list(_folder().iterdir()))}.py"
    file.write_text(script)
    return file
