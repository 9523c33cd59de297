"""From one snapshot to the next: the cluster's state, made anew only where something changed.

Pods, jobs and nodes are told by identity. Groups that none joined or left, and whose parts are the
same, stay the same values and keep the facts that follow from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, count, filterfalse, groupby, islice, repeat
from operator import attrgetter, is_, is_not, itemgetter
from typing import TypeVar

from volcano_elastic.api.queue_policy import Order, QueuePolicy, Step, effective
from volcano_elastic.cluster_state.claim import Claim, Kind
from volcano_elastic.cluster_state.cluster_state import ClusterState, GangState
from volcano_elastic.cluster_state.fact import keep_facts
from volcano_elastic.cluster_state.fit import Dimensions, Shape, admits
from volcano_elastic.cluster_state.job_state import JobState, gpu_equivalents
from volcano_elastic.cluster_state.node_state import NodeState
from volcano_elastic.cluster_state.queue_state import QueueState
from volcano_elastic.cluster_state.queue_tree import QueueTree
from volcano_elastic.cluster_state.speed import Curve, SizeSteps
from volcano_elastic.snapshot.snapshot import Job, Node, Pod, Resources, Snapshot

PLACES = 32
"""Places where snapshots are compared that differ, before what is left is compared as a whole."""
NEAR = 64
"""How many that are next to each other may have come or gone to be seen at once."""
K = TypeVar("K")
T = TypeVar("T")


def cluster_state(snapshot: Snapshot, before: ClusterState | None = None) -> ClusterState:
    """Group a snapshot, with the values of `before` for whatever is the same there."""
    if before is not None:
        old = before.snapshot
        if (
            snapshot.queues == old.queues
            and snapshot.policies == old.policies
            and snapshot.proportion == old.proportion
        ):
            grouping = _Grouping(snapshot, before)
            state = grouping.state()
            # A resource that nobody named before needs a dimension of its own.
            if grouping.all_known:
                return state
    return _Grouping(snapshot, _nothing(snapshot)).state()


def _nothing(snapshot: Snapshot) -> ClusterState:
    """An empty cluster with the snapshot's queues, policies and resources."""
    dimensions, policies = Dimensions(_named(snapshot)), effective(snapshot.policies)
    return ClusterState(
        snapshot=Snapshot(),
        dimensions=dimensions,
        policies=policies,
        tree=QueueTree(snapshot.queues, dimensions.names, [0] * len(dimensions.names), policies),
        pods_on={},
        pods_of={},
        nodes={},
        numbers={},
        open_nodes=(),
        jobs={},
        unsettled=(),
        lines={},
        queues={},
        gangs={},
        per_node={},
        speeds={},
    )


