"""D3: what a job needs, by its first minutes with worker 0.

CPU that one worker needs in all        worker 0's + that of all parameter servers
number of workers                       the job's limit of CPU / that
worker's CPU and memory                 used x 1.2
number of parameter servers             their CPU in all x number of workers / CPU of each
memory of each parameter server         used in all / number x 1.2, if it is stable;
                                        growth by a step x total steps / number, if it grows

Source: DLRover's article on automatic resource configuration. Its figures: 15 CPU, one worker with
30 steps a second, after 3 minutes four with 100. The article's margin of 1.2 comes on top of a
limit that is spent already; here it is as much of that as the limit leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volcano_elastic.api.amount import Bytes, Cpu, Seconds
from volcano_elastic.brain.estimate.amounts import Amounts, Limits, within
from volcano_elastic.brain.estimate.job_load import (
    Configuration,
    JobLoad,
    memory_of_each,
    servers_for,
    total,
)

WAIT = Seconds.of(180)
"""How long a job has to run before it is judged."""
MARGIN = 1.2
_GROWS = 0.05
"""A change of memory by less than this share is none."""


@dataclass(frozen=True, slots=True)
class MemoryAt:
    """The memory that all parameter servers held after a step."""

    step: int
    held: Bytes


def growth(samples: Sequence[MemoryAt]) -> float:
    """Return bytes a step by which memory grows, by the line that fits the samples best; 0 if it is
    stable, or nobody can tell."""
    if len(samples) < 2 or samples[-1].held <= samples[0].held * (1 + _GROWS):
        return 0.0
    steps = [float(sample.step) for sample in samples]
    held = [float(sample.held.count) for sample in samples]
    mean_step, mean_held = sum(steps) / len(steps), sum(held) / len(held)
    spread = sum((step - mean_step) ** 2 for step in steps)
    if not spread:
        return 0.0
    pairs = zip(steps, held, strict=True)
    slope = sum((step - mean_step) * (bytes_ - mean_held) for step, bytes_ in pairs) / spread
    return max(0.0, slope)


def memory_in_all(used: Bytes, bytes_a_step: float, total_steps: int) -> Bytes:
    """Return what parameter servers are going to need together; no less than they use now."""
    if bytes_a_step <= 0:
        return used * MARGIN
    return max(used, Bytes(round(bytes_a_step * total_steps)))


def while_running(
    used: JobLoad,
    limit: Cpu,
    *,
    server_cpu: Cpu,
    most_workers: int,
    bytes_a_step: float = 0.0,
    total_steps: int = 0,
    limits: Limits = Limits(),  # noqa: B008
) -> Configuration:
    """Return the configuration that the job's limit of CPU carries.

    Args:
        used: by the parameter servers, and by worker 0.
        limit: of the job's CPU in all.
        server_cpu: CPU of each parameter server.
        most_workers: the job's maximum.
        bytes_a_step: as `growth` tells.
        total_steps: of the whole training; counts where memory grows.
        limits: of a node; `used` in it is taken for what the pods of `used` use.
    """
    chief, servers = used.workers[0], total(used.parameter_servers)
    with_servers = bool(used.parameter_servers)

    def number_of_servers(workers: int) -> int:
        return servers_for(servers.cpu * workers, server_cpu) if with_servers else 0

    def left(workers: int) -> Cpu:
        return limit - server_cpu * number_of_servers(workers)

    need = max(Cpu(1), chief.cpu + servers.cpu)
    workers = max(1, min(most_workers, limit.count // need.count))
    # Parameter servers come whole, so the last worker may not have room beside them.
    while workers > 1 and left(workers) < chief.cpu * workers:
        workers -= 1
    cpu = max(chief.cpu, min(chief.cpu * MARGIN, Cpu(left(workers).count // workers)))
    worker = within(Amounts(cpu, chief.memory * MARGIN), Limits(chief, limits.node))
    if not with_servers:
        return Configuration(0, Amounts(Cpu(0), Bytes(0)), workers, worker)
    number = number_of_servers(workers)
    needed = memory_in_all(servers.memory, bytes_a_step, total_steps)
    server = within(Amounts(server_cpu, memory_of_each(needed, number)), Limits(node=limits.node))
    return Configuration(number, server, workers, worker)
