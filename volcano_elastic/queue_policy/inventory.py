"""The snapshot sorted for planning: each job's pods, each gang's, and what they hold of nodes and
queues."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from volcano_elastic.api.queue_policy import GPU, Order, QueuePolicy, Step, effective
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Dimensions, Shape, Vector
from volcano_elastic.queue_policy.ladder import Ladder
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room, leaving
from volcano_elastic.queue_policy.snapshot import Gang, Job, Pod, Resources, Snapshot
from volcano_elastic.queue_policy.speed import CPUS, Curve
from volcano_elastic.queue_policy.standing import Standing


class Inventory:
    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.now = now
        requests: list[Resources] = [job.pod_requests for job in snapshot.jobs]
        requests += [j.master_requests for j in snapshot.jobs if j.master_requests is not None]
        requests += [g.pod_requests for g in snapshot.gangs if g.pod_requests is not None]
        requests += [pod.requests for pod in snapshot.pods if pod.node is None]
        self.dimensions = Dimensions(snapshot.nodes, requests)
        self.nodes = NodeRoom(snapshot.nodes, self.dimensions)
        self.policies = effective(snapshot.policies)
        self.queues = QueueRoom(
            snapshot.queues, self.dimensions.names, self.nodes.everything(), self.policies
        )
        self._ladders: dict[tuple[object, ...], tuple[Curve, Ladder]] = {}
        self.standings = {
            job.key: self._standing(job) for job in sorted(snapshot.jobs, key=lambda job: job.key)
        }
        self.gangs: dict[str, tuple[Gang, list[Pod]]] = {
            gang.key: (gang, []) for gang in snapshot.gangs if gang.key not in self.standings
        }
        self.others: list[Pod] = []
        """Waiting pods that belong to nobody we know."""
        self.last_rebalance: dict[str, datetime] = {}
        """By queue."""
        for job in snapshot.jobs:
            if job.last_reason == Reason.REBALANCED and job.last_scale is not None:
                last = self.last_rebalance.get(job.queue, job.last_scale)
                self.last_rebalance[job.queue] = max(last, job.last_scale)
        self._sort(snapshot.pods)
        if snapshot.proportion:
            self.queues.share_by_weight(self._wishes())

    def policy(self, queue: str) -> QueuePolicy:
        return self.policies.get(queue) or QueuePolicy(queue=queue)

    def shape_of(self, pod: Pod) -> Shape:
        return self.dimensions.shape(
            pod.requests, pod.node_selector, pod.tolerations, pod.node_affinity
        )

    def _standing(self, job: Job) -> Standing:
        policy = self.policy(job.queue)
        shape = self.dimensions.shape(
            job.pod_requests, job.node_selector, job.tolerations, job.node_affinity
        )
        unit = max(1, job.node_unit)
        curve, ladder = self._ladder(job, policy, shape, unit)
        young = job.gpu_hours < policy.surplus.young_gpu_hours
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
            weight=policy.surplus.young_weight if young else 1.0,
            size=job.desired,
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

    def _sort(self, pods: tuple[Pod, ...]) -> None:
        on_node: dict[tuple[str, Vector], int] = {}
        coming: dict[tuple[str, Vector], int] = {}
        in_queue: dict[tuple[str, Vector], int] = {}
        request = self.dimensions.request
        for pod in pods:
            standing = self.standings.get(pod.job) if pod.job is not None else None
            gang = self.gangs.get(pod.gang) if standing is None and pod.gang is not None else None
            if gang is not None:
                gang[1].append(pod)
            if pod.node is not None:
                vector = request(pod.requests)
                place = (pod.node, vector)
                on_node[place] = on_node.get(place, 0) + 1
                if pod.terminating:
                    if standing is not None:
                        standing.departing = True
                    if leaving(pod, self.now):
                        coming[place] = coming.get(place, 0) + 1
                    continue
                queue = standing.job.queue if standing else gang[0].queue if gang else None
                if queue is not None:
                    held = (queue, vector)
                    in_queue[held] = in_queue.get(held, 0) + 1
            elif pod.terminating:
                continue
            if standing is not None:
                if pod.role != "Worker":
                    standing.master_bound = standing.master_bound or pod.node is not None
                elif pod.node is not None:
                    standing.bound[pod.key] = pod
                else:
                    standing.unbound[pod.key] = pod
            elif gang is None and pod.job is None and pod.node is None:
                self.others.append(pod)
        for (name, vector), times in on_node.items():
            n = self.nodes.index(name)
            if n is not None:
                left = times - coming.get((name, vector), 0)
                self.nodes.occupy(Room.IDLE, n, vector, times)
                self.nodes.occupy(Room.COMING, n, vector, left)
                self.nodes.occupy(Room.POTENTIAL, n, vector, left)
        for (queue, vector), times in in_queue.items():
            self.queues.use(queue, vector, times)
        for standing in self.standings.values():
            extra = standing.existing - standing.job.desired
            if extra > 0:
                standing.excess = standing.drop(extra)
                standing.removed.clear()

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
        for gang, pods in self.gangs.values():
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


def _cap(job: Job, policy: QueuePolicy, unit: int) -> int:
    cap = job.max
    if job.scaler == "hpa" and job.replicas is not None:
        cap = min(cap, job.replicas)
    most = policy.surplus.max_per_job
    if most is not None:
        cap = min(cap, job.min + int(most / units(job.pod_requests, policy.resource)))
    return max(job.min, cap - cap % unit)
