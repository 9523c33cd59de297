"""A planner to compare with: every minute all GPUs are dealt anew, whoever holds what.

Minimums first, oldest first; then the next step goes where log(speed) gains most per GPU, to young
jobs before all others. What rounds cost (newcomers wait for the next) and gain (they start at the
size they are dealt, without a pause) is part of the comparison. It needs known curves, one queue
and workers of one GPU.
"""

from __future__ import annotations

import heapq
import math
from datetime import datetime

from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.snapshot.snapshot import Job, Snapshot

ROUND = 60.0
YOUNG_HOURS = 16.0
NODE = 4
LOOK_AHEAD = 4


def redealt(snapshot: Snapshot, now: datetime) -> Plan:
    dealt = deal(snapshot)
    indexes: dict[str | None, list[tuple[int, str]]] = {}
    for pod in snapshot.pods:
        indexes.setdefault(pod.job, []).append((pod.index, pod.key))
    decisions = []
    for job in snapshot.jobs:
        new = max(dealt.get(job.key, 0), job.min)
        if new != job.desired:
            latest = sorted(indexes.get(job.key, ()), reverse=True)[: max(0, job.desired - new)]
            leaving = tuple(key for _, key in latest)
            reason = Reason.GREW_INTO_IDLE if new > job.desired else Reason.REBALANCED
            decisions.append(Decision(job.key, job.desired, new, reason, "dealt anew", leaving))
    return Plan(decisions=tuple(decisions))


def deal(snapshot: Snapshot) -> dict[str, int]:
    """Sizes of the jobs that have room for their minimum."""
    [resource] = {name for job in snapshot.jobs for name in job.pod_requests} or {""}
    free = sum(node.allocatable.get(resource, 0) for node in snapshot.nodes) // 1000
    sizes: dict[str, int] = {}
    for job in sorted(snapshot.jobs, key=lambda job: (job.created, job.key)):
        if job.min <= free:
            sizes[job.key] = job.min
            free -= job.min
    jobs = {job.key: job for job in snapshot.jobs}
    heap = [step for key in sizes if (step := _step(jobs[key], sizes[key])) is not None]
    heapq.heapify(heap)
    while heap and free:
        *_, key, size = heapq.heappop(heap)
        given = min(size - sizes[key], free)
        sizes[key] += given
        free -= given
        following = _step(jobs[key], sizes[key])
        if following is not None:
            heapq.heappush(heap, following)
    return sizes


def _step(job: Job, size: int) -> tuple[bool, float, datetime, str, int] | None:
    """(not young, negative worth, creation, key, next size), the best of the next few."""
    best: tuple[float, int] | None = None
    larger = size
    for _ in range(LOOK_AHEAD):
        larger = larger * 2 if larger < NODE else larger + NODE
        reached = min(larger, job.max)
        if reached <= size:
            break
        worth = math.log(job.speeds[reached] / job.speeds[size]) / (reached - size)
        if worth > 0 and (best is None or worth > best[0] * (1 + 1e-9)):
            best = (worth, reached)
    if best is None:
        return None
    return (job.gpu_hours >= YOUNG_HOURS, -best[0], job.created, job.key, best[1])
