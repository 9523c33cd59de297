"""Jobs and nodes with their pods, as frozen values.

What follows from a value alone is worked out once and kept with it. A planner that is given the
same job with the same pods again uses the same value, and all that is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import NamedTuple

from volcano_elastic.api.queue_policy import GPU, ForOtherQueues, ForPods, Mode, Order, QueuePolicy
from volcano_elastic.cluster_state.claim import Claim, Group, job_claim
from volcano_elastic.cluster_state.fact import fact, value
from volcano_elastic.cluster_state.fit import Dimensions, Shape, Vector
from volcano_elastic.cluster_state.job_pods import (
    COUNTED,
    FirstVictim,
    JobPods,
    eviction_order,
    first_leaver,
    has_first,
    job_pods,
)
from volcano_elastic.cluster_state.reason import NoChange, Reason, no_change
from volcano_elastic.cluster_state.speed import CPUS, Curve, SizeSteps
from volcano_elastic.snapshot.snapshot import Job, Pod, Resources

OWN_RIGHT = 2.0
"""How much more a step counts that its queue deserves. Where a right outweighed everything, a queue
of many jobs beside queues of few large ones took up to a third longer than under rigid scheduling
(weeks of Philly), and all jobs together a tenth."""
PAUSE = timedelta(seconds=1)
"""The cost of a resize while none was measured: that of the trainer's own restarts."""
UNMEASURED_COOLDOWN = timedelta(seconds=60)
"""The default cooldown until a resize of the job was measured."""
LONGEST_COOLDOWN = timedelta(seconds=300)
"""The most that the default comes to, however long resizes take."""
PAUSES_APART = 20
"""By default a job runs for so many of its pauses between two changes of its size: resizes cost it
a twentieth of its time at most."""


ORDER_KEYS: Mapping[Order, Callable[[Job], float]] = {
    Order.PRIORITY: lambda job: float(-job.priority)
}
"""Orders of surplus that don't go by what a step is worth alone: the smallest key goes first, and
surplus moves only to jobs of the same queue with a smaller one."""


class GrowthKey(NamedTuple):
    """Place of a job among those that may grow; the smallest goes first."""

    order_key: float
    """Infinite where its queue's order has none: such jobs stand behind, in order of worth."""
    worth: float
    """Gain of its next step, negative."""
    created: float
    job: str


class LossKey(NamedTuple):
    """Place of a job among those that may give; the smallest loss goes first."""

    loss: float
    job: str


class JobSurplus(NamedTuple):
    """The most that may leave one job for claims; the largest goes first."""

    weighted: float
    """Amount, negative; that of a young job counts for less."""
    pods: int
    queue: str


class Kept(NamedTuple):
    """Reasons of a job to keep its size."""

    unasked: NoChange
    """While nobody waits."""
    asked: NoChange
    """While somebody does."""
    ready: datetime | None
    """Until then it is cooling down."""


