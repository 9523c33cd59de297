"""The coordinator as a child of worker 0's agent: started, and started again when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from elastic_trainer.coordinator.__main__ import (
    END_DELIVERY_SECONDS,
    EXIT_ADDRESS,
    EXIT_DEPOSED,
    EXIT_PERMISSION,
    FAILURES_DELIVERY_SECONDS,
)
from elastic_trainer.identity import Identity
from elastic_trainer.protocol.auth import TOKEN_VARIABLE
from elastic_trainer.succession.electorate import TERMS_OF_A_HOST

RESTART_SECONDS = 0.5
"""Between starts of a coordinator that ends at once."""


class CoordinatorProcess:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._term = 0
        self.deposed = False
        """Another agent's coordinator is in its place; none is started here any more."""
        self.refusal: str | None = None
        """Why there can be none; its own output says more."""

    def ensure(self, now: float | None = None) -> None:
        """Starts it if it isn't running."""
        now = time.monotonic() if now is None else now
        if self.deposed or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None and self._process.returncode == EXIT_DEPOSED:
            self.deposed = True
            return
        if self._process is not None and self._process.returncode == EXIT_PERMISSION:
            self.refusal = (
                f"the coordinator may not serve {self._identity.bind_host} without "
                f"{TOKEN_VARIABLE}, as others could reach it: set it to the same secret on every "
                "node, or use a loopback endpoint"
            )
            return
        if self._process is not None and now - self._started < RESTART_SECONDS:
            return
        identity = self._identity
        started_before = self._process is not None and self._process.returncode != EXIT_ADDRESS
        # Without elections a new worker 0's first coordinator must be followed by those who know
        # of many restarts of the former one's.
        if started_before and identity.succession:
            self._term = min(self._term + 1, TERMS_OF_A_HOST - 1)
        self._started = now
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # a folder named trainer in the user's working directory isn't ours
                "-m",
                "elastic_trainer.coordinator",
                f"--host={identity.bind_host}",
                f"--port={identity.port}",
                f"--min={identity.min_nodes}",
                f"--max={identity.max_nodes}",
                f"--node-unit={identity.node_unit}",
                f"--job={identity.job}",
                f"--program={identity.program}",
                f"--heartbeat-timeout={identity.heartbeat_timeout}",
                f"--agent={identity.agent if identity.succession else ''}",
                f"--term={self._term}",
                f"--parent={os.getpid()}",
            ],
            stdin=subprocess.DEVNULL,
            env={**os.environ, TOKEN_VARIABLE: identity.token},  # not an argument: ps shows those
            # Its own session: a terminal's Ctrl-C is for torchrun.
            start_new_session=True,
        )

    def depose(self) -> None:
        """Ends it at once, for good: nobody follows it any more."""
        self.deposed = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def reinstate(self) -> None:
        """Lets it be started again: nobody is left who followed another."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._term = min(self._term + 1, TERMS_OF_A_HOST - 1)
        self._process, self.deposed = None, False

    def close(self, *, failures_delivered: bool, end_delivered: bool = False) -> None:
        """Ends it.

        Args:
            failures_delivered: but not before somebody has asked it for the failures it knows
                of, or FAILURES_DELIVERY_SECONDS.
            end_delivered: but not before the other agents have gone, or END_DELIVERY_SECONDS: each
                must hear that training is complete.
        """
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1 if failures_delivered else signal.SIGTERM)
        try:
            process.wait(
                2.0
                + (FAILURES_DELIVERY_SECONDS if failures_delivered else 0.0)
                + (END_DELIVERY_SECONDS if end_delivered else 0.0)
            )
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(2.0)
