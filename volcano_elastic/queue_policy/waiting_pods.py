"""Room for pods that wait and are nobody's claim; surplus that finds none is given up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.fit import Shape
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.backoff import Backoff
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.snapshot.snapshot import Pod


class WaitingPods:
    """Keeps room for pods that wait unclaimed, and gives up surplus that finds no place."""

    def __init__(self, draft: Draft, backoff: Backoff) -> None:
        self._draft, self._backoff = draft, backoff
        self._nodes, self._queues = draft.nodes, draft.queues
        self.kept_idle: set[str] = set()
        """`pod KEY` of others' pods that wait though there is idle room for them."""

    def keep_for_others(self) -> None:
        """Keep room for others' pods."""
        cluster = self._draft.cluster
        found = [
            (cluster.dimensions.shape_of(pod), pod.key, one.gang)
            for one in cluster.gangs.values()
            for pod in one.pending
        ]
        for shape, key, gang in sorted(found, key=lambda f: (f[0].vector, f[1]), reverse=True):
            self._keep_for(shape, f"pod {key}", None if gang is None else gang.queue)

    def _keep_for(self, shape: Shape, known: str, queue: str | None) -> None:
        """Not if its queue is full, nor if it had room and did not take it: nobody may wait for
        ever for a pod that something we don't model keeps away."""
        if queue is not None and (
            self._queues.tree.closed(queue) is not None
            or not self._queues.fits_often(queue, shape.vector)
        ):
            return
        if self._backoff.set_aside(known) is not None:
            return
        idle = bool(self._nodes.place(shape, 1, Room.IDLE))
        if idle:
            self.kept_idle.add(known)
        if (idle or self._nodes.place(shape, 1, Room.RELEASING)) and queue is not None:
            self._queues.use(queue, shape.vector)

    def give_up_units(self, asking: Iterable[Claim]) -> None:
        """Before any of the claims is served: whole units of which a worker neither exists nor
        would find a place even if no claim were served. The rest of such a unit is room for
        claims, which need not ask others' surplus for it."""
        if not any(job.state.unit > 1 and job.absent for job in self._draft.unsettled):
            return
        workers = {claim.key: claim.workers for claim in asking if claim.job is not None}
        for key, count in workers.items():
            self._draft.job(key).promised = count
        reserved: list[tuple[JobDraft, list[int]]] = []
        for job in self._waiting():
            places = self._place(job)
            reserved.append((job, places))
            if job.state.unit > 1:
                self._give_up_unplaced(job, len(places), {})
        for job, places in reserved:
            self._draft.free_places(job, places)
        for key in workers:
            self._draft.job(key).promised = 0

    def surplus(self, served: Mapping[str, Claim], retry: bool) -> bool:
        """Reserve room for waiting surplus, now that these claims are served. Return False, and
        reserve nothing, if placed pods left for it and `retry`: blocked claims may start now."""
        reserved: list[tuple[JobDraft, list[int]]] = []
        for job in self._waiting():
            if job.blocked:
                gone = self._give_up_blocked(job)
            else:
                places = self._place(job)
                gone = self._give_up_unplaced(job, len(places), served)
                # With a unit go those of its workers that had a place.
                keep = job.waiting_surplus
                self._draft.free_places(job, places[keep:])
                reserved.append((job, places[:keep]))
            if retry and any(pod.node is not None for pod in gone):
                for other, found in reserved:
                    self._draft.free_places(other, found)
                return False
        return True

    def _waiting(self) -> list[JobDraft]:
        return sorted(
            (job for job in self._draft.unsettled if job.waiting_surplus),
            key=lambda job: (
                # Last, since others may yet free what they need.
                job.blocked,
                [-amount for amount in job.state.shape.vector],
                # Who may go to few nodes first: the others have more to choose from.
                len(self._draft.cluster.eligible(job.state.shape)),
                job.job.created.timestamp(),
                job.job.key,
            ),
        )

    def _place(self, job: JobDraft) -> list[int]:
        """Reserve room for the surplus that waits; the nodes, one for each that has a place."""
        queue, shape = job.job.queue, job.state.shape
        count = min(job.waiting_surplus, self._queues.fits_often(queue, shape.vector))
        if self._queues.tree.closed(queue) is not None:
            count = 0
        placed = self._nodes.place(shape, count, Room.RELEASING)
        # The others exist, and are counted already.
        self._draft.quotas.use(job.state.namespace, job.state.counted, job.absent_surplus)
        self._queues.use(queue, shape.vector, len(placed))
        return placed

    def _give_up_blocked(self, job: JobDraft) -> list[Pod]:
        """Surplus of a job that cannot start finds no place either, however young it is."""
        size = job.size_without(max(0, job.size - job.held - job.runs_without_leader))
        if size >= job.size:
            return []
        return self._draft.lower(job, size, Reason.SURPLUS_UNPLACED)

    def _give_up_unplaced(
        self, job: JobDraft, placed: int, served: Mapping[str, Claim]
    ) -> list[Pod]:
        """The pods that leave because some of the job's surplus has no place."""
        without = job.waiting_surplus - placed
        others = [
            key
            for key, claim in served.items()
            if key != job.job.key and job.state.gives_way(claim.priority)
        ]
        if others:
            # Whatever is in the way goes first: nobody may compete with it for a place.
            unplaceable, reason = without, Reason.SHRUNK_FOR_MINIMUM
        else:
            # Pods that exist get their 30 s; those that don't (evicted, say) are not made again.
            unplaceable, reason = min(without, job.absent_surplus), Reason.SURPLUS_UNPLACED
        size = job.size_without(unplaceable)
        if size == job.size:
            return []
        if others:
            job.served.update(dict.fromkeys(others))
        return self._draft.lower(job, size, reason)
