"""The pods of one job, by what they do, and the order in which they leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import add
from typing import NamedTuple

from volcano_elastic.api.role import elastic, leading
from volcano_elastic.cluster_state.fit import UNLIMITED, Dimensions, Vector
from volcano_elastic.snapshot.snapshot import Job, Pod

COUNTED = elastic().name
"""Role whose pods count in a job's size."""
LEADING = leading().name
"""Role of the pod that has rank 0, where the job has it."""


class JobPods(NamedTuple):
    """The pods of a job, by what they do."""

    bound: dict[str, Pod]
    """Workers with a node, by key."""
    unbound: dict[str, Pod]
    """Workers without one."""
    excess: Sequence[Pod]
    """Workers beyond `desired`, in neither: an earlier decision not carried out yet."""
    departing: bool
    """Some are terminating and still have a node: the job has been running."""
    master_bound: bool
    held: Vector
    """Amounts that they hold in the queue."""
    surplus: int
    """Amount of the policy's resource that those beyond the minimum hold."""


def job_pods(
    job: Job, pods: Iterable[Pod], vector: Vector, dimensions: Dimensions, resource: str
) -> JobPods:
    """Sort a job's pods.

    Args:
        vector: amounts that a worker asks for.
        resource: that surplus is counted in.
    """
    departing = master_bound = False
    bound: dict[str, Pod] = {}
    unbound: dict[str, Pod] = {}
    others: list[Pod] = []
    for pod in pods:
        if pod.terminating:
            departing = departing or pod.node is not None
        elif pod.role != COUNTED:
            if pod.node is not None:
                master_bound = master_bound or pod.role == LEADING
                others.append(pod)
        elif pod.node is not None:
            bound[pod.key] = pod
        else:
            unbound[pod.key] = pod
    # Mostly all that hold room ask for the same, which is quicker seen than counted.
    usual = job.pod_requests
    rest = [p for p in bound.values() if p.requests is not usual and p.requests != usual]
    usually = len(bound) - len(rest)
    held = tuple([amount * usually for amount in vector])
    for pod in (*rest, *others):
        held = tuple(map(add, held, dimensions.request(pod.requests)))
    beyond = max(0, len(bound) - job.min)
    surplus = beyond * usual.get(resource, 0)
    excess: list[Pod] = []
    alive = [*bound.values(), *unbound.values()]
    extra = existing(job, alive) - job.desired
    if extra > 0:
        order = eviction_order(alive, worker_0=goes_on_without_first(job, bound.values()))
        excess = order[:extra]
        for pod in excess:
            del (bound if pod.node is not None else unbound)[pod.key]
    return JobPods(bound, unbound, excess, departing, master_bound, held, surplus)


class FirstVictim(NamedTuple):
    """The pod of a job that leaves first for a claim, by the costs of options; the smallest goes
    first."""

    protected: bool
    running: bool
    surplus: float
    """The job's `JobSurplus.weighted`."""
    last: int
    """Its index, negative."""
    node: str
    pod: str
    job: str

    @classmethod
    def of(cls, pod: Pod | None, surplus: float) -> FirstVictim | None:
        """Return the first of its job's pods that leaves, by the surplus that the job has."""
        if pod is None:
            return None
        node, job = pod.node or "", pod.job or ""
        return cls(pod.protected, pod.running, surplus, -pod.index, node, pod.key, job)

    def next(self, surplus: float) -> FirstVictim:
        """Return a bound, without a pod, of whoever leaves after this one."""
        return FirstVictim(self.protected, self.running, surplus, -UNLIMITED, "", "", self.job)


def has_first(pods: Iterable[Pod]) -> bool:
    """Return whether worker 0 is among the pods."""
    for pod in pods:  # noqa: SIM110 - a generator takes twice as long
        if pod.index == 0:
            return True
    return False


def goes_on_without_first(job: Job, bound: Collection[Pod]) -> bool:
    """Return whether workers with a node go on, though worker 0 has none."""
    return not job.needs_first and bool(bound) and not has_first(bound)


def existing(job: Job, alive: Sequence[Pod]) -> int:
    """Workers that count in the size: those alive or finished, and worker 0 even while it is
    missing, where the others need it, since it comes back then."""
    missing = job.needs_first and bool(alive) and not job.succeeded and not has_first(alive)
    return len(alive) + job.succeeded + missing


def eviction_order(pods: Iterable[Pod], worker_0: bool = False) -> list[Pod]:
    """Pods in the order in which they leave: unbound, then unprotected, bound before running,
    highest index. Never worker 0, unless `worker_0`.

    The protection of a pod without a node protects nothing yet.
    """
    leaving = [pod for pod in pods if worker_0 or pod.index != 0]
    if len(leaving) > 1:
        leaving.sort(
            key=lambda pod: (pod.node is not None, pod.protected, pod.running, -pod.index, pod.key)
        )
    return leaving


def first_leaver(bound: Iterable[Pod]) -> Pod | None:
    """Return the first of `eviction_order`, of pods that all have a node."""
    first: Pod | None = None
    for pod in bound:
        if not pod.index:
            continue
        # Tuples of what they are compared by would take twice as long.
        if first is None:
            sooner = True
        elif pod.protected != first.protected:
            sooner = first.protected
        elif pod.running != first.running:
            sooner = first.running
        elif pod.index != first.index:
            sooner = pod.index > first.index
        else:
            sooner = pod.key < first.key
        if sooner:
            first = pod
    return first
