"""The embedded API server as a process of its own, for tests to talk to."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

import yaml
from elastic_trainer.launch.zygote import ZygoteProcess

from tests import program
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.kubeconfig import Access

TOKEN = "a-token-of-the-tests"
PATIENCE = 120
"""Seconds to begin, or to end, on a machine that has other work."""


class ApiServerProcess:
    """Starts when entered, and is gone when exited.

    Args:
        cold: with an interpreter of its own, whose memory is all its own, too; else as a fork.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data_dir: Path | None = None,
        arguments: Sequence[str] = (),
        cold: bool = False,
    ) -> None:
        self._folder, self._arguments = folder, arguments
        self._data_dir, self._cold = data_dir, cold
        self._process: ZygoteProcess | subprocess.Popen[bytes] | None = None
        self._output: IO[str] | None = None
        self.server = ""

    @property
    def process(self) -> ZygoteProcess | subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        assert self._output is not None
        self._output.close()

    def start(self) -> None:
        token = self._folder / "token"
        token.write_text(TOKEN + "\n")
        command = ["-m", "embedded_cluster.apiserver", "--port", "0"]
        command += ["--token-file", str(token)]
        command += self._arguments
        if self._data_dir:
            command += ["--data-dir", str(self._data_dir)]
        reading, writing = os.pipe()
        if self._output is not None:
            self._output.close()
        self._output = os.fdopen(reading)
        with os.fdopen(writing, "wb") as output, os.fdopen(os.dup(2), "wb") as errors:
            if self._cold:
                self._process = subprocess.Popen([sys.executable, *command], stdout=output)
            else:
                self._process = program.fork(command, os.environ, output, errors)
        # Not select(): it refuses descriptors beyond 1023.
        readable = select.poll()
        readable.register(self._output, select.POLLIN)
        line = self._output.readline() if readable.poll(PATIENCE * 1000) else ""
        if not line.startswith("listening on http://127.0.0.1:"):
            self.__exit__()
            raise AssertionError(f"expected where it listens, found {line!r}")
        self.server = line.split()[-1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def client(self) -> Client:
        return Client(Access(self.server, {"Authorization": f"Bearer {TOKEN}"}, None))

    def kubeconfig(self) -> Path:
        """kubectl sends no token without TLS, so the URL carries it."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
            "clusters": [{"name": "local", "cluster": {"server": f"{self.server}/token/{TOKEN}"}}],
            "users": [{"name": "local", "user": {}}],
        }
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path
