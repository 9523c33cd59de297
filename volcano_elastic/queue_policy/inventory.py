"""The snapshot sorted for planning: each job's pods, each gang's, and what they hold of nodes and
queues. Kept from plan to plan: only what has changed is sorted anew.

Values are told apart by identity: a pod that is the same object is the same pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import compress, count, islice
from operator import is_not
from typing import TypeVar

from volcano_elastic.api.queue_policy import GPU, Mode, Order, QueuePolicy, Step, effective
from volcano_elastic.queue_policy.decision import Reason, Stay
from volcano_elastic.queue_policy.fit import Dimensions, Shape, Vector
from volcano_elastic.queue_policy.ladder import Ladder
from volcano_elastic.queue_policy.lineup import Lineup
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room, leaving
from volcano_elastic.queue_policy.single import Givers
from volcano_elastic.queue_policy.snapshot import Gang, Job, Pod, Resources, Snapshot
from volcano_elastic.queue_policy.speed import CPUS, Curve
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.stays import settled

_T = TypeVar("_T")

Group = tuple[str, str]
"""("job" or "gang", key); ("", "") of pods that belong to nobody."""


class Inventory:
    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self.now: datetime

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Take in `snapshot`, and forget what the last plan did."""
        old, self._snapshot = self._snapshot, snapshot
        if old is None or now < self.now or not self._take(old, snapshot):
            self.now = now
            self._start(snapshot)
        self.now = now
        for key in self._dirty:
            self._stand(key)
        self._dirty.clear()
        for standing in self.lineup.advance(now):
            if standing.job.elastic:
                self.stays[standing.job.key] = settled(standing, self._open(standing), now)
        self.lineup.settle()
        self.givers.settle()
        self._let_leave()
        self.queues.begin()
        if snapshot.proportion:
            self.queues.share_by_weight(self._wishes())

    def policy(self, queue: str) -> QueuePolicy:
        found = self._policies.get(queue)
        if found is None:
            found = self._policies[queue] = QueuePolicy(queue=queue)
        return found

    def shape_of(self, pod: Pod) -> Shape:
        return self.dimensions.shape(
            pod.requests, pod.node_selector, pod.tolerations, pod.node_affinity
        )

    # What changes seldom

    def _take(self, old: Snapshot, new: Snapshot) -> bool:
        """Take in the difference; False, and nothing taken, if more than jobs, gangs and pods
        differ, or pods name new resources."""
        if (
            old.nodes != new.nodes
            or old.queues != new.queues
            or old.policies != new.policies
            or old.proportion != new.proportion
        ):
            return False
        gone, come = _difference(old.pods, new.pods)
        left, arrived = _difference(old.jobs, new.jobs)
        if not self.dimensions.know(_requests(arrived, new.gangs, come)):
            return False
        self.nodes.begin()
        for key in self.touched | self.restless:
            self.standings[key].restore()
        self.touched.clear()
        self._take_jobs(left, arrived)
        self._take_gangs(new.gangs)
        self._take_pods(gone, come)
        return True

    def _start(self, snapshot: Snapshot) -> None:
        asked = _requests(snapshot.jobs, snapshot.gangs, snapshot.pods)
        self.dimensions = Dimensions(snapshot.nodes, asked)
        self.nodes = NodeRoom(snapshot.nodes, self.dimensions)
        policies = effective(snapshot.policies)
        self._policies = {**policies}
        """And the defaults of queues that have none."""
        self.queues = QueueRoom(
            snapshot.queues, self.dimensions.names, self.nodes.everything(), policies
        )
        self._ladders: dict[tuple[object, ...], tuple[Curve, Ladder]] = {}
        self._jobs: dict[str, Job] = {}
        self.stays: dict[str, Stay] = {}
        """Of calm elastic jobs, as far as they depend on the job alone."""
        self.jobs_in: Counter[str] = Counter()
        """By queue."""
        self.surplus_in: Counter[str] = Counter()
        """By queue, what pods beyond minimums hold, in the policy's resource."""
        self._counted: dict[str, tuple[str, int]] = {}
        self.standings: dict[str, Standing] = {}
        self.lineup = Lineup()
        self.givers = Givers()
        self.touched: set[str] = set()
        self.restless: set[str] = set()
        """Keys of jobs that are not calm: only they can have a claim or want something put
        right."""
        self.gangs: dict[str, Gang] = {}
        self._pods: dict[Group, dict[int, Pod]] = {}
        self._others: set[Group] = set()
        """Those of `_pods` that are no job's: few."""
        self._held: dict[Group, tuple[str, list[tuple[Vector, int]]]] = {}
        """What each group's pods add to which queue."""
        self._departing: dict[int, tuple[Pod, bool]] = {}
        """Terminating pods with a node, and whether their room counts as coming now."""
        self._dirty: set[str] = set()
        self.rebalanced: dict[str, dict[str, datetime]] = {}
        """By queue, the jobs last changed by rebalancing, and when."""
        self._take_jobs((), snapshot.jobs)
        self._take_gangs(snapshot.gangs)
        self._take_pods((), snapshot.pods)

    # What changes often

    def _take_jobs(self, left: Sequence[Job], arrived: Sequence[Job]) -> None:
        found = {job.key: job for job in arrived}
        for job in left:
            if job.key not in found:
                self._drop(job.key)
        self._jobs |= found
        self._dirty |= found.keys()

    def _take_gangs(self, gangs: tuple[Gang, ...]) -> None:
        found = {gang.key: gang for gang in gangs if gang.key not in self._jobs}
        if found == self.gangs:
            return
        changed = {
            key for key in self.gangs.keys() | found if self.gangs.get(key) != found.get(key)
        }
        self.gangs = found
        for key in changed:
            self._hold(("gang", key))

    def _take_pods(self, gone: Sequence[Pod], come: Sequence[Pod]) -> None:
        groups: set[Group] = set()
        for pod in gone:
            group = _group(pod)
            members = self._pods[group]
            del members[id(pod)]
            if not members:
                del self._pods[group]
                self._others.discard(group)
            groups.add(group)
        for pod in come:
            group = _group(pod)
            self._pods.setdefault(group, {})[id(pod)] = pod
            groups.add(group)
            if group[0] != "job":
                self._others.add(group)
        self._occupy(gone, -1)
        self._occupy(come, 1)
        for group in groups:
            if group[0] == "job":
                if group[1] in self._jobs:
                    self._dirty.add(group[1])
            else:
                self._hold(group)

    def _occupy(self, pods: Iterable[Pod], sign: int) -> None:
        counts: dict[tuple[str, Vector], int] = {}
        request = self.dimensions.request
        for pod in pods:
            if pod.node is None:
                continue
            place = (pod.node, request(pod.requests))
            counts[place] = counts.get(place, 0) + sign
            if pod.terminating:
                if sign > 0:
                    self._departing[id(pod)] = (pod, False)
                elif self._departing.pop(id(pod), (pod, False))[1]:
                    self._come(pod, -1)
        for (name, vector), times in counts.items():
            n = self.nodes.index(name)
            if n is not None and times:
                self.nodes.occupy(Room.IDLE, n, vector, times)
                self.nodes.occupy(Room.COMING, n, vector, times)

    def _let_leave(self) -> None:
        """Time alone decides when a leaving pod's room doesn't count as coming any more."""
        for key, (pod, counted) in list(self._departing.items()):
            counts = leaving(pod, self.now)
            if counts != counted:
                self._come(pod, 1 if counts else -1)
                self._departing[key] = (pod, counts)

    def _come(self, pod: Pod, sign: int) -> None:
        n = self.nodes.index(pod.node)
        if n is not None:
            self.nodes.occupy(Room.COMING, n, self.dimensions.request(pod.requests), -sign)

    def _hold(self, group: Group) -> None:
        """Note what the pods of a job or gang hold of its queue."""
        before = self._held.pop(group, None)
        if before is not None:
            for vector, times in before[1]:
                self.queues.hold(before[0], vector, -times)
        kind, key = group
        owner = self._jobs.get(key) if kind == "job" else self.gangs.get(key)
        if owner is None:
            return
        counts: dict[Vector, int] = {}
        request = self.dimensions.request
        usual, usually = owner.pod_requests, request(owner.pod_requests or {})
        for pod in self._pods.get(group, {}).values():
            if pod.node is not None and not pod.terminating:
                vector = usually if pod.requests == usual else request(pod.requests)
                counts[vector] = counts.get(vector, 0) + 1
        held = list(counts.items())
        for vector, times in held:
            self.queues.hold(owner.queue, vector, times)
        self._held[group] = (owner.queue, held)

    def _drop(self, key: str) -> None:
        standing = self.standings.pop(key, None)
        self._count(key, None)
        self.stays.pop(key, None)
        self._jobs.pop(key, None)
        self._dirty.discard(key)
        self.restless.discard(key)
        self.lineup.remove(key)
        self.givers.remove(key)
        self._hold(("job", key))
        if standing is not None:
            self.rebalanced.get(standing.job.queue, {}).pop(key, None)

    def _stand(self, key: str) -> None:
        """Sort one job's pods."""
        job, old = self._jobs[key], self.standings.get(key)
        if old is not None:
            self.rebalanced.get(old.job.queue, {}).pop(key, None)
        if job.last_reason == Reason.REBALANCED and job.last_scale is not None:
            self.rebalanced.setdefault(job.queue, {})[key] = job.last_scale
        standing = self.standings[key] = self._standing(job)
        for pod in self._pods.get(("job", key), {}).values():
            if pod.terminating:
                if pod.node is not None:
                    standing.departing = True
            elif pod.role != "Worker":
                standing.master_bound = standing.master_bound or pod.node is not None
            elif pod.node is not None:
                standing.bound[pod.key] = pod
            else:
                standing.unbound[pod.key] = pod
        self._hold(("job", key))
        extra = standing.existing - job.desired
        if extra > 0:
            standing.excess = standing.drop(extra)
            standing.removed.clear()
        self._count(key, standing)
        self.lineup.remove(key)
        self.givers.remove(key)
        self.stays.pop(key, None)
        if standing.calm:
            self.restless.discard(key)
            if job.elastic:
                self.stays[key] = settled(standing, self._open(standing), self.now)
            mode, free = standing.policy.mode, not job.unmodelled and not job.succeeded
            takes = free and mode is Mode.ACTIVE and self._open(standing)
            gives = free and mode is Mode.ACTIVE and job.scaler == "volcano"
            self.lineup.put(standing, self.now, takes=takes, gives=gives)
            self.givers.put(standing)
        else:
            self.restless.add(key)

    def _open(self, standing: Standing) -> bool:
        return self.queues.closed(standing.job.queue) is None

    def _count(self, key: str, standing: Standing | None) -> None:
        before = self._counted.pop(key, None)
        if before is not None:
            self.jobs_in[before[0]] -= 1
            self.surplus_in[before[0]] -= before[1]
        if standing is not None:
            job = standing.job
            beyond = max(0, len(standing.bound) + len(standing.excess) - job.min)
            surplus = beyond * job.pod_requests.get(standing.policy.resource, 0)
            self._counted[key] = (job.queue, surplus)
            self.jobs_in[job.queue] += 1
            self.surplus_in[job.queue] += surplus

    def _standing(self, job: Job) -> Standing:
        policy = self.policy(job.queue)
        shape = self.dimensions.shape(
            job.pod_requests, job.node_selector, job.tolerations, job.node_affinity
        )
        unit = max(1, job.node_unit)
        curve, ladder = self._ladder(job, policy, shape, unit)
        return Standing(
            job=job,
            policy=policy,
            shape=shape,
            unit_gpus=units(job.pod_requests, policy.resource),
            curve=curve,
            ladder=ladder,
            unit=unit,
            unit_vector=tuple(amount * unit for amount in shape.vector),
            cap=_cap(job, policy, unit),
            weight=weight(job, policy),
            size=job.desired,
            touched=self.touched,
        )

    def _ladder(
        self, job: Job, policy: QueuePolicy, shape: Shape, unit: int
    ) -> tuple[Curve, Ladder]:
        """Shared by all jobs that it would be the same for."""
        surplus, plain = policy.surplus, job.scaler == "none"
        speeds = {} if plain else job.speeds
        unit_gpus = gpu_equivalents(job.pod_requests, policy.resource)
        aligned = surplus.step is Step.NODE_ALIGNED and not plain
        per_node = self.nodes.per_node(shape) if aligned else unit
        equal = plain or surplus.order is Order.EQUAL
        counts = job.scaler == "volcano"
        asks = (*speeds.items(), unit_gpus, unit, per_node, surplus.min_efficiency, equal, counts)
        found = self._ladders.get(asks)
        if found is None:
            if len(self._ladders) > 4 * len(self._jobs) + 64:
                # Of curves that have been measured anew since.
                self._ladders.clear()
            curve = Curve(speeds, unit_gpus)
            ladder = Ladder(
                curve,
                unit_gpus=unit_gpus,
                node_unit=unit,
                per_node=per_node,
                min_efficiency=surplus.min_efficiency,
                equal=equal,
                curves_count=counts,
            )
            found = self._ladders[asks] = (curve, ladder)
        return found

    # What is asked

    def waiting(self) -> list[tuple[Gang, list[Pod]]]:
        """Gangs of others, with their pods."""
        return [
            (gang, list(self._pods.get(("gang", key), {}).values()))
            for key, gang in self.gangs.items()
        ]

    def strangers(self) -> list[Pod]:
        """Waiting pods that belong to nobody we know."""
        return [
            pod
            for group in self._others
            if group[1] not in self.gangs
            for pod in self._pods[group].values()
            if pod.node is None and not pod.terminating
        ]

    def last_rebalance(self, queue: str) -> datetime | None:
        return max(self.rebalanced.get(queue, {}).values(), default=None)

    def _wishes(self) -> Mapping[str, list[int]]:
        """What every queue holds and would take, were there room."""
        wishes = {name: list(used) for name, used in self.queues.used.items()}

        def add(queue: str, vector: Vector, times: int) -> None:
            wish = wishes.get(queue)
            if wish is not None and times > 0:
                for i, amount in enumerate(vector):
                    wish[i] += amount * times

        for standing in self.standings.values():
            job = standing.job
            more = standing.cap - job.succeeded - len(standing.bound)
            add(job.queue, standing.shape.vector, more)
            if job.master_requests is not None and not standing.master_bound:
                add(job.queue, self.dimensions.request(job.master_requests), 1)
        for gang, pods in self.waiting():
            for pod in pods:
                if pod.node is None and not pod.terminating:
                    add(gang.queue, self.dimensions.request(pod.requests), 1)
            if gang.pod_requests is not None:
                vector = self.dimensions.request(gang.pod_requests)
                add(gang.queue, vector, gang.min_member - gang.succeeded - len(pods))
        return wishes


