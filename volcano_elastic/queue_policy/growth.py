"""Create-last: idle room that nobody needs goes to the jobs that gain most from it.

The next unit of workers goes where the logarithm of the speed gains most per GPU. Measured curves
come later; until then every job has the same concave prior, Amdahl's law with a serial part of
0.036 (what the models of the Philly and Pollux studies fit, .009 to .058), so equal jobs end up
with equal sizes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from volcano_elastic.queue_policy.room import NodeRoom, QueueRoom, Room
from volcano_elastic.queue_policy.standing import Standing

SERIAL = 0.036


def speed(gpus: float) -> float:
    """Steps per second relative to one GPU, by the prior."""
    return gpus / (1 + SERIAL * (gpus - 1))


def gain(size: int, unit: int, unit_gpus: float) -> float:
    """What one more unit of pods adds to log(speed), per GPU."""
    before, after = size * unit_gpus, (size + unit) * unit_gpus
    if before <= 0:
        return math.inf
    return math.log(speed(after) / speed(before)) / (after - before)


Entry = tuple[bool, float, float, str, Standing]


def grow(candidates: Iterable[Standing], nodes: NodeRoom, queues: QueueRoom) -> None:
    """Raise the candidates' sizes until nothing more fits; idle room only."""
    heap: list[Entry] = []

    def offer(standing: Standing) -> None:
        job, unit = standing.job, max(1, standing.job.node_unit)
        if standing.size + unit <= job.max:
            step = [amount * unit for amount in standing.shape.vector]
            heapq.heappush(
                heap,
                (
                    queues.beyond_deserved(job.queue, step),
                    # Rounded, so that ties are ties on every machine.
                    -round(gain(standing.size, unit, standing.unit_gpus), 12),
                    job.created.timestamp(),
                    job.key,
                    standing,
                ),
            )

    free = nodes.free_in_all() if queues.any_guarantee else []
    for standing in candidates:
        # Most jobs of a full cluster end here.
        if nodes.slots(standing.shape, Room.IDLE).total() >= max(1, standing.job.node_unit):
            offer(standing)
    while heap:
        beyond, *_, standing = heapq.heappop(heap)
        job, unit = standing.job, max(1, standing.job.node_unit)
        step = [amount * unit for amount in standing.shape.vector]
        if not beyond and queues.beyond_deserved(job.queue, step):
            # Others have used up the queue's deserved meanwhile: it stands in line again.
            offer(standing)
            continue
        if queues.lacking(job.queue, step) or not _spared(step, free, queues, job.queue):
            continue
        mark = nodes.mark()
        if len(nodes.place(standing.shape, unit, Room.IDLE)) < unit:
            nodes.rollback(mark)
            continue
        queues.use(job.queue, step)
        free = [have - amount for have, amount in zip(free, step, strict=False)]
        standing.size += unit
        offer(standing)


def _spared(step: list[int], free: list[int], queues: QueueRoom, queue: str) -> bool:
    """Whether what other queues' guarantees still lack stays free."""
    if not free:
        return True
    owed = queues.owed_to_others(queue)
    return all(
        free[i] - amount >= owed[i] for i, amount in enumerate(step) if amount > 0 and owed[i] > 0
    )
