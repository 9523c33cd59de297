"""Room for pods that wait and are nobody's claim; surplus that finds none is given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from volcano_elastic.queue_policy.claims import Claim
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.departure import leave
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.patience import Patience
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing


class Reserve:
    def __init__(
        self,
        nodes: NodeRoom,
        queues: QueueRoom,
        restless: Sequence[Standing],
        patience: Patience,
    ) -> None:
        """`restless`: only these can have surplus that waits."""
        self._nodes, self._queues, self._patience = nodes, queues, patience
        self._restless = restless
        self.kept_idle: set[str] = set()
        """`pod KEY` of others' pods that wait though there is idle room for them."""

    def keep_for(self, shape: Shape, key: str, queue: str | None) -> None:
        """Keep room for another's pod, unless its queue is full, or it had room and did not take
        it: nobody may wait for ever for a pod that something we don't model keeps away."""
        if queue is not None and self._queues.closed(queue) is not None:
            return
        if queue is not None and not self._queues.fits_often(queue, shape.vector):
            return
        known = f"pod {key}"
        if self._patience.set_aside(known) is not None:
            return
        idle = bool(self._nodes.place(shape, 1, Room.IDLE))
        if idle:
            self.kept_idle.add(known)
        if (idle or self._nodes.place(shape, 1, Room.COMING)) and queue is not None:
            self._queues.use(queue, shape.vector)

    def give_up_units(self, asking: Iterable[Claim]) -> None:
        """Before any of the claims is served: whole units of which a worker neither exists nor
        would find a place even if no claim were served. What else is left of such a unit is room
        for claims, which need not ask others' surplus for it."""
        if not any(s.unit > 1 and s.absent for s in self._restless):
            return
        mine = [claim for claim in asking if claim.standing is not None]
        for claim in mine:
            assert claim.standing is not None
            claim.standing.promised = claim.workers
        reserved: list[tuple[Standing, list[int]]] = []
        for standing in self._waiting():
            places = self._place(standing)
            reserved.append((standing, places))
            if standing.unit > 1:
                self._give_up_unplaced(standing, len(places), ())
        for standing, places in reserved:
            self._free(standing, places)
        for claim in mine:
            assert claim.standing is not None
            claim.standing.promised = 0

    def surplus(self, served: Sequence[Claim], retry: bool) -> bool:
        """Room for surplus that waits, now that these claims are served. False if pods with a node
        left for want of it and `retry`, so that blocked claims may start after all; then nothing
        is reserved."""
        reserved: list[tuple[Standing, list[int]]] = []
        for standing in self._waiting():
            if standing.blocked:
                gone = self._give_up_blocked(standing)
            else:
                places = self._place(standing)
                gone = self._give_up_unplaced(standing, len(places), served)
                # With a unit go those of its workers that had a place.
                keep = standing.waiting_surplus
                self._free(standing, places[keep:])
                reserved.append((standing, places[:keep]))
            if retry and any(pod.node is not None for pod in gone):
                for other, found in reserved:
                    self._free(other, found)
                return False
        return True

    def _waiting(self) -> list[Standing]:
        return sorted(
            (s for s in self._restless if s.waiting_surplus),
            key=lambda s: (
                # Last, since others may yet free what they need.
                s.blocked,
                [-amount for amount in s.shape.vector],
                # Who may go to few nodes first: the others have more to choose from.
                len(self._nodes.eligible(s.shape)),
                s.job.created.timestamp(),
                s.job.key,
            ),
        )

    def _place(self, standing: Standing) -> list[int]:
        """Reserve room for the surplus that waits; the nodes, one for each that has a place."""
        job, vector = standing.job, standing.shape.vector
        count = standing.waiting_surplus
        count = min(count, self._queues.fits_often(job.queue, vector))
        if self._queues.closed(job.queue) is not None:
            count = 0
        placed = self._nodes.place(standing.shape, count, Room.COMING)
        self._queues.use(job.queue, vector, len(placed))
        return placed

    def _free(self, standing: Standing, places: list[int]) -> None:
        for n in places:
            self._nodes.give_back(n, standing.shape.vector)
        self._queues.use(standing.job.queue, standing.shape.vector, -len(places))

    def _give_up_blocked(self, standing: Standing) -> list[Pod]:
        """Surplus of a job that cannot start finds no place either, however young it is."""
        size = standing.without(min(standing.size, standing.held + standing.headless))
        if size >= standing.size:
            return []
        return self._lower(standing, size, Reason.SURPLUS_UNPLACED)

    def _give_up_unplaced(
        self, standing: Standing, placed: int, served: Sequence[Claim]
    ) -> list[Pod]:
        """The pods that leave because some of the job's surplus has no place."""
        without = standing.waiting_surplus - placed
        own = standing.job.key
        if len(served) > 1 or any(claim.key != own for claim in served):
            # Whatever is in the way is a minimum: nobody may compete with it for a place.
            hopeless, reason = without, Reason.SHRUNK_FOR_MINIMUM
        else:
            # Pods that exist get their 30 s; those that don't (evicted, say) are not made again.
            hopeless, reason = min(without, standing.absent_surplus), Reason.SURPLUS_UNPLACED
        size = standing.without(standing.size - hopeless)
        if size == standing.size:
            return []
        if reason is Reason.SHRUNK_FOR_MINIMUM:
            standing.served.update((claim.key, None) for claim in served if claim.key != own)
        return self._lower(standing, size, reason)

    def _lower(self, standing: Standing, size: int, reason: Reason) -> list[Pod]:
        gone = standing.lower(size, reason)
        leave(standing, gone, self._nodes, self._queues)
        return gone
