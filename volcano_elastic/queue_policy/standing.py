"""Where each job stands: which of its pods hold room, which wait, and the size planned so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.queue_policy.cooldown import ready
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.ladder import Ladder
from volcano_elastic.queue_policy.snapshot import Job, Pod
from volcano_elastic.queue_policy.speed import Curve


@dataclass(slots=True, eq=False)
class Standing:
    """One job while the plan is made; the only mutable thing about it."""

    job: Job
    policy: QueuePolicy
    shape: Shape
    unit_gpus: float
    """What one pod holds of the resource that sizes are compared in."""
    curve: Curve
    ladder: Ladder
    unit: int
    """Workers that come and go together."""
    unit_vector: Vector
    """What `unit` of them ask for."""
    cap: int
    """What the job may have at most: by its max, its wish (scaler hpa) and the policy."""
    weight: float
    """What its gains count for: more while it is young."""
    size: int
    touched: set[str]
    """Keys of the jobs that a plan has changed; shared by all."""
    bound: dict[str, Pod] = field(default_factory=dict)
    """Pods with a node that this plan leaves alone, by key, in no order."""
    unbound: dict[str, Pod] = field(default_factory=dict)
    """Pods without a node that this plan leaves alone."""
    excess: Sequence[Pod] = ()
    """Pods beyond `desired`: an earlier decision not carried out yet."""
    departing: bool = False
    """Some of its pods are terminating and still have a node: it has been running."""
    master_bound: bool = False
    _leavers: list[Pod] | None = None
    """Those bound before the plan, in the order of `leavers`."""
    promised: int = 0
    """Workers of the minimum that wait and have been given room by this plan."""
    credit: int = 0
    """Pods that must still be chosen to leave, since whole node units leave."""
    removed: list[Pod] = field(default_factory=list)
    reason: Reason | None = None
    served: dict[str, None] = field(default_factory=dict)
    """Keys of the claims that surplus was taken for, in order."""
    blocked: bool = False
    hoped: int = 0
    """Workers beyond `size` that it will get once leaving pods are gone, if nothing changes."""

    @property
    def most(self) -> int:
        """What this plan may raise the size to."""
        step = self.policy.grow.max_step
        return self.cap if step is None else min(self.cap, self.job.desired + step)

    @property
    def movable(self) -> bool:
        """Whether its surplus may be taken at all."""
        return self.policy.mode not in (Mode.OFF, Mode.DRY_RUN) and not self.job.unmodelled

    @property
    def whole(self) -> bool:
        """All its pods are there and have a node, and its size is as it should be: a plan has
        nothing to put right, and nobody waits for anything on its behalf. Others of its pods may
        still be leaving."""
        job, size = self.job, self.size
        return (
            not self.unbound
            and len(self.bound) + job.succeeded == size == job.desired
            and not self.excess
            and job.min <= size <= self.cap
            and size % self.unit == 0
            and not self.first_missing
            and (self.master_bound or job.master_requests is None)
            and (size == job.min or self.policy.mode is not Mode.HOLD_AND_DRAIN)
            and (self.curve.best is None or size <= max(self.curve.best, job.min))
        )

    @property
    def unstarted(self) -> bool:
        """Before a plan: nothing of it runs or has run, and it asks for its minimum and no more:
        a plan has nothing to put right, and until the job or its pods change its claim is the
        same."""
        job = self.job
        return (
            0 < job.min == job.desired
            and not self.bound
            and not self.departing
            and not self.excess
            and not job.succeeded
        )

    @property
    def ready(self) -> datetime | None:
        """When the job may change its size again of its own; None if it has never changed it."""
        return ready(self.job, self.policy)

    def cooling(self, now: datetime) -> bool:
        ready = self.ready
        return ready is not None and ready > now

    @property
    def held(self) -> int:
        """Workers that hold room, or will without anybody's help."""
        return len(self.bound) + self.promised + self.job.succeeded

    @property
    def absent(self) -> int:
        """Workers of the present size that do not exist yet."""
        return max(0, self.size - self.job.succeeded - len(self.bound) - len(self.unbound))

    @property
    def existing(self) -> int:
        """Workers that count in the size: those alive or finished, and worker 0 even while it is
        missing, since it comes back."""
        alive = len(self.bound) + len(self.unbound)
        return alive + self.job.succeeded + (alive > 0 and self.first_missing)

    @property
    def first_missing(self) -> bool:
        """Worker 0 does not exist."""
        if self.job.succeeded:
            return False
        return not _has_first(self.bound) and not _has_first(self.unbound)

    @property
    def first_waits(self) -> bool:
        """Worker 0 has no node, or does not exist."""
        return not self.job.succeeded and not _has_first(self.bound)

    @property
    def headless(self) -> bool:
        """It runs, and its worker 0 has no node."""
        return bool(self.bound) and self.first_waits

    @property
    def waiting(self) -> int:
        """Workers of the present size that have no node: unbound or absent."""
        return max(0, self.size - self.job.succeeded - len(self.bound))

    @property
    def waiting_surplus(self) -> int:
        """Of the waiting workers, those that are nobody's claim."""
        return max(0, self.waiting - self.promised)

    @property
    def absent_surplus(self) -> int:
        """Of the waiting surplus, what does not exist; claims take worker 0 and pods that exist."""
        of_claim = self.promised - (self.promised > 0 and self.first_missing)
        return self.waiting_surplus - min(
            self.waiting_surplus, max(0, len(self.unbound) - of_claim)
        )

    @property
    def surplus(self) -> int:
        """How many pods that hold room may still be asked to leave."""
        return min(self.size, self.held) - self.job.min + self.credit

    @property
    def softest(self) -> tuple[bool, bool]:
        """(protected, running) of the pod whose leaving costs least."""
        if self._leavers is None:
            # Of most jobs nobody is asked to leave: they need not be sorted.
            pods = self.bound.values()
            soft = [(pod.protected, pod.running) for pod in pods if pod.index != 0]
            return min(soft, default=(True, True))
        first = next(self.leavers(), None)
        return (True, True) if first is None else (first.protected, first.running)

    def leavers(self) -> Iterator[Pod]:
        """Its bound pods but worker 0, in the order in which they leave."""
        if self._leavers is None:
            taken = (pod for pod in self.removed if pod.node is not None)
            self._leavers = leave_order([*self.bound.values(), *taken])
        bound = self.bound
        return (pod for pod in self._leavers if pod.key in bound)

    @property
    def spare(self) -> float:
        """By which the largest surplus is chosen: a young job's counts for as much less as its
        gains count for more, or claims would take what growth has just given it."""
        return self.surplus * self.unit_gpus / self.weight

    def cost(self) -> int | None:
        """Pods that leave if one more is picked: 0 when its unit leaves anyway; None: may not."""
        if self.held - 1 < self.job.min:
            return None
        if self.credit > 0:
            return 0
        # The rest of the unit may be pods that wait or don't exist: the minimum loses nothing.
        unit = self.unit
        return unit if self.size - unit >= self.job.min else None

    @property
    def quota(self) -> int:
        """How many more pods may be picked at most: whole units leave, and never of the minimum."""
        least, unit = self.job.min, self.unit
        units = (self.size - least) // unit
        return min(self.held - least, self.credit + units * unit)

    def restore(self) -> None:
        """Forget what the last plan did; the pods beyond `desired` stay in `excess`."""
        for pod in self.removed:
            self._alive(pod)[pod.key] = pod
        self.removed.clear()
        self.served.clear()
        self.size, self.hoped = self.job.desired, 0
        self.promised = self.credit = 0
        self.reason, self.blocked = None, False

    def grow(self, workers: int) -> None:
        self.touched.add(self.job.key)
        self.size += workers

    def hope(self, workers: int) -> None:
        self.touched.add(self.job.key)
        self.hoped += workers

    def give(self, pods: Iterable[Pod], taker: str) -> None:
        """These pods, all bound, leave for another job's growth; whole units."""
        self.touched.add(self.job.key)
        for pod in pods:
            self.size -= 1
            self.removed.append(self.bound.pop(pod.key))
        self.reason = Reason.REBALANCED
        self.served[taker] = None

    def pick(self, pod: Pod) -> None:
        """`pod` leaves, and with it, in the end, its whole unit."""
        self.touched.add(self.job.key)
        if self.credit > 0:
            self.credit -= 1
        else:
            unit = self.unit
            self.size -= unit
            self.credit = unit - 1
        self._alive(pod).pop(pod.key)
        self.removed.append(pod)

    def unpick(self, pod: Pod) -> None:
        """Exactly undoes the latest `pick`, which was of this pod."""
        unit = self.unit
        self.removed.pop()
        self._alive(pod)[pod.key] = pod
        if self.credit == unit - 1:
            self.credit = 0
            self.size += unit
        else:
            self.credit += 1

    def _alive(self, pod: Pod) -> dict[str, Pod]:
        return self.unbound if pod.node is None else self.bound

    def drop(self, count: int, first: Iterable[Pod] = ()) -> list[Pod]:
        """Choose `count` pods to leave, `first` and then who costs least; fewer if fewer exist.

        Absent pods have been counted already: `size` is what it will be. The caller moves the
        room of those that have a node.
        """
        keys = {pod.key for pod in first}
        chosen = leave_order([*self.bound.values(), *self.unbound.values()])
        chosen = sorted(chosen, key=lambda pod: pod.key not in keys)[:count]
        for pod in chosen:
            self._alive(pod).pop(pod.key)
            self.removed.append(pod)
        return chosen

    def lower(self, size: int, reason: Reason, first: Iterable[Pod] = ()) -> list[Pod]:
        """Set a smaller size; the pods beyond it, already moved to `removed`."""
        self.size = size
        self.reason = self.reason or reason
        extra = self.existing - size
        return self.drop(extra, first) if extra > 0 else []

    def successors(self) -> tuple[str, ...]:
        """Keys of the pods that hold the minimum from now on, since protected ones leave."""
        short = self.job.min - sum(pod.protected for pod in self.bound.values())
        if short <= 0 or not any(pod.protected for pod in self.removed):
            return ()
        others = [pod for pod in self.bound.values() if not pod.protected]
        others.sort(key=lambda pod: (not pod.running, pod.index, pod.key))
        return tuple(pod.key for pod in others[:short])

    def without(self, size: int) -> int:
        """The size to give up surplus to that has no place: `size` in whole units. Of a job that
        is to be left alone nothing that has a place goes with it, even if that is half a unit."""
        size = self.floor(size)
        if not self.movable:
            placed, unit = len(self.bound) + self.job.succeeded, self.unit
            size = max(size, min(self.size, -(-placed // unit) * unit))
        return size

    def floor(self, size: int) -> int:
        """The largest size allowed that is at most `size`: whole units, never below min."""
        unit = self.unit
        return max(self.job.min, size - size % unit)


def _has_first(pods: Mapping[str, Pod]) -> bool:
    for pod in pods.values():  # noqa: SIM110 - a generator takes twice as long
        if pod.index == 0:
            return True
    return False


def leave_order(pods: Iterable[Pod], worker_0: bool = False) -> list[Pod]:
    """Who leaves first: unbound, then unprotected, bound before running, highest index. Never 0,
    unless `worker_0`.

    The protection of a pod without a node protects nothing yet.
    """
    return sorted(
        (pod for pod in pods if worker_0 or pod.index != 0),
        key=lambda pod: (pod.node is not None, pod.protected, pod.running, -pod.index, pod.key),
    )
