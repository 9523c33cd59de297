"""Figures of a node's workers for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_trainer.metrics.exposition import Metric


@dataclass(frozen=True)
class Reading:
    """One reading of the page that a worker shares with its agent."""

    step: int = -1
    time: float = 0.0
    """Monotonic seconds, of the step's end."""
    samples: int = 0
    stall: float = 0.0
    """Seconds that commits have kept it from training, since its start."""


class WorkerMetrics:
    """Fed with readings in order of time, of one worker for all: their steps are one another's."""

    def __init__(self) -> None:
        self._world = self._round = 0
        self._starts = 0
        self._steps = 0
        self._step_seconds = self._stall_seconds = 0.0
        self._samples_per_second = 0.0
        self._recoveries = 0
        self._recovery_seconds = self._recovery_total = 0.0
        self._last: Reading | None = None
        self._stepped: float | None = None
        self._ended: float | None = None
        """When the last step of the round before was made."""

    def started(self) -> None:
        """Workers' processes are about to be started."""
        self._starts += 1
        self._last = None

    def begun(self, number: int, world: int) -> None:
        """A round begins; `world` counts workers."""
        self._round, self._world = number, world
        self._ended = self._stepped
        if self._last is not None:
            self._last = Reading(stall=self._last.stall)

    def read(self, found: Reading) -> None:
        last = self._last or Reading()
        self._stall_seconds += max(0.0, found.stall - last.stall)
        if found.step >= 0 and last.step >= 0 and found.step > last.step:
            seconds, steps = found.time - last.time, found.step - last.step
            self._steps += steps
            self._step_seconds += seconds
            if seconds > 0 and found.samples > last.samples > 0:
                self._samples_per_second = (found.samples - last.samples) / seconds
        elif found.step >= 0 and last.step < 0 and self._ended is not None:
            self._recoveries += 1
            self._recovery_seconds = max(0.0, found.time - self._ended)
            self._recovery_total += self._recovery_seconds
            self._ended = None
        if found.step >= 0:
            self._stepped = found.time
        self._last = found

    def metrics(self) -> list[Metric]:
        mean = self._step_seconds / self._steps if self._steps else 0.0
        return [
            Metric("world_size", "Workers of the round.", self._world),
            Metric("worker_round", "Number of the round.", self._round),
            Metric("steps_total", "Steps timed by this node.", self._steps),
            Metric("step_seconds_total", "Time that they took.", self._step_seconds),
            Metric("step_seconds", "A step's mean time so far.", mean),
            Metric(
                "samples_per_second", "Consumed by all ranks, lately.", self._samples_per_second
            ),
            Metric(
                "checkpoint_stall_seconds_total",
                "Time that commits kept a worker of this node from training.",
                self._stall_seconds,
            ),
            Metric("restarts_total", "Starts of its processes anew.", max(0, self._starts - 1)),
            Metric("recoveries_total", "Rounds that went on with steps.", self._recoveries),
            Metric(
                "recovery_seconds_total",
                "From the last step of a round to the first of the next.",
                self._recovery_total,
            ),
            Metric("recovery_seconds", "The newest of them.", self._recovery_seconds),
        ]
