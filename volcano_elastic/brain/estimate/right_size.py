"""Requests of any job's pods, all-reduce too, by what earlier runs used.

CPU       p95 over runs of each run's p95, and 15 %
memory    p99 over runs of each run's peak, and a margin by what the runs tell of this one:
            five or more with its image    25 %
            three or more, another image   60 %
            fewer, or by one fact alone    40 %

Source: Kubernetes' VerticalPodAutoscaler (margin 15 %, upper bound p95) and Google's Autopilot,
which takes p95 of CPU and the peak of memory for batch jobs: too little CPU slows a run, too little
memory ends it. Margins of memory were chosen by the replayed year of `experiments/right_sizing.py`.
Runs count alike, however long they took.

unknown   fewer runs, or none: what is asked for times the administrator's factor, as far as a node
          has so much for the pod's share of its CPUs, so that no fewer pods fit
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts, Limits, within

Amount = TypeVar("Amount", Cpu, Bytes)

SHARE, MEMORY_SHARE, MARGIN = 0.95, 0.99, 1.15
_MANY = 5


def right_size(
    runs: Sequence[Amounts], limits: Limits, memory_margin: float = MARGIN
) -> Amounts | None:
    """Return what a pod should ask for; None: no run tells.

    Args:
        runs: p95 of CPU and peak of memory of the busiest pod of the role, each of one run.
        memory_margin: how many times the runs' memory.
    """
    if not runs:
        return None
    cpu = percentile([run.cpu for run in runs], SHARE) * MARGIN
    memory = percentile([run.memory for run in runs], MEMORY_SHARE) * memory_margin
    return within(Amounts(cpu, memory), limits)


def margin_of_memory(runs: int, *, close: bool, same_image: bool) -> float:
    """Return how many times the memory of earlier runs a pod should ask for.

    Args:
        runs: how many there are.
        close: whether these are enough, and share more than one fact with the job.
        same_image: whether they have its image.
    """
    if close and not same_image:
        return 1.6
    return 1.25 if close and runs >= _MANY else 1.4


def unknown_memory(asked: Amounts, factor: float, node: Amounts) -> Bytes:
    """Return the memory that a pod of a job should ask for that too few runs are like; never less
    than it does.

    Args:
        factor: how many times what is asked for.
        node: the one with the least memory for each CPU.
    """
    if not node.cpu:
        return asked.memory
    share = Bytes(node.memory.count * min(asked.cpu, node.cpu).count // node.cpu.count)
    return max(asked.memory, min(asked.memory * float(factor), share))


def percentile(values: Sequence[Amount], share: float) -> Amount:
    """Return the least value that at least that share of all doesn't exceed. `values` has one."""
    ordered = sorted(values, key=lambda value: value.count)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
