"""What a job is planned by: its policy, its speed curve, what it may have, what its gains count."""

from __future__ import annotations

from collections.abc import Mapping

from volcano_elastic.api.queue_policy import GPU, Order, QueuePolicy, Step
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Dimensions, Shape
from volcano_elastic.queue_policy.ladder import Ladder
from volcano_elastic.queue_policy.room import NodeRoom
from volcano_elastic.queue_policy.snapshot import Job, Resources
from volcano_elastic.queue_policy.speed import CPUS, Curve
from volcano_elastic.queue_policy.standing import Standing


class Terms:
    def __init__(
        self,
        policies: Mapping[str, QueuePolicy],
        nodes: NodeRoom,
        dimensions: Dimensions,
        standings: Mapping[str, Standing],
        touched: set[str],
    ) -> None:
        """`policies`: the one in force, by queue; `standings`: all that there are; `touched`: as
        in each of them."""
        self._policies = {**policies}
        """And the defaults of queues that have none."""
        self._nodes, self._dimensions = nodes, dimensions
        self._standings, self._touched = standings, touched
        self._ladders: dict[tuple[object, ...], tuple[Curve, Ladder]] = {}

    def policy(self, queue: str) -> QueuePolicy:
        found = self._policies.get(queue)
        if found is None:
            found = self._policies[queue] = QueuePolicy(queue=queue)
        return found

    def standing(self, job: Job) -> Standing:
        """None of its pods known yet."""
        policy = self.policy(job.queue)
        shape = self._dimensions.shape(
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
            cap=cap(job, policy),
            weight=weight(job, policy),
            size=job.desired,
            touched=self._touched,
        )

    def _ladder(
        self, job: Job, policy: QueuePolicy, shape: Shape, unit: int
    ) -> tuple[Curve, Ladder]:
        """Shared by all jobs that it would be the same for."""
        surplus, plain = policy.surplus, job.scaler == "none"
        speeds = {} if plain else job.speeds
        unit_gpus = gpu_equivalents(job.pod_requests, policy.resource)
        aligned = surplus.step is Step.NODE_ALIGNED and not plain
        per_node = self._nodes.per_node(shape) if aligned else unit
        equal = plain or surplus.order is Order.EQUAL
        counts = job.scaler == "volcano"
        asks = (*speeds.items(), unit_gpus, unit, per_node, surplus.min_efficiency, equal, counts)
        found = self._ladders.get(asks)
        if found is None:
            if len(self._ladders) > 4 * len(self._standings) + 64:
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


def cap(job: Job, policy: QueuePolicy) -> int:
    """What the job may have at most, by its max and unit, its wish (scaler hpa) and the policy."""
    most, beyond = _wish(job), policy.surplus.max_per_job
    if beyond is not None:
        most = min(most, job.min + int(beyond / units(job.pod_requests, policy.resource)))
    return _whole(job, most)


def capped_by(job: Job, policy: QueuePolicy) -> Reason:
    """Which of these it is that the job can't be larger than its cap for."""
    if cap(job, policy) < _whole(job, _wish(job)):
        return Reason.AT_MAX_PER_JOB
    return Reason.AT_REPLICAS if _wish(job) < job.max else Reason.AT_MAX


def _wish(job: Job) -> int:
    if job.scaler == "hpa" and job.replicas is not None:
        return min(job.max, job.replicas)
    return job.max


def _whole(job: Job, workers: int) -> int:
    return max(job.min, workers - workers % max(1, job.node_unit))
