"""D4: what to change in a job that runs on.

hot parameter server       0.8 of its CPU in each of three samples    one with more CPU in its place
memory nearly used up      0.9 of its memory in each of three samples one with more in its place
parameter servers idle     below 0.85 of their CPU, and the last      more workers
                           growth brought enough speed

Source: DLRover's article on automatic resource configuration, with the thresholds of its Brain.
(Its stages of a running job were unreachable, and its plan for a hot server had 0 MiB of memory.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts, Limits, within
from volcano_elastic.pytorchjob.out_of_memory import more_memory

SAMPLES = 3
HOT, AT_REST = 0.8, 0.6
NEARLY_FULL = 0.9
SPARE = 0.85
ENOUGH_GAIN = 0.2
"""Share of what a worker brought before that the next ones must bring at least."""
MOST_AT_ONCE = 8


def hot(used: Sequence[Cpu], request: Cpu) -> bool:
    """Return whether a parameter server has too little CPU, by its latest samples."""
    last = used[-SAMPLES:]
    return len(last) == SAMPLES and all(sample >= request * HOT for sample in last)


def cooled(used: Sequence[Cpu], request: Amounts, limits: Limits) -> Amounts:
    """Return what a hot server's successor asks for: so much CPU that it is 0.6 busy, and its
    memory as it is."""
    busiest = max(used[-SAMPLES:])
    cpu = max(busiest * (1 / AT_REST), request.cpu)
    return within(Amounts(cpu, request.memory), limits)


def nearly_full(used: Sequence[Bytes], request: Bytes) -> bool:
    """Return whether a pod is about to run out of memory, by its latest samples."""
    last = used[-SAMPLES:]
    return len(last) == SAMPLES and all(sample >= request * NEARLY_FULL for sample in last)


def relieved(used: Sequence[Bytes], request: Amounts, limits: Limits) -> Amounts:
    """Return what a pod that is nearly full asks for in its next life: as if it had run out."""
    memory = more_memory(request.memory, max(used[-SAMPLES:]))
    return within(Amounts(request.cpu, memory), limits)


def gain(speeds: Mapping[int, float], workers: int) -> float | None:
    """Return what each worker of the latest growth brought, as a share of what each brought before;
    None: nobody can tell.

    Args:
        speeds: samples a second, by number of workers.
    """
    fewer = [size for size in speeds if size < workers]
    if workers not in speeds or not fewer:
        return None
    before = max(fewer)
    if speeds[before] <= 0:
        return None
    each_before = speeds[before] / before
    return (speeds[workers] - speeds[before]) / (workers - before) / each_before


def more_workers(
    workers: int,
    most: int,
    servers: Sequence[tuple[Cpu, Cpu]],
    speeds: Mapping[int, float],
) -> int:
    """Return how many workers the job should have: more while its parameter servers have CPU to
    spare and the last growth paid, never fewer.

    Args:
        servers: used and requested CPU of each; none for an all-reduce job.
        speeds: as for `gain`.
    """
    brought = gain(speeds, workers)
    if workers >= most or (brought is not None and brought < ENOUGH_GAIN):
        return workers
    busiest = max((used / asked for used, asked in servers), default=0.0)
    if busiest >= SPARE:
        return workers
    carried = most if busiest <= 0 else int(workers * SPARE / busiest)
    return max(workers, min(carried, most, workers + MOST_AT_ONCE))
