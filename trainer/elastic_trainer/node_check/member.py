"""A node's part in a node check: it asks what to run, runs it, and says what came of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elastic_trainer.identity import Identity
from elastic_trainer.node_check.message import (
    PATH,
    UNABLE,
    Order,
    Over,
    Presence,
    Report,
    Trial,
    decode_order,
    encode_presence,
)
from elastic_trainer.protocol.auth import HEADER

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
"""Until the next request, where there was no answer."""
MOST_SECONDS = 10.0
"""Until the next request, whatever the answer says."""
ANSWER_SECONDS = 5.0
"""For the coordinator to answer a request."""
REFUSED_SECONDS = 45.0
"""How long a member whose token is refused tries again, as an agent does."""
TRIAL_SECONDS = 300.0
"""How long a trial's processes wait for one another; the coordinator ends it before."""

_MODULE = "elastic_trainer.node_check.measurement"
_NOTE = 300


class Process(Protocol):
    """A process, as far as it is used here; subprocess.Popen, or one that a zygote started."""

    pid: int

    def poll(self) -> int | None: ...


Launch = Callable[[Sequence[str], dict[str, str], Sequence[int]], Process]
"""Starts `python ARGUMENTS` with an environment, stdout and stderr, in a session of its own."""


def launch_cold(
    arguments: Sequence[str], environment: dict[str, str], outputs: Sequence[int]
) -> Process:
    """Starts an interpreter, which imports torch first."""
    return subprocess.Popen(
        [sys.executable, "-P", *arguments, f"--parent={os.getpid()}"],
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        env=environment,
        start_new_session=True,
    )


