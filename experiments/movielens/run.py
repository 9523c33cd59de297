"""One training as processes of this machine, whose number of workers changes by a plan."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Protocol

from elastic_trainer.data.audit import Report, verify

from benchmarks.endpoint import free_endpoint
from experiments.kept_runs import tuples
from experiments.movielens import progress
from experiments.movielens.ratings import Features, split

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
"""For processes to start on a busy machine, and for the training to get any further."""
_PR_SET_PDEATHSIG = 1


class Mode(StrEnum):
    IN_STEP = "in step"
    """torchrun agents, one a node, each with a worker in an ElasticLoop."""
    LEASED = "leased"
    """Workers that lease samples, and the model's owner."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The training to run, and with how many workers."""

    ratings: Path
    mode: Mode
    worlds: tuple[int, ...]
    """Workers at first and after each change; the changes part the samples evenly."""
    epochs: int
    batch: int
    every: int
    """Samples between evaluations."""
    seed: int = 0
    double: bool = False
    """Train in float64."""
    rate: float = 0.03
    """Adagrad's learning rate."""
    warm_up: int = 0
    """Samples in whose course the learning rate rises; of a leased training alone."""
    remark: str = ""
    """Tells runs of an equal plan apart."""

    @property
    def label(self) -> str:
        double = ", float64" if self.double else ""
        return (
            f"{self.mode}, {'→'.join(map(str, self.worlds))}, seed {self.seed}{double}{self.remark}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    curve: tuple[tuple[int, float], ...]
    """(samples, AUC of the held-out ratings)."""
    worlds: tuple[tuple[int, int], ...]
    """(samples, workers): from where on how many took part."""
    pauses: tuple[float, ...]
    """Seconds that training stood still at each change of the world, that step included."""
    audit: Report
    seconds: float

    @classmethod
    def read(cls, told: dict[str, Any]) -> Outcome:
        """Make one of its fields as JSON has them."""
        audit = Report(**told.pop("audit"))
        return cls(**{name: tuples(value) for name, value in told.items()}, audit=audit)

    @property
    def auc(self) -> float:
        return self.curve[-1][1]


class Stuck(RuntimeError):
    """The training didn't do what the plan says; what its processes said."""


class Process(Protocol):
    """A started process, with the part of subprocess.Popen's methods that is used here."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int) -> None: ...


Start = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Process]
"""Starts `python ARGUMENTS` with an environment, in a session of its own, its output into a file;
it dies with this process."""


def start(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def run(plan: Plan, features: Features, folder: Path, start: Start = start) -> Outcome:
    """Trains in the empty folder.

    Args:
        start: starts the training's processes.

    Raises:
        Stuck: no progress, or it was over before all of the plan had happened.
    """
    samples, begun = len(split(features)[0]), time.perf_counter()
    with _Processes(plan, folder, start) as processes:
        total = samples * plan.epochs
        for number, world in enumerate(plan.worlds):
            processes.until(total * number // len(plan.worlds))
            processes.resize(world)
        processes.until(total)
        processes.end()
    taken = progress.steps(folder)
    worlds = [next(steps) for _, steps in groupby(taken, key=lambda step: step.world)]
    return Outcome(
        tuple(progress.curve(folder)),
        tuple((step.samples, step.world) for step in worlds),
        tuple(progress.pauses(taken)),
        verify(folder / "audit", samples, plan.epochs),
        time.perf_counter() - begun,
    )


class _Processes:
    """Runs the processes as pods would: each agent with an address and an index of its own."""

    def __init__(self, plan: Plan, folder: Path, start: Start) -> None:
        self._plan = plan
        self._folder = folder
        self._begin = start
        self._hold, self._slow = folder / progress.HOLD, folder / progress.SLOW
        self._endpoint = f"127.0.0.1:{free_endpoint()}"
        self._workers: list[Process] = []
        self._started = 0
        """Workers, so far."""
        self._others: list[Process] = []

    def __enter__(self) -> _Processes:
        if self._plan.mode is Mode.LEASED:
            port = self._endpoint.rpartition(":")[2]
            self._others = [
                self._start("coordinator", "-m", "elastic_trainer.coordinator", "--port", port),
                self._start("owner", "-m", *self._leased("owner")),
            ]
            self._wait("the model's owner", (self._folder / "owner").exists)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers, *self._others):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def resize(self, world: int) -> None:
        """Starts workers or lets the latest go, and waits for a step of that world."""
        while len(self._workers) < world:
            self._hold.touch()
            self._workers.append(self._start_worker(len(self._workers)))
            self._started += 1
        self._wait("the newcomers", lambda: self._count_ready() >= self._started)
        # Training must not be over before all of them have come or gone.
        self._slow.touch()
        self._hold.unlink(missing_ok=True)
        leaving = self._workers[world:]
        del self._workers[world:]
        for worker in leaving:
            worker.send_signal(signal.SIGTERM)  # to an agent: leave at the next step's end
        self._wait(f"a world of {world}", lambda: progress.newest(self._folder)[1] == world)
        self._slow.unlink(missing_ok=True)
        for worker in leaving:
            worker.wait(PATIENCE_SECONDS)

    def _count_ready(self) -> int:
        return len(list(self._folder.glob(progress.READY.format("*"))))

    def until(self, samples: int) -> None:
        self._wait(f"{samples} samples", lambda: progress.newest(self._folder)[0] >= samples)

    def end(self) -> None:
        """All samples are in the model."""
        last = [self._others[1]] if self._others else []
        for process in (*self._workers, *last):
            if process.wait(PATIENCE_SECONDS) != 0:
                raise Stuck(f"{self._plan.label}: exit code {process.returncode}\n{self._logs()}")

    def _start_worker(self, index: int) -> Process:
        if self._plan.mode is Mode.LEASED:
            return self._start(f"worker-{index}", "-m", *self._leased("worker"))
        return self._start(
            f"agent-{index}",
            *("-m", "torch.distributed.run"),
            *("--nnodes", f"{min(self._plan.worlds)}:{max(self._plan.worlds)}"),
            *("--nproc-per-node", "1", "--rdzv-id", "movielens"),
            *("--rdzv-backend", "volcano-elastic", "--rdzv-endpoint", self._endpoint),
            *("-m", "experiments.movielens.in_step", *self._options()),
            VOLCANO_ELASTIC_POD_INDEX=str(index),
            VOLCANO_ELASTIC_POD_IP=f"127.0.0.{index + 1}",
            VOLCANO_ELASTIC_JOB="experiments/movielens",
            # Workers and agents share few cores here, which looks like silence sooner.
            VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT="5",
            VOLCANO_ELASTIC_PRELOAD="-torch._dynamo",  # nothing is compiled here
        )

    def _leased(self, role: str) -> list[str]:
        module = "experiments.movielens.leased"
        return [module, role, *self._options(), "--endpoint", self._endpoint]

    def _options(self) -> list[str]:
        names = ("seed", "epochs", "batch", "rate", "every")
        given = {name: getattr(self._plan, name) for name in names}
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        options += ["--double"] * self._plan.double
        if self._plan.mode is Mode.LEASED:
            options += ["--warm-up", str(self._plan.warm_up)]
        return [str(self._plan.ratings.resolve()), str(self._folder), *options]

    def _start(self, name: str, *arguments: str, **environment: str) -> Process:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
        with open(self._folder / f"{name}.log", "ab") as log:
            return self._begin(arguments, variables, log)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait as long as there is progress."""
        before, deadline = (0, 0), time.monotonic() + PATIENCE_SECONDS
        while not condition():
            now = progress.newest(self._folder)
            if now != before:
                before, deadline = now, time.monotonic() + PATIENCE_SECONDS
            processes = (*self._workers, *self._others)
            ended = [process for process in processes if process.poll() is not None]
            if time.monotonic() > deadline or (ended and not condition()):
                raise Stuck(f"{self._plan.label}: expected {what}, found {now}\n{self._logs()}")
            time.sleep(0.02)

    def _logs(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
