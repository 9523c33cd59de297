"""The snapshot grouped for planning: jobs and nodes with their pods, and the jobs of each queue.

Frozen values again: from one snapshot to the next, every job, node and queue that is the same is
the same value and keeps the facts that follow from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain

from volcano_elastic.api.queue_policy import Order, QueuePolicy, Step, effective
from volcano_elastic.queue_policy.claims import Claim, claim_of, gang_claim
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Dimensions, Shape, Vector
from volcano_elastic.queue_policy.queues import QueueTree
from volcano_elastic.queue_policy.snapshot import Gang, Job, Pod, Resources, Snapshot
from volcano_elastic.queue_policy.speed import Curve, SizeSteps
from volcano_elastic.queue_policy.state import (
    GrowthKey,
    JobState,
    LossKey,
    NodeState,
    gpu_equivalents,
)


@dataclass(frozen=True, eq=False)
class QueueState:
    """The jobs of one queue."""

    name: str
    jobs: tuple[JobState, ...]

    @cached_property
    def held(self) -> Vector:
        """Amounts that the pods of the jobs hold."""
        return tuple(map(sum, zip(*[state.held for state in self.jobs], strict=True)))

    @cached_property
    def surplus(self) -> int:
        """Amount of the policy's resource that pods beyond minimums hold."""
        return sum([state.surplus_amount for state in self.jobs])

    @cached_property
    def unsettled(self) -> tuple[JobState, ...]:
        """Jobs of which something may have to be corrected, or that ask for part of a minimum."""
        return tuple([s for s in self.jobs if not s.settled and not s.unstarted])

    @cached_property
    def growth(self) -> Mapping[Shape, Sequence[GrowthKey]]:
        """Settled jobs that may grow, by shape, in order."""
        found: defaultdict[Shape, list[GrowthKey]] = defaultdict(list)
        for state in self.jobs:
            if state.growth_key is not None:
                found[state.shape].append(state.growth_key)
        for keys in found.values():
            keys.sort()
        return found

    @cached_property
    def losses(self) -> Sequence[LossKey]:
        """Settled jobs that may give for others' growth, in order."""
        return sorted([key for s in self.jobs if (key := s.loss_key) is not None])

    @cached_property
    def surplus_vectors(self) -> tuple[Vector, ...]:
        """Amounts of settled jobs that may leave for claims, by shape."""
        found: Counter[Vector] = Counter()
        for state in self.jobs:
            if state.settled and state.surplus:
                found[state.shape.vector] += state.surplus
        return tuple([tuple([a * pods for a in vector]) for vector, pods in found.items()])

    @cached_property
    def giver_nodes(self) -> frozenset[str]:
        """Names of the nodes with pods of jobs that might give some."""
        pods = (pod for s in self.jobs if s.may_give for pod in s.by_role.bound.values())
        return frozenset(pod.node for pod in pods if pod.node is not None)

    @cached_property
    def waiting(self) -> Sequence[Claim]:
        """Claims of jobs that have not started, in order."""
        found = [_waiting_claim(state) for state in self.jobs if state.unstarted]
        return sorted(found, key=lambda claim: claim.order)

    @cached_property
    def requested(self) -> Sequence[int]:
        """Amounts that they ask for together."""
        return [sum(column) for column in zip(*[c.request for c in self.waiting], strict=True)]

    @cached_property
    def rebalanced(self) -> datetime | None:
        """When rebalancing last changed a job."""
        times = (s.job.last_scale for s in self.jobs if s.job.last_reason == Reason.REBALANCED)
        return max((time for time in times if time is not None), default=None)


def _waiting_claim(state: JobState) -> Claim:
    """The claim of a job that has not started."""
    found = claim_of(
        state,
        workers=state.job.min,
        master=not state.by_role.master_bound,
        runs=False,
        leader_placed=True,
    )
    assert found is not None, "a job that has not started has a minimum"
    return found


@dataclass(frozen=True, eq=False)
class GangState:
    """A gang of others and its pods; those of no gang that we know are together, without one."""

    gang: Gang | None
    pods: tuple[Pod, ...]
    dimensions: Dimensions

    @cached_property
    def alive(self) -> tuple[Pod, ...]:
        return tuple([pod for pod in self.pods if not pod.terminating])

    @cached_property
    def held(self) -> Mapping[Vector, int]:
        """How many pods of which size hold room in the gang's queue."""
        if self.gang is None:
            return {}
        bound = (pod for pod in self.alive if pod.node is not None)
        return Counter(self.dimensions.request(pod.requests) for pod in bound)

    @cached_property
    def claim(self) -> Claim | None:
        return None if self.gang is None else gang_claim(self.gang, self.alive, self.dimensions)

    @cached_property
    def pending(self) -> tuple[Pod, ...]:
        """Pods that wait and are nobody's claim."""
        return () if self.claim else tuple([pod for pod in self.alive if pod.node is None])


