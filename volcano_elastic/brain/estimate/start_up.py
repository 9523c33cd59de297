"""D2: what a job begins with, by jobs that were like it.

total CPU of its parameter servers      mean of the totals of those jobs
total memory of its parameter servers   greatest total of those jobs
CPU of each parameter server            greatest of any of theirs
number of parameter servers             total CPU / CPU of each
memory of each parameter server         total memory / number
worker 0                                greatest CPU and memory of any worker

A checkpoint that it begins with is no less than all servers hold (X3, `checkpoint.py`): without
such jobs it says their memory, beside them their least.

Source: DLRover's article on automatic resource configuration. (Its code adds 4 CPU, multiplies by
1.5 and by 1.2, and its default without history had bytes where MiB were meant.)
"""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts, Limits, within
from volcano_elastic.brain.estimate.checkpoint import memory_of_servers
from volcano_elastic.brain.estimate.job_load import (
    Configuration,
    JobLoad,
    greatest,
    memory_of_each,
    servers_for,
    total,
)

WITHOUT_HISTORY = Amounts(Cpu.cores(8), Bytes.parse("8G"))
"""The article's 8 CPU and 8 GB for the one parameter server, and the same for worker 0."""


def start_up(
    similar: Sequence[JobLoad],
    limits: Limits = Limits(),  # noqa: B008
    checkpoint: Bytes | None = None,
) -> Configuration:
    """Return what a job with parameter servers begins with: those, and worker 0 alone.

    Args:
        similar: finished jobs like it; those without parameter servers tell of workers only.
        limits: of any pod.
        checkpoint: what its servers' rows take in the one that it begins with; None: there is none.
    """
    with_servers = [job for job in similar if job.parameter_servers]
    workers = [load for job in similar for load in job.workers]
    worker = within(greatest(workers) if workers else WITHOUT_HISTORY, limits)
    needed = Bytes(0) if checkpoint is None else memory_of_servers(checkpoint)
    if with_servers:
        totals = [total(job.parameter_servers) for job in with_servers]
        cpu = Cpu(sum(one.cpu.count for one in totals)).shared(len(totals))
        each = greatest([load for job in with_servers for load in job.parameter_servers])
        cpu_of_each, needed = within(each, limits).cpu, max(needed, greatest(totals).memory)
        number = servers_for(cpu, cpu_of_each)
    else:
        cpu_of_each, needed = WITHOUT_HISTORY.cpu, needed or WITHOUT_HISTORY.memory
        number = 1
    memory = memory_of_each(needed, number)
    server = within(Amounts(cpu_of_each, memory), limits)
    if server.memory < memory:
        # More of them, where no node has as much for one.
        number = -(-needed.count // server.memory.count)
    return Configuration(number, server, 1, worker)
