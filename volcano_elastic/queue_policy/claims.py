"""Who waits for a minimum: jobs and gangs that could start now if they had room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from volcano_elastic.queue_policy.fit import Dimensions, Shape
from volcano_elastic.queue_policy.snapshot import Gang, Pod
from volcano_elastic.queue_policy.standing import Standing

Group = tuple[Shape, int]
"""Equal pods, and how many of them."""

Order = tuple[bool, int, float, str]
"""Volcano's: first jobs that run without worker 0; then priority, creation, key."""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Room that must be kept for pods of a minimum; the pods may not exist yet."""

    key: str
    """Key of the job or gang."""
    queue: str
    groups: tuple[Group, ...]
    """Largest first."""
    order: Order
    standing: Standing | None = None
    workers: int = 0
    """How many of the pods are workers of `standing`."""
    runs: bool = False
    """It has started, and lacks some of its minimum."""

    @property
    def may_shrink(self) -> bool:
        """Whether others' surplus may leave for it."""
        return not self.unmodelled

    @property
    def unmodelled(self) -> str:
        return "" if self.standing is None else self.standing.job.unmodelled

    @property
    def request(self) -> list[int]:
        """What all its pods ask for, by dimension."""
        vectors = ([amount * count for amount in shape.vector] for shape, count in self.groups)
        return [sum(column) for column in zip(*vectors, strict=True)]

    @property
    def own_surplus_first(self) -> bool:
        return not self.order[0]


def job_claim(standing: Standing, dimensions: Dimensions) -> Claim | None:
    job = standing.job
    short = max(0, job.min - standing.held)
    # A job must not lose its turn because the pod that made way for its worker 0 is on its way out.
    runs = bool(standing.bound) or standing.departing or any(p.node for p in standing.excess)
    first_waits = (
        runs and job.succeeded == 0 and not any(pod.index == 0 for pod in standing.bound.values())
    )
    workers = max(short, 1) if standing.headless else short
    groups: list[Group] = []
    if workers:
        groups.append((standing.shape, workers))
    if job.master_requests is not None and not standing.master_bound and job.succeeded == 0:
        first_waits = runs
        master = dimensions.shape(
            job.master_requests, job.node_selector, job.tolerations, job.node_affinity
        )
        groups.append((master, 1))
    if not groups:
        return None
    return Claim(
        key=job.key,
        queue=job.queue,
        groups=_largest_first(groups),
        order=(not first_waits, -job.priority, job.created.timestamp(), job.key),
        standing=standing,
        workers=workers,
        runs=runs,
    )


def gang_claim(gang: Gang, pods: Iterable[Pod], dimensions: Dimensions) -> Claim | None:
    """None if the gang has its minimum, or has too few pods to start."""
    alive = [pod for pod in pods if not pod.terminating]
    short = gang.min_member - gang.succeeded - sum(pod.node is not None for pod in alive)
    if short <= 0:
        return None
    waiting = sorted((p for p in alive if p.node is None), key=lambda p: (p.index, p.key))[:short]
    counts: dict[Shape, int] = {}
    for pod in waiting:
        shape = dimensions.shape(
            pod.requests, pod.node_selector, pod.tolerations, pod.node_affinity
        )
        counts[shape] = counts.get(shape, 0) + 1
    if len(waiting) < short:
        if gang.pod_requests is None:
            return None
        shape = dimensions.shape(gang.pod_requests, {}, ())
        counts[shape] = counts.get(shape, 0) + short - len(waiting)
    return Claim(
        key=gang.key,
        queue=gang.queue,
        groups=_largest_first(list(counts.items())),
        order=(True, -gang.priority, gang.created.timestamp(), gang.key),
        runs=len(waiting) < len(alive),
    )


def _largest_first(groups: list[Group]) -> tuple[Group, ...]:
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                group[0].vector,
                sorted(group[0].selector),
                sorted(group[0].tolerations),
                group[0].affinity,
            ),
            reverse=True,
        )
    )
