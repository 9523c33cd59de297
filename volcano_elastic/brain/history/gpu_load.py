"""Use of a pod's GPUs over time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from volcano_elastic.api.amount import Bytes, Percent
from volcano_elastic.brain.estimate.histogram import Histogram

HALF = 0.5


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of all GPUs of a pod in the last minute."""

    memory: Bytes
    busy: Percent | None = None
    """Per cent of time in which GPUs computed, on average; None: the device doesn't tell."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    peak: Bytes
    memory: Histogram[Bytes]
    busy: Histogram[Percent]
    """Without samples where the device doesn't tell."""

    @classmethod
    def unused(cls, since: datetime) -> Self:
        return cls(Bytes(0), Histogram(Bytes, since), Histogram(Percent, since))

    def with_sample(self, use: GpuUse, at: datetime) -> Self:
        busy = self.busy if use.busy is None else self.busy.with_sample(use.busy, at)
        return replace(
            self,
            peak=max(self.peak, use.memory),
            memory=self.memory.with_sample(use.memory, at),
            busy=busy,
        )

    def after(self, earlier: Self) -> Self:
        """Return the load with what was measured before."""
        return replace(
            self,
            peak=max(self.peak, earlier.peak),
            memory=self.memory.with_all_of(earlier.memory),
            busy=self.busy.with_all_of(earlier.busy),
        )

    @property
    def usual(self) -> Percent | None:
        """Return the median share of time in which they computed; None: not known."""
        return self.busy.percentile(HALF)
