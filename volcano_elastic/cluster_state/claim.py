"""Claims for room: of jobs and gangs whose minimum waits, and of single pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from volcano_elastic.cluster_state.fact import fact, value
from volcano_elastic.cluster_state.fit import Dimensions, Shape
from volcano_elastic.cluster_state.words import amount, plural
from volcano_elastic.snapshot.snapshot import Gang, Job, Pod

SCHEDULERS = frozenset({"volcano", "default-scheduler"})
"""Others may place their pods where we foresee nothing."""


class Group(NamedTuple):
    """Equal pods."""

    shape: Shape
    pods: int


class ClaimOrder(NamedTuple):
    """Volcano's order: first jobs that run without worker 0, then by priority, age and key."""

    leader_placed: bool
    priority: int
    """Negative."""
    created: float
    key: str


class Kind(NamedTuple):
    """All that whether a claim can be served depends on, besides whose turn it is."""

    queue: str
    groups: tuple[Group, ...]
    unmodelled: str
    priority: int | None
    runs: bool
    own: str | None


@value
class Claim:
    """Room that must be kept for a minimum, whose pods may not exist yet, or for a single pod."""

    key: str
    """Key of the job or gang, or `pod KEY`."""
    queue: str
    """Empty for a pod of no queue."""
    groups: tuple[Group, ...]
    """Largest first."""
    order: ClaimOrder
    job: Job | None = None
    workers: int = 0
    """How many of the pods are workers of `job`."""
    runs: bool = False
    """It has started, and lacks some of its minimum: it needs room to go on, not to start."""
    pod: Pod | None = None
    """The pod that asks, if it asks for itself alone."""
    asker: str = ""
    """Controller of pods that nobody has grouped, or `pod KEY` of one without."""

    @property
    def unmodelled(self) -> str:
        """Names the needs of its pods that can't be foreseen: nobody shrinks for those."""
        return "" if self.job is None else self.job.unmodelled

    @fact
    def kind(self) -> Kind:
        return Kind(self.queue, self.groups, self.unmodelled, self.priority, self.runs, self.own)

    @fact
    def line(self) -> tuple[Kind, str]:
        """All that whether it can be served depends on, a quota included."""
        return self.kind, self.key.rpartition("/")[0]

    @property
    def own(self) -> str | None:
        """Key of its job if that runs without worker 0: its own surplus is asked first."""
        return None if self.order.leader_placed else self.key

    @property
    def pods(self) -> int:
        """The pods that the claim asks room for."""
        return sum(group.pods for group in self.groups)

    @property
    def priority(self) -> int | None:
        """The priority of a pod that asks for itself, for which not all surplus leaves; None: a
        minimum asks."""
        return None if self.pod is None else self.pod.priority

    @fact
    def request(self) -> list[int]:
        """Amounts that all its pods ask for, by dimension."""
        vectors = ([amount * count for amount in shape.vector] for shape, count in self.groups)
        return [sum(column) for column in zip(*vectors, strict=True)]


def job_claim(
    job: Job, workers: Group, master: Shape | None, *, runs: bool, leader_placed: bool
) -> Claim | None:
    """The claim of a job for workers and, if it needs one, its Master; None for nobody."""
    groups = [workers] if workers.pods else []
    if master is not None:
        groups.append(Group(master, 1))
    if not groups:
        return None
    return Claim(
        key=job.key,
        queue=job.queue,
        groups=_largest_first(groups),
        order=ClaimOrder(leader_placed, -job.priority, job.created.timestamp(), job.key),
        job=job,
        workers=workers.pods,
        runs=runs,
    )


def gang_claim(gang: Gang, alive: Iterable[Pod], dimensions: Dimensions) -> Claim | None:
    """The claim of a gang with these pods; None if it has its minimum, or too few pods to start."""
    alive = list(alive)
    short = gang.min_member - gang.succeeded - sum(pod.node is not None for pod in alive)
    if short <= 0:
        return None
    waiting = in_order(alive)[:short]
    counts: dict[Shape, int] = {}
    for pod in waiting:
        shape = dimensions.shape_of(pod)
        counts[shape] = counts.get(shape, 0) + 1
    if len(waiting) < short:
        if gang.pod_requests is None:
            return None
        shape = dimensions.shape(gang.pod_requests, {}, ())
        counts[shape] = counts.get(shape, 0) + short - len(waiting)
    return Claim(
        key=gang.key,
        queue=gang.queue,
        groups=_largest_first([Group(shape, count) for shape, count in counts.items()]),
        order=ClaimOrder(True, -gang.priority, gang.created.timestamp(), gang.key),
        runs=len(waiting) < len(alive),
        asker=_asker(waiting[0]) if gang.loose and waiting else "",
    )


def in_order(alive: Iterable[Pod]) -> list[Pod]:
    """Those without a node, as they count towards a gang's minimum."""
    return sorted((p for p in alive if p.node is None), key=lambda p: (p.index, p.key))


def pod_claim(pod: Pod, queue: str, dimensions: Dimensions) -> Claim:
    """The claim of a pod for itself."""
    created = 0.0 if pod.created is None else pod.created.timestamp()
    return Claim(
        key=f"pod {pod.key}",
        queue=queue,
        groups=(Group(dimensions.shape_of(pod), 1),),
        order=ClaimOrder(True, -pod.priority, created, f"pod {pod.key}"),
        pod=pod,
        asker=_asker(pod),
    )


def asked(claims: Iterable[Claim], dimensions: Dimensions) -> str:
    """All that the claims need, e.g. `2 GPUs`."""
    groups = [group for claim in claims for group in claim.groups]
    return amount([(dict(zip(dimensions.names, s.vector, strict=True)), n) for s, n in groups])


def askers(claims: Iterable[Claim]) -> Iterator[str]:
    """Keys of the claims' jobs and gangs; pods of one controller are said together."""
    pods: Counter[str] = Counter()
    for claim in claims:
        if claim.asker:
            pods[claim.asker] += claim.pods
        else:
            yield claim.key
    for asker, count in pods.items():
        yield asker if asker.startswith("pod ") else f"{plural(count, 'pod')} of {asker}"


def _asker(pod: Pod) -> str:
    return pod.owner or f"pod {pod.key}"


def _largest_first(groups: list[Group]) -> tuple[Group, ...]:
    if len(groups) == 1:
        return tuple(groups)
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                group.shape.vector,
                sorted(group.shape.selector),
                sorted(group.shape.tolerations),
                group.shape.affinity,
            ),
            reverse=True,
        )
    )