@value
class JobState:
    """One job, its pods, and the policy and speed that it is planned by."""

    job: Job
    pods: tuple[Pod, ...]
    policy: QueuePolicy
    queue_open: bool
    shape: Shape
    master_shape: Shape | None
    curve: Curve
    steps: SizeSteps
    dimensions: Dimensions = field(repr=False)

    @fact
    def unit(self) -> int:
        """Workers that come and go together."""
        return max(1, self.job.node_unit)

    @fact
    def unit_vector(self) -> Vector:
        """Amounts that `unit` workers ask for."""
        return tuple(amount * self.unit for amount in self.shape.vector)

    @property
    def namespace(self) -> str:
        return self.job.key.partition("/")[0]

    @fact
    def counted(self) -> Vector:
        """Amounts that a ResourceQuota counts for one worker: those of one that is there, which a
        LimitRange may have raised."""
        there = next((pod for pod in self.pods if pod.role == COUNTED), None)
        return self.shape.vector if there is None else self.dimensions.request(there.requests)

    @fact
    def unit_gpus(self) -> float:
        """Amount that one worker holds of the resource that sizes are compared in."""
        return units(self.job.pod_requests, self.policy.resource)

    @fact
    def cap(self) -> int:
        """The most workers that the job may have."""
        return cap(self.job, self.policy)

    @fact
    def most(self) -> int:
        """The most workers that one plan may raise the size to."""
        step = self.policy.grow.max_step
        return self.cap if step is None else min(self.cap, self.job.desired + step)

    @fact
    def weight(self) -> float:
        """Factor of the job's gains and losses: more while it is young."""
        return weight(self.job, self.policy)

    @property
    def order_key(self) -> float | None:
        """Its place before what a step is worth, the smallest first; None if worth alone counts."""
        key = ORDER_KEYS.get(self.policy.surplus.order)
        return None if key is None else key(self.job)

    def worth_by_right(self, worth: float) -> float:
        """Return what a step of this worth counts beside other queues' if deserved."""
        walled = self.policy.shrink.for_other_queues is ForOtherQueues.BORROWED
        return math.inf if walled else worth * OWN_RIGHT

    @fact
    def created(self) -> float:
        """The job's creation, in seconds since 1970."""
        return self.job.created.timestamp()

    @fact
    def pause(self) -> float:
        """Seconds that its training stands still at a change of size."""
        return (PAUSE if self.job.pause is None else self.job.pause).total_seconds()

    @fact
    def ready(self) -> datetime | None:
        """The end of the cooldown after its last resize; None before the first."""
        return ready(self.job, self.policy)

    def cooling(self, now: datetime) -> bool:
        ready = self.ready
        return ready is not None and ready > now

    @property
    def movable(self) -> bool:
        """True if the job's surplus may be taken at all."""
        return self.policy.mode not in (Mode.OFF, Mode.DRY_RUN) and not self.job.unmodelled

    @fact
    def yields_from(self) -> float:
        """The least priority of a pod that its surplus leaves for."""
        match self.policy.shrink.for_pods:
            case ForPods.NOT_LOWER:
                return self.job.priority
            case ForPods.HIGHER:
                return self.job.priority + 1
            case ForPods.NONE:
                return math.inf

    def gives_way(self, priority: int | None) -> bool:
        """Return whether surplus leaves for a pod of this priority; None: for a minimum."""
        return priority is None or priority >= self.yields_from

    def floor(self, size: int) -> int:
        """The largest allowed size that is at most `size`: whole units, never below min."""
        return max(self.job.min, size - size % self.unit)

    @fact
    def by_role(self) -> JobPods:
        """Its pods sorted."""
        return job_pods(
            self.job, self.pods, self.shape.vector, self.dimensions, self.policy.resource
        )

    @fact
    def nodes(self) -> frozenset[str]:
        """Names of the nodes that its workers are on."""
        return frozenset([pod.node for pod in self.by_role.bound.values() if pod.node is not None])

    @fact
    def leavers(self) -> Sequence[Pod]:
        """Its workers with a node but worker 0, in the order in which they leave."""
        return eviction_order(self.by_role.bound.values())

    @fact
    def settled(self) -> bool:
        """True if all pods are there and have a node, and the size is as it should be: nothing has
        to be corrected, and nobody waits on its behalf. Other pods of it may still be leaving."""
        job, pods, size = self.job, self.by_role, self.job.desired
        best = self.curve.best
        return (
            not pods.unbound
            and len(pods.bound) + job.succeeded == size
            and not pods.excess
            and job.min <= size <= self.cap
            and size % self.unit == 0
            and (job.succeeded > 0 or has_first(pods.bound.values()) or not job.needs_first)
            and (pods.master_bound or job.master_requests is None)
            and (size == job.min or self.policy.mode is not Mode.HOLD_AND_DRAIN)
            and (best is None or size <= max(best, job.min))
        )

    @property
    def unsettled(self) -> bool:
        """True if something may have to be corrected, or if part of its minimum waits."""
        return not (self.settled or self.unstarted)

    @fact
    def unstarted(self) -> bool:
        """True if nothing of it runs or has run, and it asks for its minimum and no more: its claim
        stays the same until the job or its pods change."""
        job, pods = self.job, self.by_role
        return (
            0 < job.min == job.desired
            and not pods.bound
            and not pods.departing
            and not pods.excess
            and not job.succeeded
        )

    @fact
    def waiting_claim(self) -> Claim | None:
        """The claim of a job that has not started; None for others."""
        if not self.unstarted:
            return None
        return self.claim(self.job.min, master=not self.by_role.master_bound)

    def claim(
        self, workers: int, *, master: bool, runs: bool = False, leader_placed: bool = True
    ) -> Claim | None:
        """Return its claim for so many workers and, if it has and needs one, its Master."""
        shape = self.master_shape if master else None
        group = Group(self.shape, workers)
        return job_claim(self.job, group, shape, runs=runs, leader_placed=leader_placed)

    @fact
    def active(self) -> bool:
        """True if it is settled and its size is the planner's to change."""
        return (
            self.settled
            and self.policy.mode is Mode.ACTIVE
            and not self.job.unmodelled
            and not self.job.succeeded
            and not self.by_role.departing
        )

    @fact
    def growth_key(self) -> GrowthKey | None:
        """Its place among those that may grow from `desired`; None if it may not."""
        if not (self.active and self.queue_open):
            return None
        return growth_key(self, self.job.desired)

    @fact
    def loss_key(self) -> LossKey | None:
        """Its place among those that may give for others' growth; None if it may not."""
        if not (self.active and self.job.scaler == "volcano"):
            return None
        return loss_key(self, self.job.desired)

    @property
    def may_give(self) -> bool:
        """True if surplus of the job might leave for a claim in some plan."""
        return self.job.desired - self.job.min >= self.unit and self.movable

    @fact
    def most_surplus(self) -> JobSurplus | None:
        """The surplus that it has at most; None if none might leave for a claim in any plan."""
        if not self.may_give:
            return None
        pods = self.job.desired - self.job.min
        return JobSurplus(-pods * self.unit_gpus / self.weight, pods, self.job.queue)

    @fact
    def first_victim(self) -> FirstVictim | None:
        """The pod that leaves first, as long as no plan has changed the job; None if none may."""
        most = self.most_surplus
        if most is None:
            return None
        return FirstVictim.of(first_leaver(self.by_role.bound.values()), most.weighted)

    @fact
    def surplus(self) -> int:
        """The most pods that may leave for claims, as long as no plan has changed the job."""
        most = self.most_surplus
        return 0 if most is None else min(most.pods, len(self.by_role.bound))

    @fact
    def kept(self) -> Kept | None:
        """Reasons to keep its size, as far as they follow from the job; None if its pods have not
        all found a node yet, or if it is rigid."""
        job, size, waits = self.job, self.job.desired, not self.settled
        if not job.elastic or (waits and not self.unstarted):
            return None
        more, ready = self.held_back(size), None
        if waits:
            more = more or Reason.WAITING_FOR_PODS
        elif more is None and job.succeeded:
            more = Reason.FINISHING
        elif more is None:
            ready = self.ready
            if self.by_role.departing:
                more = Reason.WAITING_FOR_PODS
        if more is None and self.growth_key is None:
            more = growth_end(self, size)
        more = more or Reason.NO_ROOM
        unasked = no_change(more, self.why_not_less(size, asked=False))
        asked = no_change(more, self.why_not_less(size, asked=True))
        return Kept(unasked, asked, ready)

    def held_back(self, size: int) -> Reason | None:
        """Why this job may not even be offered room beyond `size`; None if it may."""
        if self.job.unmodelled:
            return Reason.UNMODELLED
        if self.policy.mode is not Mode.ACTIVE:
            return Reason.HELD
        if size + self.unit > self.cap:
            return capped_by(self.job, self.policy)
        return None if self.queue_open else Reason.QUEUE_CLOSED

    def why_not_less(self, size: int, asked: bool) -> Reason:
        """Why a job that keeps `size` gives nothing; `asked`: somebody waits."""
        if size <= self.job.min:
            return Reason.AT_MIN
        if self.job.unmodelled:
            return Reason.UNMODELLED
        if not self.movable:
            return Reason.HELD
        return Reason.NOT_NEEDED if asked else Reason.NOBODY_WAITS