def units(requests: Resources, resource: str) -> float:
    """What a pod holds of `resource`, else its CPUs, else 1: what sizes are compared in."""
    return (requests.get(resource, 0) or requests.get("cpu", 0)) / 1000 or 1.0


def gpu_equivalents(requests: Resources, resource: str) -> float:
    """GPUs of a pod, for its speed curve; so many CPUs count as one where it has none."""
    gpus = requests.get(GPU if resource == "cpu" else resource, 0) / 1000
    return gpus or requests.get("cpu", 0) / 1000 / CPUS or 1.0


def weight(job: Job, policy: QueuePolicy) -> float:
    """What the job's gains count for.

    It falls evenly while the job uses its young hours: a sudden fall would take its GPUs at once.
    """
    hours = policy.surplus.young_gpu_hours
    youth = max(0.0, 1 - job.gpu_hours / hours) if hours > 0 else 0.0
    return 1 + (policy.surplus.young_weight - 1) * youth


def _cap(job: Job, policy: QueuePolicy, unit: int) -> int:
    cap = job.max
    if job.scaler == "hpa" and job.replicas is not None:
        cap = min(cap, job.replicas)
    most = policy.surplus.max_per_job
    if most is not None:
        cap = min(cap, job.min + int(most / units(job.pod_requests, policy.resource)))
    return max(job.min, cap - cap % unit)


