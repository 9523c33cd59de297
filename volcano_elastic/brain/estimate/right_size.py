"""Requests of any job's pods, all-reduce too, by what earlier runs used.

CPU       p95 over runs of each run's p95, and 15 %
memory    p95 over runs of each run's peak, and 15 %

Source: Kubernetes' VerticalPodAutoscaler (margin 15 %, upper bound p95) and Google's Autopilot,
which takes p95 of CPU and the peak of memory for batch jobs. Runs count alike, however long they
took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.amounts import Amounts, Limits, within

Amount = TypeVar("Amount", Cpu, Bytes)

SHARE, MARGIN = 0.95, 1.15


def right_size(runs: Sequence[Amounts], limits: Limits) -> Amounts | None:
    """Return what a pod should ask for; None: no run tells.

    Args:
        runs: p95 of CPU and peak of memory of the busiest pod of the role, each of one run.
    """
    if not runs:
        return None
    cpu = percentile([run.cpu for run in runs], SHARE) * MARGIN
    memory = percentile([run.memory for run in runs], SHARE) * MARGIN
    return within(Amounts(cpu, memory), limits)


def percentile(values: Sequence[Amount], share: float) -> Amount:
    """Return the least value that at least that share of all doesn't exceed. `values` has one."""
    ordered = sorted(values, key=lambda value: value.count)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