def changes(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return what only `old` holds, and what only `new` does; told by identity."""
    if old is new or not old:
        return [], [] if old is new else list(new)
    old, new = _differing(old, new)
    was, now = dict(zip(map(id, old), old, strict=True)), dict(zip(map(id, new), new, strict=True))
    return (
        [was[key] for key in filterfalse(now.__contains__, was)],
        [now[key] for key in filterfalse(was.__contains__, now)],
    )


def _differing(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return pieces of both that hold all that only one of them does. Mostly some have been put in,
    taken out or replaced in a few places."""
    if len(old) == len(new):
        differ = [*islice(compress(count(), map(is_not, old, new)), PLACES + 1)]
        if len(differ) <= PLACES:
            return [old[i] for i in differ], [new[i] for i in differ]
    gone: list[T] = []
    come: list[T] = []
    for _ in range(PLACES):
        same = _same(old, new)
        old, new = old[same:], new[same:]
        if not old or not new:
            break
        out, put = _index(old, new[0]), _index(new, old[0])
        if out is None and put is None:
            out = put = 1
        gone += old[: out or 0]
        come += new[: put or 0]
        old, new = old[out or 0 :], new[put or 0 :]
    return [*gone, *old], [*come, *new]


def _same(old: Iterable[object], new: Iterable[object]) -> int:
    """Return how many are the same in both before the first difference, or the end of one."""
    differ = chain(map(is_not, old, new), (True,))
    return next(compress(count(), differ))


def _index(among: Sequence[object], wanted: object) -> int | None:
    """Return where among the first ones this one is."""
    return next(compress(count(), map(is_, among[:NEAR], repeat(wanted))), None)


def regrouped(
    groups: Mapping[K, tuple[T, ...]],
    gone: Collection[T],
    come: Collection[T],
    key: Callable[[T], K],
) -> tuple[Mapping[K, tuple[T, ...]], set[K]]:
    """Return the groups without those gone and with those that came, and which ones changed."""
    if not gone and not come:
        return groups, set()
    left = {id(value): key(value) for value in gone}
    changed = {
        at: [v for v in groups[at] if id(v) not in left] for at in dict.fromkeys(left.values())
    }
    joined: defaultdict[K, list[T]] = defaultdict(list)
    for at, some in groupby(come, key):
        joined[at] += some
    for at, members in joined.items():
        changed[at] = [*(changed[at] if at in changed else groups.get(at, ())), *members]
    found = {**groups, **{at: tuple(members) for at, members in changed.items()}}
    for at, members in changed.items():
        if not members:
            del found[at]
    return found, set(changed)


class _Grouping:
    """A snapshot beside the one before: what is new, and whatever follows from that."""

    def __init__(self, snapshot: Snapshot, before: ClusterState) -> None:
        self._snapshot, self._before = snapshot, before
        self._dimensions, self._policies = before.dimensions, before.policies
        self._tree, self._speeds, self._per_node = before.tree, before.speeds, before.per_node
        self._nodes_before = before.nodes
        """With the nodes that are new, and without those that are gone; in order."""
        self._numbers, self._open_nodes = before.numbers, before.open_nodes
        self.all_known = True
        """Every resource named has its dimension."""

    def state(self) -> ClusterState:
        snapshot, before = self._snapshot, self._before
        gone_pods, come_pods = changes(before.snapshot.pods, snapshot.pods)
        left, bound = ([p for p in pods if p.node is not None] for pods in (gone_pods, come_pods))
        pods_on, on = regrouped(before.pods_on, left, bound, attrgetter("node"))
        pods_of, of = regrouped(before.pods_of, gone_pods, come_pods, attrgetter("job"))
        gone_nodes, come_nodes = changes(before.snapshot.nodes, snapshot.nodes)
        gone_jobs, come_jobs = changes(before.snapshot.jobs, snapshot.jobs)
        same_gangs = snapshot.gangs is before.snapshot.gangs
        if same_gangs and not (on or of or gone_nodes or come_nodes or gone_jobs or come_jobs):
            state = replace(before, snapshot=snapshot)
            keep_facts(before, state)
            return state
        if gone_nodes or come_nodes:
            self._change_nodes(gone_nodes, come_nodes)
        jobs, gone, come = self._jobs(gone_jobs, come_jobs, pods_of, of)
        on |= {node.name for node in come_nodes}
        # Where pods have come, `on` says so already.
        keys = {state.job.key for state in (*gone, *come)}
        around = {p.node for key in keys for p in before.pods_of.get(key, ()) if p.node} - on
        members, joined = regrouped(
            {name: queue.jobs for name, queue in before.queues.items()},
            gone,
            come,
            attrgetter("job.queue"),
        )
        queues = {
            name: QueueState(name, states) if name in joined else before.queues[name]
            for name, states in members.items()
        }
        for name in joined & queues.keys() & before.queues.keys():
            went, joins = ([s for s in each if s.job.queue == name] for each in (gone, come))
            queues[name].learn(before.queues[name], went, joins)
        gangs = before.gangs
        if None in of or not same_gangs or jobs.keys() != before.jobs.keys():
            gangs = self._gangs(pods_of.get(None, ()), jobs)
        nodes = self._nodes(pods_on, on, around, jobs)
        if len(self._speeds) > 4 * len(jobs) + 64:
            # Most are of curves that have been measured anew since.
            self._speeds = {}
        state = ClusterState(
            snapshot=snapshot,
            dimensions=self._dimensions,
            policies=self._policies,
            tree=self._tree,
            pods_on=pods_on,
            pods_of=pods_of,
            nodes=nodes,
            numbers=self._numbers,
            open_nodes=self._open_nodes,
            jobs=jobs,
            unsettled=sorted({*before.unsettled} - keys | {s.job.key for s in come if s.unsettled}),
            lines=self._lines(gone, come),
            queues=queues,
            gangs=gangs,
            per_node=self._per_node,
            speeds=self._speeds,
        )
        if self._numbers is before.numbers:
            state.learn(before, on)
        return state

    def _lines(
        self, gone: Iterable[JobState], come: Iterable[JobState]
    ) -> Mapping[tuple[Kind, str], tuple[Claim, ...]]:
        """Claims that wait, in lines; those that nobody joined or left are the same."""
        went, joins = (
            # Settled jobs, which are most, need not be asked.
            [claim for s in each if not s.settled and (claim := s.waiting_claim)]
            for each in (gone, come)
        )
        lines, _ = regrouped(self._before.lines, went, joins, attrgetter("line"))
        order, joined_at = attrgetter("order"), {claim.line for claim in joins}
        joined = {at: tuple(sorted(lines[at], key=order)) for at in joined_at}
        return {**lines, **joined} if joined else lines

    def _change_nodes(self, gone: Iterable[Node], come: Iterable[Node]) -> None:
        nodes = dict(self._nodes_before)
        for node in gone:
            del nodes[node.name]
        for node in come:
            allocatable = self._dimensions.allocatable(node)
            nodes[node.name] = NodeState(node, allocatable, (), (), self._dimensions)
            self._learn(node.allocatable)
        self._nodes_before = nodes = dict(sorted(nodes.items(), key=itemgetter(0)))
        self._numbers = {name: n for n, name in enumerate(nodes)}
        self._open_nodes = tuple([name for name, s in nodes.items() if s.node.takes_pods])
        # Volcano counts nodes that are not ready too.
        rows = [state.allocatable for state in nodes.values()]
        everything = [sum(column) for column in zip(*rows, strict=True)]
        everything = everything or [0] * len(self._dimensions.names)
        if everything != self._tree.everything:
            names = self._dimensions.names
            self._tree = QueueTree(self._snapshot.queues, names, everything, self._policies)
        self._per_node = {
            shape: most
            for shape, most in self._before.per_node.items()
            if any(self._takes(state, shape) == most for state in nodes.values())
            and not any(self._takes(nodes[n.name], shape) > most for n in come)
        }

    def _nodes(
        self,
        pods_on: Mapping[str, tuple[Pod, ...]],
        changed: Iterable[str],
        around: Iterable[str],
        jobs: Mapping[str, JobState],
    ) -> dict[str, NodeState]:
        """Nodes by name; `changed`: those that differ, or whose pods do; `around`: those of which
        only jobs of pods may differ."""
        found = dict(self._nodes_before)
        for name in changed:
            if (old := found.get(name)) is not None:
                pods = pods_on.get(name, ())
                keys = dict.fromkeys([pod.job for pod in pods])
                mine = tuple([s for key in keys if key and (s := jobs.get(key)) is not None])
                found[name] = NodeState(old.node, old.allocatable, pods, mine, self._dimensions)
        for name in around:
            if (old := found.get(name)) is not None:
                mine = tuple([s for key in old.owners if (s := jobs.get(key)) is not None])
                found[name] = old.with_jobs(mine)
        return found

    def _jobs(
        self,
        gone: Iterable[Job],
        come: Iterable[Job],
        pods_of: Mapping[str | None, tuple[Pod, ...]],
        changed: Iterable[str | None],
    ) -> tuple[dict[str, JobState], list[JobState], list[JobState]]:
        """Jobs by key, those of before that are gone or differ, and those that are new; `changed`:
        keys of those whose pods differ."""
        before = self._before.jobs
        # Steps of jobs are aligned to the largest node.
        was = self._before.per_node
        reshaped = {shape for shape, most in was.items() if self._largest(shape) != most}
        todo = {key: before[key].job for key in changed if key is not None and key in before}
        if reshaped:
            todo |= {key: state.job for key, state in before.items() if state.shape in reshaped}
        jobs = dict(before)
        for job in gone:
            del jobs[job.key]
            todo.pop(job.key, None)
        todo |= {job.key: job for job in come}
        made = {key: self._job_state(job, pods_of.get(key, ())) for key, job in todo.items()}
        jobs |= made
        over = dict.fromkeys([*made, *(job.key for job in gone)])
        return jobs, [before[key] for key in over if key in before], list(made.values())

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
        old = self._before.jobs.get(job.key)
        if old is not None and old.shape is shape and self._as_quick(old, job):
            curve, steps = old.curve, old.steps
        else:
            curve, steps = self._speed(job, policy, shape)
        is_open = self._tree.closed(job.queue) is None
        return JobState(job, pods, policy, is_open, shape, master, curve, steps, self._dimensions)

    def _as_quick(self, old: JobState, job: Job) -> bool:
        """Return whether a job of the same shape has the speeds that it had before."""
        was, shape = old.job, old.shape
        return (
            was.speeds is job.speeds
            and was.pod_requests is job.pod_requests
            and (was.queue, was.scaler, was.node_unit) == (job.queue, job.scaler, job.node_unit)
            and self._largest(shape) == self._before.per_node.get(shape)
        )

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
            each = [self._takes(state, shape) for state in self._nodes_before.values()]
            found = self._per_node[shape] = max(1, *each) if each else 1
        return found

    @staticmethod
    def _takes(state: NodeState, shape: Shape) -> int:
        """Return how many pods of a shape the node takes when it is empty."""
        if not admits(state.node, shape):
            return 0
        return min((state.allocatable[i] // amount for i, amount in shape.needs), default=0)

    def _gangs(self, pods: Iterable[Pod], jobs: Mapping[str, JobState]) -> dict[str, GangState]:
        known = self._before.gangs
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
        self.all_known = self.all_known and self._dimensions.know(named)


def _named(snapshot: Snapshot) -> Iterator[Resources]:
    """Yield the resources that objects name. One that only pods name fits nowhere, and has its
    dimension all the same, so that this shows."""
    yield from (gang.pod_requests for gang in snapshot.gangs if gang.pod_requests is not None)
    yield from (pod.requests for pod in snapshot.pods if pod.job is None)
    yield from (node.allocatable for node in snapshot.nodes)
    for job in snapshot.jobs:
        yield job.pod_requests
        if job.master_requests is not None:
            yield job.master_requests
