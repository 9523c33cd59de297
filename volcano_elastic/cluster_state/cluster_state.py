"""The cluster for planning: jobs and nodes with their pods, jobs of each queue, gangs of others.

Frozen values: `grouping` uses them again from one snapshot to the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import add

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.cluster_state.claim import (
    SCHEDULERS,
    Claim,
    Kind,
    gang_claim,
    in_order,
    pod_claim,
)
from volcano_elastic.cluster_state.fact import fact, value
from volcano_elastic.cluster_state.fit import Dimensions, Shape, Vector
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.cluster_state.node_state import NodeState
from volcano_elastic.cluster_state.queue_state import LeastSurplus, QueueState
from volcano_elastic.cluster_state.queue_tree import QueueBounds, QueueTree, bounds_by_weight
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.cluster_state.speed import Curve, SizeSteps
from volcano_elastic.snapshot.snapshot import Gang, Job, Pod, Snapshot, Unplaced

FEW_SHAPES = 8
"""Shapes whose free room is counted on; of more, most may not be asked for again."""


@value
class GangState:
    """A gang of others and its pods; those of no gang that we know are together, without one."""

    gang: Gang | None
    pods: tuple[Pod, ...]
    dimensions: Dimensions

    @fact
    def alive(self) -> tuple[Pod, ...]:
        return tuple([pod for pod in self.pods if not pod.terminating])

    @fact
    def held(self) -> Mapping[Vector, int]:
        """The pods that hold room in the gang's queue, counted by shape."""
        if self.gang is None:
            return {}
        bound = (pod for pod in self.alive if pod.node is not None)
        return Counter(self.dimensions.request(pod.requests) for pod in bound)

    @fact
    def surplus(self) -> Mapping[Vector, int]:
        """The pods that run beyond the gang's minimum, counted by shape, as an elastic vcjob's do.
        Volcano alone may evict them."""
        if self.gang is None or self.gang.loose:
            return {}
        bound = sorted((p for p in self.alive if p.node), key=lambda p: (p.index, p.key))
        beyond = bound[max(0, self.gang.min_member - self.gang.succeeded) :]
        return Counter(self.dimensions.request(p.requests) for p in beyond if not p.protected)

    def gives(self, dimensions: Iterable[int]) -> bool:
        """Return whether its surplus holds anything in these."""
        return any(vector[i] > 0 for vector in self.surplus for i in dimensions)

    @fact
    def claim(self) -> Claim | None:
        return None if self.gang is None else gang_claim(self.gang, self.alive, self.dimensions)

    @fact
    def unclaimed(self) -> Sequence[Pod]:
        """Pods that wait and that the gang's own claim is not for."""
        waiting = in_order(self.alive)
        if self.claim is None or self.gang is None:
            return waiting
        return waiting[self.claim.pods :] if self.gang.loose else ()

    @fact
    def pod_claims(self) -> Mapping[str, Claim]:
        """Claims of pods for themselves, by the pod's key."""
        gang, queue = self.gang, "" if self.gang is None else self.gang.queue
        if gang is not None and not gang.loose:
            return {}
        return {
            pod.key: pod_claim(pod, queue, self.dimensions)
            for pod in self.unclaimed
            # Volcano marks no pod of a PodGroup that it has not let in.
            if pod.scheduler in SCHEDULERS and (gang or pod.unschedulable_since)
        }

    @fact
    def pending(self) -> Sequence[Pod]:
        """Pods that wait and are nobody's claim."""
        return [pod for pod in self.unclaimed if pod.key not in self.pod_claims]