def growth_key(state: JobState, size: int) -> GrowthKey | None:
    """The job's place for its step after `size`; None if it has none."""
    if size + state.unit > state.most:
        return None
    step = state.steps.up(size)
    if step is None:
        return None
    # Rounded, so that ties are ties on every machine.
    worth = round(step.worth * state.weight, 12)
    order_key = math.inf if state.order_key is None else state.order_key
    return GrowthKey(order_key, -worth, state.created, state.job.key)


def growth_end(state: JobState, size: int) -> Reason | None:
    """Why a job has no step after `size`; None if it has one."""
    if size + state.unit > state.most:
        lasting = size + state.unit > state.cap
        return Reason.AT_MAX if lasting else Reason.MAX_STEP_TOO_SMALL
    return Reason.INEFFICIENT if state.steps.up(size) is None else None


def loss_key(state: JobState, size: int) -> LossKey | None:
    """The job's place for giving the step below `size`; None at the minimum."""
    if size - state.unit < state.job.min:
        return None
    return LossKey(round(state.steps.down(size).worth * state.weight, 12), state.job.key)


def ready(job: Job, policy: QueuePolicy) -> datetime | None:
    """Return when the job's own cooldown ends, so that it may be resized; None if it never was."""
    if job.last_scale is None:
        return None
    return job.last_scale + cooldown(job, policy)