@dataclass(frozen=True, eq=False)
class ClusterState:
    snapshot: Snapshot
    dimensions: Dimensions
    policies: dict[str, QueuePolicy]
    """By queue, with the defaults of those that have none."""
    tree: QueueTree
    nodes: tuple[NodeState, ...]
    """By name."""
    jobs: Mapping[str, JobState]
    queues: Mapping[str, QueueState]
    gangs: Mapping[str, GangState]
    per_node: dict[Shape, int]
    """How many pods of a shape the largest node takes when it is empty; at least 1."""
    speeds: dict[tuple[object, ...], tuple[Curve, SizeSteps]]
    """Shared by all jobs for which they would be the same."""

    def policy(self, queue: str) -> QueuePolicy:
        found = self.policies.get(queue)
        if found is None:
            found = self.policies[queue] = QueuePolicy(queue=queue)
        return found

    @property
    def gang_claims(self) -> Sequence[Claim]:
        """Claims of others' gangs."""
        return [gang.claim for gang in self.gangs.values() if gang.claim is not None]

    @property
    def waiting(self) -> Sequence[Claim]:
        """Claims of jobs and gangs that have not started."""
        jobs = chain.from_iterable(queue.waiting for queue in self.queues.values())
        return [*jobs, *(claim for claim in self.gang_claims if not claim.runs)]

    @cached_property
    def idle(self) -> Sequence[int]:
        """Amounts free on all nodes that take pods."""
        return [sum(column) for column in zip(*[n.usable for n in self.nodes], strict=True)]

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of all jobs."""
        return frozenset(self.jobs)

    def wishes(self, held: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Amounts that every queue holds and would take, were there room."""
        wishes = {name: list(used) for name, used in held.items()}

        def add(queue: str, vector: Vector, times: int) -> None:
            wish = wishes.get(queue)
            if wish is not None and times > 0:
                for i, amount in enumerate(vector):
                    wish[i] += amount * times

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
        return wishes


def cluster_state(snapshot: Snapshot, before: ClusterState | None = None) -> ClusterState:
    """Group a snapshot, with the values of `before` for whatever is the same there."""
    if before is not None:
        old = before.snapshot
        if (
            snapshot.queues != old.queues
            or snapshot.policies != old.policies
            or snapshot.proportion != old.proportion
        ):
            before = None
    return _Grouping(snapshot, before).state()