@value
class ClusterState:
    snapshot: Snapshot
    dimensions: Dimensions
    policies: dict[str, QueuePolicy]
    """By queue, with the defaults of those that have none."""
    tree: QueueTree
    pods_on: Mapping[str, tuple[Pod, ...]]
    """By node."""
    pods_of: Mapping[str | None, tuple[Pod, ...]]
    """By job; under None those of others."""
    nodes: Mapping[str, NodeState]
    """By name, in order."""
    numbers: Mapping[str, int]
    """Places of the nodes in this order, by name."""
    open_nodes: tuple[str, ...]
    """Names of the nodes that take pods."""
    jobs: Mapping[str, JobState]
    unsettled: Sequence[str]
    """Keys of jobs of which something may have to be corrected, or that ask for part of a minimum;
    in order."""
    lines: Mapping[tuple[Kind, str], tuple[Claim, ...]]
    """Claims of jobs that have not started, each line in order."""
    queues: Mapping[str, QueueState]
    gangs: Mapping[str, GangState]
    per_node: dict[Shape, int]
    """How many pods of a shape the largest node takes when it is empty; at least 1."""
    speeds: dict[tuple[object, ...], tuple[Curve, SizeSteps]]
    """Shared by all jobs for which they would be the same."""

    @property
    def gang_claims(self) -> Sequence[Claim]:
        """Claims of others' gangs."""
        return [gang.claim for gang in self.gangs.values() if gang.claim is not None]

    @fact
    def others(self) -> Sequence[Claim]:
        """Claims of gangs and pods that have not started."""
        pods = chain.from_iterable([gang.pod_claims.values() for gang in self.gangs.values()])
        return [*(claim for claim in self.gang_claims if not claim.runs), *pods]

    @fact
    def waiting(self) -> Sequence[Sequence[Claim]]:
        """Claims of jobs, gangs and pods that have not started. Of a line, which is in order, none
        can be served in a plan in which the one before can't."""
        return [*self.lines.values(), *([claim] for claim in self.others)]

    @fact
    def gives(self) -> bool:
        """True if surplus of some job might leave for a claim."""
        return any(queue.givers for queue in self.queues.values())

    @fact
    def least_surplus(self) -> Mapping[LeastSurplus, Sequence[str]]:
        """Names of the queues by bounds of their surplus: mostly those are the same."""
        found: defaultdict[LeastSurplus, list[str]] = defaultdict(list)
        for name, queue in self.queues.items():
            found[queue.least_surplus].append(name)
        return found

    def jobs_within(self, queue: str) -> Iterable[JobState]:
        """Jobs of a queue and its children."""
        inside = [states for name, states in self.queues.items() if self.tree.within(name, queue)]
        return chain.from_iterable([states.jobs for states in inside])

    @fact
    def idle(self) -> Sequence[int]:
        """Amounts free on all nodes that take pods."""
        return [
            sum(column) for column in zip(*[n.usable for n in self.nodes.values()], strict=True)
        ]

    @fact
    def idle_rows(self) -> Sequence[Vector]:
        """Idle room by node, in order."""
        return [state.idle for state in self.nodes.values()]

    @fact
    def terminating(self) -> Sequence[int]:
        """Numbers of the nodes with pods that are terminating."""
        return [n for n, state in enumerate(self.nodes.values()) if state.terminating]

    @fact
    def _idle_slots(self) -> dict[Shape, Sequence[int]]:
        return {}

    def idle_slots(self, shape: Shape) -> Sequence[int]:
        """By node, how many more pods fit into idle room; negative where such pods can't go."""
        found = self._idle_slots.get(shape)
        if found is None:
            found = [state.idle_slots(shape) for state in self.nodes.values()]
            self._idle_slots[shape] = found
        return found

    def learn(self, before: ClusterState, changed: Iterable[str]) -> None:
        """Take over idle room of the nodes, which are the same by name, but for those changed."""
        names = [name for name in changed if name in self.nodes]
        at = [(self.numbers[name], self.nodes[name]) for name in names]
        if "idle_rows" in before.__dict__:
            rows = list(before.idle_rows)
            for n, node in at:
                rows[n] = node.idle
            self.__dict__["idle_rows"] = rows
        if len(before._idle_slots) <= FEW_SHAPES:
            for shape, slots in before._idle_slots.items():
                counts = list(slots)
                for n, node in at:
                    counts[n] = node.idle_slots(shape)
                self._idle_slots[shape] = counts

    @fact
    def _eligible(self) -> dict[tuple[object, ...], Sequence[int]]:
        return {}

    def eligible(self, shape: Shape) -> Sequence[int]:
        """Numbers of the nodes that take such pods at all."""
        key = (shape.selector, shape.tolerations, shape.affinity)
        found = self._eligible.get(key)
        if found is None:
            found = [n for n, slots in enumerate(self.idle_slots(shape)) if slots >= 0]
            self._eligible[key] = found
        return found

    @fact
    def _giver_nodes(self) -> dict[str, frozenset[int]]:
        return {}

    def giver_nodes(self, queue: str) -> frozenset[int]:
        """Numbers of the nodes with surplus of the queue itself."""
        found = self._giver_nodes.get(queue)
        if found is None:
            names = self.queues[queue].giver_nodes if queue in self.queues else ()
            numbers = [self.numbers.get(name) for name in names]
            found = self._giver_nodes[queue] = frozenset([n for n in numbers if n is not None])
        return found

    @fact
    def to_leave(self) -> Mapping[str, Mapping[str, Pod]]:
        """Live pods of jobs on nodes that those had better leave, by job and pod."""
        found: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        for node in self.nodes.values() if len(self.open_nodes) < len(self.nodes) else ():
            if node.node.leave:
                for pod in node.pods:
                    if pod.job is not None and pod.job in self.jobs and not pod.terminating:
                        found[pod.job][pod.key] = pod
        for queue in self.queues.values():
            for state in queue.excluding:
                for pod in state.pods:
                    if pod.node in state.job.excluded and not pod.terminating:
                        found[state.job.key][pod.key] = pod
        return found

    @fact
    def keys(self) -> frozenset[str]:
        """Keys of all jobs."""
        return frozenset(self.jobs)

    @fact
    def _scaled(self) -> Sequence[Job]:
        """Jobs that have been resized."""
        return [job for job in self.snapshot.jobs if job.last_reason]

    @fact
    def told_unplaced(self) -> Mapping[str, Unplaced]:
        """Jobs' own records of surplus that found no place, by key."""
        return {
            job.key: Unplaced(job.last_scale, 1)
            for job in self._scaled
            if job.last_reason == Reason.SURPLUS_UNPLACED and job.last_scale is not None
        }

    @fact
    def told_rebalanced(self) -> Mapping[str, datetime]:
        """Jobs' own records of rebalancing, by queue: when it last took workers from one."""
        jobs = [job for job in self._scaled if job.last_reason == Reason.REBALANCED]
        times = [(job.last_scale, job.queue) for job in jobs]
        return {queue: at for at, queue in sorted((at, q) for at, q in times if at is not None)}

    @fact
    def held(self) -> Mapping[str, Sequence[int]]:
        """Amounts that each queue holds, its children's included."""
        found = {name: list(self.tree.zero) for name in self.tree.queues}

        def hold(name: str, vector: Vector, times: int) -> None:
            for queue in self.tree.chains.get(name, ()):
                held = found[queue]
                for i, amount in enumerate(vector):
                    held[i] += amount * times

        for name, queue in self.queues.items():
            hold(name, queue.held, 1)
        for gang in self.gangs.values():
            for vector, times in gang.held.items():
                hold(gang.gang.queue if gang.gang else "", vector, times)
        return found

    @fact
    def surplus(self) -> Mapping[str, Sequence[int]]:
        """Amounts that may leave each queue for claims at most, its children's included."""
        found = {name: list(self.tree.zero) for name in self.tree.queues}
        for name, queue in self.queues.items():
            for vector in queue.surplus_vectors:
                for one in self.tree.chains.get(name, ()):
                    found[one] = list(map(add, found[one], vector))
        return found

    @fact
    def bounds(self) -> QueueBounds:
        """Return what each queue may hold, and what it has a right to."""
        if self.snapshot.proportion:
            return bounds_by_weight(self.tree, self._demands())
        return QueueBounds(self.tree.caps, self.tree.deserved)

    def _demands(self) -> Mapping[str, list[int]]:
        """Amounts that every queue holds and would take, were there room."""
        demands = {name: list(held) for name, held in self.held.items()}

        def add(queue: str, vector: Vector, times: int) -> None:
            demand = demands.get(queue)
            if demand is not None and times > 0:
                for i, amount in enumerate(vector):
                    demand[i] += amount * times

        for state in self.jobs.values():
            job, mine = state.job, state.by_role
            add(job.queue, state.shape.vector, state.cap - job.succeeded - len(mine.bound))
            if state.master_shape is not None and not mine.master_bound:
                add(job.queue, state.master_shape.vector, 1)
        for one in self.gangs.values():
            if one.gang is None:
                continue
            queue, pods = one.gang.queue, one.pods
            for pod in one.alive:
                if pod.node is None:
                    add(queue, self.dimensions.request(pod.requests), 1)
            if one.gang.pod_requests is not None:
                vector = self.dimensions.request(one.gang.pod_requests)
                add(queue, vector, one.gang.min_member - one.gang.succeeded - len(pods))
        return demands
