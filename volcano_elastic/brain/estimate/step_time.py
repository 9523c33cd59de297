"""Says what would make a job's steps shorter, by the measured split of the time that a batch takes.

input    waiting for data     more data-loader workers, which load while others work
network  waiting for others'  larger batches on each rank, fewer of them a step: the global batch,
         gradients            and so the training, stays the same. Each batch's gradients are
                              exchanged, as in ElasticLoop

A loader with n workers that keeps ranks waiting gives a batch each compute + input + network
seconds, so hiding all of the wait takes n times that over compute + network. In the training
process itself (n = 0) all of the loading is in the wait. Source: steady state of a bounded queue;
`MARGIN` as for other resources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MARGIN = 1.15
NEGLIGIBLE = 0.05
"""A share of the time below this is not worth a change."""
FULL = 0.9
"""Share of a GPU's memory that is not exceeded on purpose."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Seconds that a batch takes a rank."""

    compute: float
    input: float
    network: float

    @property
    def total(self) -> float:
        return self.compute + self.input + self.network


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a script's setting. `now` and `then` are None where the setting isn't known."""

    factor: float
    """Times the setting of now; 0 where that is 0."""
    now: int | None
    then: int | None
    speedup: float
    """Samples a second then over those of now, at the most."""


def loader_workers(time: BatchTime, now: int | None) -> Change | None:
    """Return how many processes should load data on each rank; None: no more than now.

    Args:
        now: as many as the script has; None: not known.
    """
    work = time.compute + time.network
    if time.total <= 0 or work <= 0 or time.input < NEGLIGIBLE * time.total:
        return None
    speedup = time.total / work
    if now == 0:
        return Change(0.0, 0, math.ceil(round(MARGIN * time.input / work, 6)), speedup)
    factor = MARGIN * speedup
    then = None if now is None else max(now + 1, math.ceil(round(now * factor, 6)))
    return Change(factor, now, then, speedup)


def batch_size(
    time: BatchTime, batches_a_step: int, now: int | None, memory_in_use: float | None
) -> Change | None:
    """Return how many samples a rank should take at once at the same global batch; None: as now.

    Args:
        batches_a_step: of each rank.
        now: samples of a batch; None: not known.
        memory_in_use: share of the GPUs' memory, of which all is taken to grow with the batch;
            None: not known, so nothing is said.
    """
    if memory_in_use is None or time.total <= 0 or time.network < NEGLIGIBLE * time.total:
        return None
    factor = 1
    while batches_a_step % (2 * factor) == 0 and 2 * factor * memory_in_use <= FULL:
        factor *= 2
    if factor == 1:
        return None
    saved = time.network * (1 - 1 / factor)
    then = None if now is None else now * factor
    return Change(float(factor), now, then, time.total / (time.total - saved))