class _Grouping:
    def __init__(self, snapshot: Snapshot, before: ClusterState | None) -> None:
        self._snapshot, self._before = snapshot, before
        self._all_known = True
        """Every resource named has its dimension."""
        if before is None:
            self._dimensions = Dimensions(_named(snapshot))
            self._policies = effective(snapshot.policies)
        else:
            self._dimensions, self._policies = before.dimensions, before.policies

    def state(self) -> ClusterState:
        snapshot, before = self._snapshot, self._before
        on_node: defaultdict[str | None, list[Pod]] = defaultdict(list)
        of_job: defaultdict[str | None, list[Pod]] = defaultdict(list)
        for pod in snapshot.pods:
            on_node[pod.node].append(pod)
            of_job[pod.job].append(pod)
        nodes = self._nodes(on_node)
        self._tree = self._queue_tree(nodes)
        self._per_node: dict[Shape, int] = {}
        self._speeds = {} if before is None else before.speeds
        reshaped: set[Shape] = set()
        self._node_states = nodes
        if before is not None:
            if snapshot.nodes is before.snapshot.nodes:
                self._per_node = before.per_node
            else:
                # Steps of jobs are aligned to the largest node.
                was = before.per_node
                reshaped = {shape for shape, most in was.items() if self._largest(shape) != most}
        jobs = self._jobs(of_job, reshaped)
        gangs = self._gangs(of_job.get(None, ()), jobs)
        if not self._all_known:
            return _Grouping(snapshot, None).state()
        if len(self._speeds) > 4 * len(jobs) + 64:
            # Most are of curves that have been measured anew since.
            self._speeds = {}
        return ClusterState(
            snapshot=snapshot,
            dimensions=self._dimensions,
            policies=self._policies,
            tree=self._tree,
            nodes=nodes,
            jobs=jobs,
            queues=self._queues(jobs),
            gangs=gangs,
            per_node=self._per_node,
            speeds=self._speeds,
        )

    def _nodes(self, on_node: Mapping[str | None, list[Pod]]) -> tuple[NodeState, ...]:
        before, dimensions = self._before, self._dimensions
        known = {} if before is None else {state.node.name: state for state in before.nodes}
        found: list[NodeState] = []
        for node in sorted(self._snapshot.nodes, key=lambda node: node.name):
            pods = tuple(on_node.get(node.name, ()))
            old = known.get(node.name)
            if old is None or old.node is not node or old.pods != pods:
                old = NodeState(node, pods, dimensions)
                self._learn(node.allocatable)
            found.append(old)
        return tuple(found)

    def _queue_tree(self, nodes: tuple[NodeState, ...]) -> QueueTree:
        before, snapshot = self._before, self._snapshot
        if before is not None and snapshot.nodes is before.snapshot.nodes:
            return before.tree
        # Volcano counts nodes that are not ready too.
        zero = [0] * len(self._dimensions.names)
        everything = [
            sum(column) for column in zip(*[n.allocatable for n in nodes], strict=True)
        ] or zero
        if before is not None and before.tree.everything == everything:
            return before.tree
        names = self._dimensions.names
        return QueueTree(snapshot.queues, names, everything, self._policies)

    def _jobs(
        self, of_job: Mapping[str | None, list[Pod]], reshaped: set[Shape]
    ) -> dict[str, JobState]:
        known = {} if self._before is None else self._before.jobs
        found: dict[str, JobState] = {}
        for job in self._snapshot.jobs:
            key = job.key
            pods = tuple(of_job.get(key, ()))
            old = known.get(key)
            if (
                old is None
                or old.job is not job
                or old.pods != pods
                or (reshaped and old.shape in reshaped)
            ):
                old = self._job_state(job, pods)
            found[key] = old
        return found

    def _job_state(self, job: Job, pods: tuple[Pod, ...]) -> JobState:
        policy = self._policies.get(job.queue)
        if policy is None:
            policy = self._policies[job.queue] = QueuePolicy(queue=job.queue)
        where = (job.node_selector, job.tolerations, job.node_affinity)
        shape, master = self._dimensions.shape(job.pod_requests, *where), None
        self._learn(job.pod_requests)
        if job.master_requests is not None:
            self._learn(job.master_requests)
            master = self._dimensions.shape(job.master_requests, *where)
        curve, steps = self._speed(job, policy, shape)
        is_open = self._tree.closed(job.queue) is None
        return JobState(job, pods, policy, is_open, shape, master, curve, steps, self._dimensions)

    def _speed(self, job: Job, policy: QueuePolicy, shape: Shape) -> tuple[Curve, SizeSteps]:
        surplus, plain, unit = policy.surplus, job.scaler == "none", max(1, job.node_unit)
        speeds = {} if plain else job.speeds
        unit_gpus = gpu_equivalents(job.pod_requests, policy.resource)
        aligned = surplus.step is Step.NODE_ALIGNED and not plain
        per_node = self._largest(shape) if aligned else unit
        equal = plain or surplus.order is Order.EQUAL
        counts = job.scaler == "volcano"
        asks = (*speeds.items(), unit_gpus, unit, per_node, surplus.min_efficiency, equal, counts)
        found = self._speeds.get(asks)
        if found is None:
            curve = Curve(speeds, unit_gpus)
            steps = SizeSteps(
                curve,
                unit_gpus=unit_gpus,
                node_unit=unit,
                per_node=per_node,
                min_efficiency=surplus.min_efficiency,
                equal=equal,
                curves_count=counts,
            )
            found = self._speeds[asks] = (curve, steps)
        return found

    def _largest(self, shape: Shape) -> int:
        found = self._per_node.get(shape)
        if found is None:
            most = max((node.capacity(shape) for node in self._node_states), default=1)
            found = self._per_node[shape] = max(1, most)
        return found

    def _queues(self, jobs: Mapping[str, JobState]) -> dict[str, QueueState]:
        known = {} if self._before is None else self._before.queues
        members: defaultdict[str, list[JobState]] = defaultdict(list)
        for state in jobs.values():
            members[state.job.queue].append(state)
        found: dict[str, QueueState] = {}
        for name, states in members.items():
            mine, old = tuple(states), known.get(name)
            found[name] = old if old and old.jobs == mine else QueueState(name, mine)
        return found

    def _gangs(self, pods: Iterable[Pod], jobs: Mapping[str, JobState]) -> dict[str, GangState]:
        known = {} if self._before is None else self._before.gangs
        gangs = {gang.key: gang for gang in self._snapshot.gangs if gang.key not in jobs}
        members: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            members[pod.gang or ""].append(pod)
        found: dict[str, GangState] = {}
        for key in dict.fromkeys(chain(gangs, members)):
            gang, mine, old = gangs.get(key), tuple(members.get(key, ())), known.get(key)
            if old is None or old.gang is not gang or old.pods != mine:
                old = GangState(gang, mine, self._dimensions)
                for pod in mine:
                    self._learn(pod.requests)
                if gang is not None and gang.pod_requests is not None:
                    self._learn(gang.pod_requests)
            found[key] = old
        return found

    def _learn(self, named: Resources) -> None:
        self._all_known = self._all_known and self._dimensions.know(named)


def _named(snapshot: Snapshot) -> Iterator[Resources]:
    """What names resources: a resource that only pods name fits nowhere, and must still be seen to
    fit nowhere."""
    yield from (gang.pod_requests for gang in snapshot.gangs if gang.pod_requests is not None)
    yield from (pod.requests for pod in snapshot.pods if pod.job is None)
    yield from (node.allocatable for node in snapshot.nodes)
    for job in snapshot.jobs:
        yield job.pod_requests
        if job.master_requests is not None:
            yield job.master_requests
