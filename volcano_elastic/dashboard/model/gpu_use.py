"""GPUs by queue at one moment: held, running, wanted, and idle though somebody wants them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.api.role import elastic
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.snapshot.snapshot import Job, Node, Pod, Snapshot

NO_QUEUE = ""
"""Name under which pods are counted that are in no queue."""

CONTENT = frozenset(
    (
        Reason.AT_MAX,
        Reason.AT_MAX_PER_JOB,
        Reason.AT_REPLICAS,
        Reason.MAX_STEP_TOO_SMALL,
        Reason.INEFFICIENT,
        Reason.NOT_WORTH_A_PAUSE,
        Reason.FINISHING,
        Reason.HELD,
        Reason.UNMODELLED,
        Reason.QUEUE_CLOSED,
    )
)
"""Reasons to stay for which a job wants no more GPUs, or is wanted to have no more."""


@dataclass(slots=True)
class QueueUse:
    """Amounts of one queue, without its children's, in thousandths of the resource."""

    held: int = 0
    """By its pods that have a node, those that are leaving too."""
    running: int = 0
    """By those of them that run and stay."""
    wanted: int = 0
    """The lack of minimums, and that of jobs that would gain by more, to their maximum."""
    idle_wanted: int = 0
    """The part of `wanted` that is idle and that the queue may take."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One moment of the cluster; amounts in thousandths of `resource`."""

    resource: str
    capacity: int
    """Amount that all nodes offer."""
    idle: int
    """Free on nodes that take pods."""
    kept_out: int
    """Free on nodes that take none."""
    idle_wanted: int
    """Idle though somebody who may take it wants it; never more than `idle`."""
    queues: Mapping[str, QueueUse]


@dataclass(slots=True)
class Workers:
    """A job's workers now, and what its pods hold, in thousandths of the resource."""

    bound: int = 0
    running: int = 0
    held: int = 0
    master_bound: bool = False


@dataclass(frozen=True, slots=True)
class PodCount:
    """Counts of a snapshot's pods."""

    jobs: Mapping[str, Workers]
    nodes: Mapping[str, int]
    """By name, what pods hold there."""
    queues: Mapping[str, QueueUse]
    gangs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By key: its pods that wait, and what these ask for."""
    waiting: int = 0
    """Amount for pods that are no job's and no gang's, and found no node."""


def resource_of(nodes: Iterable[Node]) -> str:
    """Return GPUs, or CPUs on a cluster where no node has a GPU."""
    return GPU if any(node.allocatable.get(GPU) for node in nodes) else "cpu"


def count_pods(snapshot: Snapshot, resource: str) -> PodCount:
    """Return what the snapshot's pods hold; it takes a while where there are very many."""
    queue_of = {job.key: job.queue for job in snapshot.jobs}
    queue_of |= {gang.key: gang.queue for gang in snapshot.gangs}
    worker = elastic().name
    jobs: defaultdict[str, Workers] = defaultdict(Workers)
    nodes: defaultdict[str, int] = defaultdict(int)
    queues: defaultdict[str, QueueUse] = defaultdict(QueueUse)
    gangs: dict[str, tuple[int, int]] = {}
    waiting = 0
    for pod in snapshot.pods:
        amount = pod.requests.get(resource, 0)
        if pod.node is None:
            if pod.job is None and not pod.terminating:
                if pod.gang in queue_of:
                    pods, asked = gangs.get(str(pod.gang), (0, 0))
                    gangs[str(pod.gang)] = (pods + 1, asked + amount)
                elif pod.unschedulable_since is not None:
                    waiting += amount
            continue
        nodes[pod.node] += amount
        use = queues[_queue(pod, queue_of)]
        use.held += amount
        if pod.running and not pod.terminating:
            use.running += amount
        if pod.job is not None and not pod.terminating:
            mine = jobs[pod.job]
            mine.held += amount
            if pod.role == worker:
                mine.bound += 1
                mine.running += pod.running
            else:
                mine.master_bound = True
    return PodCount(dict(jobs), dict(nodes), dict(queues), gangs, waiting)


def _queue(pod: Pod, queue_of: Mapping[str, str]) -> str:
    for key in (pod.job, pod.gang):
        if key is not None and key in queue_of:
            return queue_of[key]
    return NO_QUEUE


def gpu_use(snapshot: Snapshot, plan: Plan, counts: PodCount, resource: str) -> GpuUse:
    """Return who holds and who wants GPUs.

    Args:
        counts: of this snapshot's pods, in the same resource.
    """
    queues = {name: QueueUse(use.held, use.running) for name, use in sorted(counts.queues.items())}
    for name in [queue.name for queue in snapshot.queues]:
        queues.setdefault(name, QueueUse())
    sizes = {decision.job: decision.new for decision in plan.decisions if not decision.dry_run}
    for job in snapshot.jobs:
        use = queues.setdefault(job.queue, QueueUse())
        use.wanted += _wanted(job, counts.jobs.get(job.key, _NO_WORKERS), plan, sizes, resource)
    for gang in snapshot.gangs:
        pods, asked = counts.gangs.get(gang.key, (0, 0))
        if not pods and gang.pod_requests is not None:
            asked = gang.pod_requests.get(resource, 0) * max(0, gang.min_member - gang.succeeded)
        queues.setdefault(gang.queue, QueueUse()).wanted += asked
    if counts.waiting:
        queues.setdefault(NO_QUEUE, QueueUse()).wanted += counts.waiting
    capacity = idle = kept_out = 0
    for node in snapshot.nodes:
        offered = node.allocatable.get(resource, 0)
        free = max(0, offered - counts.nodes.get(node.name, 0))
        capacity += offered
        if node.takes_pods:
            idle += free
        else:
            kept_out += free
    for name, use in queues.items():
        use.idle_wanted = min(use.wanted, _open_to(name, plan, resource, idle))
    wanted = sum(use.idle_wanted for use in queues.values())
    return GpuUse(resource, capacity, idle, kept_out, min(idle, wanted), queues)


_NO_WORKERS = Workers()


def _wanted(job: Job, workers: Workers, plan: Plan, sizes: Mapping[str, int], resource: str) -> int:
    size = target(job, plan, sizes)
    lacks = max(0, size - job.succeeded - workers.bound) * job.pod_requests.get(resource, 0)
    if job.master_requests is not None and not workers.master_bound:
        lacks += job.master_requests.get(resource, 0)
    return lacks


def target(job: Job, plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the size that the job would have if there were room for all.

    Args:
        sizes: what the plan decided, by job.
    """
    if job.key in plan.blocked:
        return max(job.min, job.desired)
    decided = sizes.get(job.key)
    if decided is not None:
        # Who grows would go on growing; who shrinks gives way.
        return job.max if decided > job.desired else max(job.min, decided)
    stay = plan.unchanged.get(job.key)
    if stay is None or stay.why_not_more in CONTENT:
        return max(job.min, job.desired)
    return max(job.max, job.desired)


def _open_to(queue: str, plan: Plan, resource: str, idle: int) -> int:
    """Return how much of what is idle the queue may take."""
    figures = plan.queues.get(queue)
    if figures is None or figures.resource != resource:
        return idle
    return min(idle, figures.free)