def cooldown(job: Job, policy: QueuePolicy) -> timedelta:
    """Least time from a change of the job's size to its next growth.

    What the job and its queue's policy say counts, the longer where both do. Where neither does,
    resizes may follow each other the faster the less they cost this job. It is never less than the
    policy's stabilization.
    """
    given = [one for one in (job.cooldown, policy.grow.cooldown) if one is not None]
    if given:
        wait = max(given)
    elif job.pause is None:
        wait = UNMEASURED_COOLDOWN
    else:
        wait = min(job.pause * PAUSES_APART, LONGEST_COOLDOWN)
    return max(wait, policy.grow.stabilization)


def cooldown_left(
    job: Job, policy: QueuePolicy, now: datetime, rest: datetime | None = None
) -> timedelta:
    """Return the time until the job may grow; zero before its first change.

    `rest`: until then it rests, by the plan, as its surplus found no place."""
    return max(now, ready(job, policy) or now, rest or now) - now


def units(requests: Resources, resource: str) -> float:
    """Amount of `resource` that a pod holds, else its CPUs, else 1: sizes are compared in it."""
    return (requests.get(resource, 0) or requests.get("cpu", 0)) / 1000 or 1.0


def gpu_equivalents(requests: Resources, resource: str) -> float:
    """GPUs of a pod, for its speed curve; so many CPUs count as one where it has none."""
    gpus = requests.get(GPU if resource == "cpu" else resource, 0) / 1000
    return gpus or requests.get("cpu", 0) / 1000 / CPUS or 1.0


def weight(job: Job, policy: QueuePolicy) -> float:
    """Factor of the job's gains.

    It falls evenly while the job uses its young hours: a sudden fall would take its GPUs at once.
    """
    hours = policy.surplus.young_gpu_hours
    youth = max(0.0, 1 - job.gpu_hours / hours) if hours > 0 else 0.0
    return 1 + (policy.surplus.young_weight - 1) * youth


def cap(job: Job, policy: QueuePolicy) -> int:
    """The most the job may have, by its max and unit, its request (scaler hpa) and the policy."""
    most, beyond = _requested(job), policy.surplus.max_per_job
    if beyond is not None:
        most = min(most, job.min + int(beyond / units(job.pod_requests, policy.resource)))
    return _whole(job, most)


def capped_by(job: Job, policy: QueuePolicy) -> Reason:
    """The bound that `cap` comes from."""
    if cap(job, policy) < _whole(job, _requested(job)):
        return Reason.AT_MAX_PER_JOB
    return Reason.AT_REPLICAS if _requested(job) < job.max else Reason.AT_MAX


def _requested(job: Job) -> int:
    if job.scaler == "hpa" and job.replicas is not None:
        return min(job.max, job.replicas)
    return job.max


def _whole(job: Job, workers: int) -> int:
    return max(job.min, workers - workers % max(1, job.node_unit))
