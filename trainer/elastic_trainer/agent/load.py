"""Measures what the agent's container uses, each few seconds, in a thread of its own: a driver that
hangs delays no heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from elastic_trainer.agent import control_group
from elastic_trainer.agent.control_group import NotMeasuredError, Usage
from elastic_trainer.agent.gpus import Gpus, GpuUsage
from elastic_trainer.protocol.message import Load

log = logging.getLogger(__name__)

ROOT_VARIABLE = "VOLCANO_ELASTIC_CONTROL_GROUP"
"""Where the container's control group is mounted, in place of /sys/fs/cgroup; empty: no load is
measured, as where several agents share a group."""
EVERY_SECONDS = 10.0
BEATS = 10.0
"""In a large job, whose agents beat more slowly, a load is told at each so many beats."""
WINDOW_SECONDS = 60.0


class RecentLoad:
    """The load of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Usage]] = deque()

    def add(self, time: float, usage: Usage) -> None:
        """Takes the usage at `time` (seconds of one clock, in their order)."""
        self._samples.append((time, usage))
        while len(self._samples) > 2 and self._samples[1][0] <= time - WINDOW_SECONDS:
            self._samples.popleft()

    def load(self, gpus: GpuUsage | None = None) -> Load | None:
        """Return the load so far; None until it is one of a span of time."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if ended <= began:
            return None
        percent = gpus.percent if gpus is not None else None
        return Load(
            cpus=max(0.0, last.cpu_seconds - first.cpu_seconds) / (ended - began),
            memory_bytes=max(usage.memory for _, usage in self._samples),
            gpu_memory_bytes=-1 if gpus is None else gpus.memory,
            gpu_percent=-1 if percent is None else percent,
            gpu_memory_total_bytes=-1 if gpus is None else gpus.memory_total,
        )


class LoadMeter:
    """Has `tell` called with loads, from its own thread, until `close`.

    Args:
        beat: returns seconds between the agent's heartbeats, as they are now.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        tell: Callable[[Load], None],
        beat: Callable[[], float],
        every: float = EVERY_SECONDS,
    ) -> None:
        root = environment.get(ROOT_VARIABLE, str(control_group.ROOT))
        self._root = Path(root) if root else None
        self._tell, self._beat, self._every = tell, beat, every
        self._over = threading.Event()

    def start(self) -> None:
        if self._root is not None:
            threading.Thread(target=self._run, name="load", args=(self._root,), daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self, root: Path) -> None:
        recent, gpus = RecentLoad(), _gpus()
        while True:
            try:
                recent.add(time.monotonic(), control_group.read(root))
            except NotMeasuredError as error:
                log.info("this container's load is not measured: %s", error)
                return
            usage = None
            if gpus is not None:
                try:
                    usage = gpus.read()
                except OSError as error:
                    log.info("its GPUs' load is measured no more: %s", error)
                    gpus = None
            load = recent.load(usage)
            if load is not None:
                self._tell(load)
            if self._over.wait(max(self._every, BEATS * self._beat())):
                return


def _gpus() -> Gpus | None:
    try:
        return Gpus()
    except OSError as error:
        log.debug("no GPU's load is measured: %s", error)
        return None