def _group(pod: Pod) -> Group:
    if pod.job is not None:
        return ("job", pod.job)
    return ("", "") if pod.gang is None else ("gang", pod.gang)


def _requests(
    jobs: Iterable[Job], gangs: Iterable[Gang], pods: Iterable[Pod]
) -> Iterable[Resources]:
    """All that pods on their way name."""
    for job in jobs:
        yield job.pod_requests
        if job.master_requests is not None:
            yield job.master_requests
    yield from (gang.pod_requests for gang in gangs if gang.pod_requests is not None)
    yield from (pod.requests for pod in pods if pod.node is None)


def _difference(old: Sequence[_T], new: Sequence[_T]) -> tuple[list[_T], list[_T]]:
    """Who has gone and who has come, told by identity."""
    if old is new:
        return [], []
    if len(old) == len(new):
        changed = list(compress(range(len(old)), map(is_not, old, new)))
        gone, come = [old[i] for i in changed], [new[i] for i in changed]
    else:
        start = next(compress(count(), map(is_not, old, new)), min(len(old), len(new)))
        most = min(len(old), len(new)) - start
        pairs = map(is_not, islice(reversed(old), most), islice(reversed(new), most))
        end = next(compress(count(), pairs), most)
        gone, come = list(old[start : len(old) - end]), list(new[start : len(new) - end])
    before, after = set(map(id, gone)), set(map(id, come))
    return (
        [value for value in gone if id(value) not in after],
        [value for value in come if id(value) not in before],
    )
