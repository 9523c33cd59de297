"""A plan in the making: what it has changed of jobs, nodes and queues so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.job_pods import (
    FirstVictim,
    eviction_order,
    existing,
    first_leaver,
    goes_on_without_first,
    has_first,
)
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.journal import Journal
from volcano_elastic.queue_policy.node_room import NodeRoom, Room
from volcano_elastic.queue_policy.queue_room import Limit, QueueRoom
from volcano_elastic.queue_policy.quota_room import QuotaRoom
from volcano_elastic.snapshot.snapshot import Pod


class JobDraft:
    """One job in the plan: its size, and which of its pods stay."""

    def __init__(self, state: JobState, journal: Journal) -> None:
        self.state, self.job, self._journal = state, state.job, journal
        self.size = state.job.desired
        self.bound = state.by_role.bound
        """Pods with a node that this plan leaves alone, by key, in no order."""
        self.unbound = state.by_role.unbound
        """Pods without a node that this plan leaves alone."""
        self.removed: list[Pod] = []
        self.moved: list[Pod] = []
        """Pods that leave their node and are made anew elsewhere."""
        self.why_left: tuple[str, ...] = ()
        """The faults of the nodes that pods leave, one sentence each."""
        self.promised = 0
        """Workers of the minimum that wait and have been given room by this plan."""
        self.pending_growth = 0
        """Workers beyond `size` that it will get once leaving pods are gone, if nothing changes."""
        self.unit_remainder = 0
        """Pods that must still be chosen to leave, since whole units leave."""
        self.reason: Reason | None = None
        self.queue_beyond = ""
        """The queue that held more than its capability, if it gives surplus for that."""
        self.served: dict[str, None] = {}
        """Keys of the claims that surplus was taken for, in order."""
        self.blocked = False
        """Its claim cannot be served."""

    @property
    def held(self) -> int:
        """Workers that hold room, or will without anybody's help."""
        return len(self.bound) + self.promised + self.job.succeeded

    @property
    def existing(self) -> int:
        """Workers that count in the size."""
        return existing(self.job, [*self.bound.values(), *self.unbound.values()])

    @property
    def absent(self) -> int:
        """Workers of the present size that do not exist yet."""
        return max(0, self.size - self.job.succeeded - len(self.bound) - len(self.unbound))

    @property
    def goes_on_without_first(self) -> bool:
        """It runs, and will without worker 0, which is a worker like the others then."""
        return goes_on_without_first(self.job, self.bound.values())

    @property
    def leader_pending(self) -> bool:
        """Worker 0 has no node, or does not exist, and the others can't go on without."""
        if self.job.succeeded or self.goes_on_without_first:
            return False
        return not has_first(self.bound.values())

    @property
    def leader_missing(self) -> bool:
        """Worker 0 does not exist."""
        return self.leader_pending and not has_first(self.unbound.values())

    @property
    def runs_without_leader(self) -> bool:
        """It runs, and its worker 0 has no node."""
        return bool(self.bound) and self.leader_pending

    @property
    def waiting(self) -> int:
        """Workers of the present size that have no node: unbound or absent."""
        return max(0, self.size - self.job.succeeded - len(self.bound))

    @property
    def waiting_surplus(self) -> int:
        """The waiting workers that are nobody's claim."""
        return max(0, self.waiting - self.promised)

    @property
    def absent_surplus(self) -> int:
        """Waiting surplus that does not exist; claims take worker 0 and pods that exist."""
        of_claim = self.promised - (self.promised > 0 and self.leader_missing)
        return max(0, self.waiting_surplus - max(0, len(self.unbound) - of_claim))

    @property
    def weighted_surplus(self) -> float:
        """Amount that may still be asked to leave; the largest is chosen. A young job's counts for
        as much less as its gains count for more, or claims would take what growth has given it."""
        surplus = min(self.size, self.held) - self.job.min + self.unit_remainder
        return surplus * self.state.unit_gpus / self.state.weight

    @property
    def gives_units(self) -> bool:
        """Return whether a unit more may leave for nobody's sake but its queue's."""
        active = self.state.movable and self.state.policy.mode is Mode.ACTIVE
        return active and self.size - self.state.unit >= self.job.min < self.held

    def claim(self) -> Claim | None:
        """Return the claim for what the minimum lacks; None if nothing."""
        job, pods = self.job, self.state.by_role
        short = max(0, job.min - self.held)
        # A job must not lose its turn because the pod that made way for its worker 0 is going.
        runs = bool(self.bound) or pods.departing or any(p.node for p in pods.excess)
        master = self.state.master_shape is not None and not pods.master_bound
        needs_master = master and job.succeeded == 0
        return self.state.claim(
            max(short, 1) if self.runs_without_leader else short,
            master=needs_master,
            runs=runs,
            leader_placed=not (runs and (self.leader_pending or needs_master)),
        )

    # Leaving

    def leavers(self) -> Iterator[Pod]:
        """Its bound pods but worker 0, in the order in which they leave."""
        return (pod for pod in self.state.leavers if pod.key in self.bound)

    def eviction_cost(self) -> int | None:
        """Pods that leave if one more is evicted: 0 when its unit leaves anyway; None: may not."""
        if self.held - 1 < self.job.min:
            return None
        if self.unit_remainder > 0:
            return 0
        # The rest of the unit may be pods that wait or don't exist: the minimum loses nothing.
        unit = self.state.unit
        return unit if self.size - unit >= self.job.min else None

    def first_victim(self, after: FirstVictim | None = None) -> FirstVictim | None:
        """The pod that leaves first for a claim, a bound of it `after` one that left, or None."""
        if self.state.most_surplus is None or self.eviction_cost() is None:
            return None
        if after is not None:
            return after.next(-self.weighted_surplus)
        return FirstVictim.of(first_leaver(self.bound.values()), -self.weighted_surplus)

    @property
    def evictable(self) -> int:
        """Pods that may be evicted at most: whole units, and never of the minimum."""
        least, unit = self.job.min, self.state.unit
        units = (self.size - least) // unit
        return min(self.held - least, self.unit_remainder + units * unit)

    def evict(self, pod: Pod) -> None:
        """`pod` leaves, and with it, in the end, its whole unit."""
        self._journal.note(self._restore, pod, self.size, self.unit_remainder)
        if self.unit_remainder > 0:
            self.unit_remainder -= 1
        else:
            self.size -= self.state.unit
            self.unit_remainder = self.state.unit - 1
        self._remove(pod)

    def _restore(self, pod: Pod, size: int, remainder: int) -> None:
        self.removed.pop()
        self._alive(pod)[pod.key] = pod
        self.size, self.unit_remainder = size, remainder

    def promise(self, workers: int) -> None:
        """So many waiting workers of its minimum have room, or have not if negative."""
        self.promised += workers
        self._journal.note(self._unpromise, workers)

    def _unpromise(self, workers: int) -> None:
        self.promised -= workers

    def _alive(self, pod: Pod) -> dict[str, Pod]:
        """`bound` or `unbound`, whichever the pod belongs to, to be changed."""
        if self.bound is self.state.by_role.bound:
            # Until now they were the state's own.
            self.bound, self.unbound = dict(self.bound), dict(self.unbound)
        return self.unbound if pod.node is None else self.bound

    def _remove(self, pod: Pod) -> None:
        del self._alive(pod)[pod.key]
        self.removed.append(pod)

    def give(self, pods: Iterable[Pod], taker: str) -> None:
        """These pods, all bound, leave for another job's growth; whole units."""
        for pod in pods:
            self.size -= 1
            self._remove(pod)
        self.reason = Reason.REBALANCED
        self.served[taker] = None

    def drop(self, count: int, first: Iterable[Pod] = ()) -> list[Pod]:
        """Choose `count` pods to leave, `first` and then who costs least; fewer if fewer exist.

        Absent pods have been counted already: `size` is what it will be. The caller moves the
        room of those that have a node.
        """
        keys = {pod.key for pod in first}
        pods = [*self.bound.values(), *self.unbound.values()]
        chosen = eviction_order(pods, worker_0=self.goes_on_without_first)
        chosen = sorted(chosen, key=lambda pod: pod.key not in keys)[:count]
        for pod in chosen:
            self._remove(pod)
        return chosen

    def move(self, pods: Iterable[Pod]) -> None:
        """These pods, all bound, leave their node; others come in their place."""
        for pod in pods:
            del self._alive(pod)[pod.key]
            self.moved.append(pod)

    def size_without(self, pods: int) -> int:
        """The size to give up so many unplaced surplus pods: whole units. From a job that is to be
        left alone nothing that has a place goes with them, even if that leaves half a unit."""
        size = self.state.floor(self.size - pods)
        if not self.state.movable:
            placed, unit = len(self.bound) + self.job.succeeded, self.state.unit
            if self.leader_pending and not self.blocked:
                placed += 1  # worker 0 comes back among those that stay
            size = max(size, min(self.size, -(-placed // unit) * unit))
        return size

    def successors(self) -> tuple[str, ...]:
        """Keys of the pods that hold the minimum from now on, since protected ones leave."""
        if not any(pod.protected for pod in self.removed):
            return ()
        short = max(0, self.job.min - sum([pod.protected for pod in self.bound.values()]))
        others = [pod for pod in self.bound.values() if not pod.protected]
        others.sort(key=lambda pod: (not pod.running, pod.index, pod.key))
        return tuple(pod.key for pod in others[:short])


class Draft:
    """All that one plan may change; jobs are drafted as they are asked for."""

    def __init__(self, cluster: ClusterState, now: datetime) -> None:
        self.cluster, self.now = cluster, now
        self.journal = Journal()
        self.nodes = NodeRoom(cluster, now, self.journal)
        self.queues = QueueRoom(cluster, self.journal)
        self.quotas = QuotaRoom(cluster, self.nodes, self.journal)
        self.at_end: list[Callable[[], None]] = [self.journal.close]
        """Forget what refers back to the draft: else it lives until garbage is looked for."""
        self.jobs: dict[str, JobDraft] = {}
        self.unsettled = [self.job(key) for key in cluster.unsettled]
        """Only these, and who has not started, can have a claim; only these need corrections."""

    def job(self, key: str) -> JobDraft:
        """Return the draft of one job, the same at each call; KeyError for an unknown key."""
        found = self.jobs.get(key)
        if found is None:
            found = self.jobs[key] = JobDraft(self.cluster.jobs[key], self.journal)
        return found

    def release(self, job: JobDraft, pods: Iterable[Pod], *, reclaimed: bool = False) -> None:
        """These pods of the job, already dropped, hold no room of its queue any more; that of their
        nodes is releasing, and has been counted as reclaimable before if `reclaimed`."""
        for pod in pods:
            self.quotas.leave(job.state)
            if pod.node is not None:
                self.queues.use(job.job.queue, job.state.shape.vector, -1)
                n = self.nodes.index(pod.node)
                if n is not None:
                    self.nodes.leave(n, job.state.shape.vector, reclaimed=reclaimed)

    def lower(
        self, job: JobDraft, size: int, reason: Reason, first: Iterable[Pod] = ()
    ) -> list[Pod]:
        """Set a smaller size; the pods beyond it, whose room is released."""
        job.size, job.reason = size, job.reason or reason
        gone = job.drop(max(0, job.existing - size), first)
        self.release(job, gone)
        return gone

    def may_grow(self, state: JobState, room: Room) -> Limit:
        """Return how many more units of the job its queue and its namespace have room for."""
        limit = self.queues.may_grow(state.job.queue, state.unit_vector)
        times = self.quotas.fits_often(state.namespace, state.counted, room) // state.unit
        return Limit(times, Reason.QUOTA_FULL) if times < limit.times else limit

    def free_places(self, job: JobDraft, places: list[int]) -> None:
        """Take back room that waiting workers of the job have been given."""
        vector = job.state.shape.vector
        for n in places:
            self.nodes.take(n, vector, -1)
        self.queues.use(job.job.queue, vector, -len(places))

    def nodes_of(self, job: JobDraft) -> list[int]:
        """Numbers of the nodes that pods of the job were on."""
        return [n for name in job.state.nodes if (n := self.nodes.index(name)) is not None]