class Member:
    """This node in a check.

    Args:
        agent: its name, as the coordinator knows it.
        node: the machine.
        pod_index: of its pod.
        address: where other nodes reach this one; empty: as the coordinator does.
        host: of the coordinator, which serves HTTP on `port`.
        port: likewise.
        token: the job's.
        processes: of this node in a trial; one a GPU.
        gpu: fails where there is no GPU; else a trial is on CPUs there.
        launch: starts a process.
    """

    def __init__(
        self,
        *,
        agent: str,
        node: str,
        pod_index: int,
        address: str,
        host: str,
        port: int,
        token: str,
        processes: int,
        gpu: bool = False,
        launch: Launch = launch_cold,
    ) -> None:
        self._where = (host, port)
        self._token = token
        self._processes = max(1, processes)
        self._gpu = gpu
        self._launch = launch
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._presence = Presence(agent, node, pod_index, address, int(self._store.port))
        self._report: Report | None = None
        self._trial: _RunningTrial | None = None
        self._refused_since: float | None = None

    @classmethod
    def of_agent(
        cls, identity: Identity, *, processes: int, gpu: bool = False, launch: Launch = launch_cold
    ) -> Member:
        """Return the member that an agent's node is, led by the agent's coordinator."""
        return cls(
            agent=identity.agent,
            node=identity.node,
            pod_index=identity.pod_index,
            address=identity.address,
            host=identity.host,
            port=identity.port + 1,
            token=identity.token,
            processes=processes,
            gpu=gpu,
            launch=launch,
        )

    def run(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> Over:
        """Takes part until the check is over; returns the verdict on this node.

        Args:
            timeout: seconds, after which it goes on without a verdict.
            stopped: tells whether there will be no coordinator.
        """
        deadline = time.monotonic() + timeout
        try:
            while not stopped():
                order = self._ask()
                if isinstance(order, Over):
                    return order
                seconds = RETRY_SECONDS
                if order is not None:
                    self._obey(order)
                    seconds = min(max(seconds, order.seconds), MOST_SECONDS)
                if time.monotonic() >= deadline:
                    return Over(reason=f"no end within {timeout:g} s")
                time.sleep(seconds)
            return Over(reason="there is no coordinator")
        finally:
            self._end_trial()

    def _ask(self) -> Order | None:
        """Return the coordinator's answer; None where it gives none."""
        presence = replace(self._presence, report=self._report)
        connection = http.client.HTTPConnection(*self._where, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            try:
                headers = {HEADER: self._token} if self._token else {}
                connection.connect()
                if not presence.address:
                    presence = replace(presence, address=connection.sock.getsockname()[0])
                connection.request("PUT", PATH, encode_presence(presence), headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                return None
        if answer.status == 200:
            self._refused_since = None
            try:
                return decode_order(body)
            except ValueError as error:  # of another version, or another server
                return Over(reason=f"the coordinator's answer is no order: {error}")
        now = time.monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        if answer.status == 401 and now - self._refused_since < REFUSED_SECONDS:
            return None  # maybe an earlier job's, which has not ended yet
        return Over(reason=f"the coordinator refuses it: {answer.status} {body[:200]!r}")

    def _obey(self, order: Order) -> None:
        if not isinstance(order, Trial):
            self._end_trial()
            return
        if self._report is not None and _same(self._report, order):
            return
        if self._trial is None or not _same(self._trial.order, order):
            self._end_trial()
            self._trial = _RunningTrial(order, self._processes, self._gpu, self._launch)
        report = self._trial.report()
        if report is not None:
            self._report = report
            self._end_trial()

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
            self._trial = None


def _same(one: Report | Trial, order: Trial) -> bool:
    return (one.check, one.round) == (order.check, order.round)


class _RunningTrial:
    """The processes of this node in a trial."""

    def __init__(self, order: Trial, processes: int, gpu: bool, launch: Launch) -> None:
        self.order = order
        self._unable = ""
        self._files = contextlib.ExitStack()
        self._parts: list[tuple[Process, IO[bytes], IO[bytes]]] = []
        for local_rank in range(processes):
            arguments = [
                *("-m", _MODULE),
                f"--address={order.address}",
                f"--port={order.port}",
                f"--prefix={order.check}/{order.round}/{order.group}",
                f"--rank={order.rank * processes + local_rank}",
                f"--world={order.size * processes}",
                f"--local-rank={local_rank}",
                f"--timeout={TRIAL_SECONDS}",
                *(["--gpu"] if gpu else []),
            ]
            try:
                out, err = self._output("out"), self._output("err")
                process = launch(arguments, dict(os.environ), [out.fileno(), err.fileno()])
            except (OSError, RuntimeError) as error:
                self._unable = f"cannot start a process: {error}"
                break
            self._parts.append((process, out, err))

    def _output(self, name: str) -> IO[bytes]:
        """A file in memory: the check writes to no disk, and reads what was said at its leisure."""
        return self._files.enter_context(open(os.memfd_create(name), "w+b"))

    def report(self) -> Report | None:
        """Return what came of it, once that is known."""
        order = self.order
        if self._unable:
            return Report(order.check, order.round, unable=True, note=self._unable)
        seconds = []
        for process, out, err in self._parts:
            code = process.poll()
            if code is None:
                continue
            found = _last_line(out) if code == 0 else None
            if found is None:
                note = _tail(err) or f"its process ended with code {code}"
                return Report(order.check, order.round, unable=code == UNABLE, note=note)
            seconds.append(float(found["seconds"]))
        if len(seconds) < len(self._parts):
            return None
        return Report(order.check, order.round, passed=True, seconds=max(seconds))

    def close(self) -> None:
        """Ends the processes; one that the kernel can't end is left behind."""
        for process, _, _ in self._parts:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(process, subprocess.Popen):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(1.0)
        self._files.close()


def _last_line(file: IO[bytes]) -> dict[str, Any] | None:
    file.seek(0)
    lines = file.read().splitlines()
    with contextlib.suppress(ValueError):
        found = json.loads(lines[-1]) if lines else None
        if isinstance(found, dict) and isinstance(found.get("seconds"), int | float):
            return found
    return None


def _tail(file: IO[bytes]) -> str:
    """Return the last line of what a process said."""
    file.seek(0)
    lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:_NOTE] if lines else ""
