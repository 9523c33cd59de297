"""Surplus pods that may be asked to leave, and the cheapest set that makes room on a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import add

from volcano_elastic.queue_policy.queue_room import Full, QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.victim import Ask, Option, Victim


@dataclass(slots=True)
class Lot:
    """Of one job on one node, the pods that may leave."""

    standing: Standing
    pods: list[Pod]
    sorted: bool = False

    def leavers(self, protected: bool) -> Iterator[Pod]:
        """Those that this plan has not removed, who costs least first; `protected` too, or not."""
        if not self.sorted:
            self.pods.sort(key=lambda pod: (pod.protected, pod.running, -pod.index, pod.key))
            self.sorted = True
        bound = self.standing.bound
        return (pod for pod in self.pods if pod.key in bound and (protected or not pod.protected))


class Surplus:
    """All bound pods that may be asked to leave, and the search among those of a node."""

    def __init__(
        self,
        nodes: NodeRoom,
        queues: QueueRoom,
        standings: Mapping[str, Standing],
        now: datetime,
    ) -> None:
        self._nodes, self._queues, self._standings, self._now = nodes, queues, standings, now
        self.protected_until: datetime | None = None
        """When the first pod that is still too young to be taken may be."""
        self.on_node: dict[int, dict[str, Lot]] = {}
        """By the job's key."""
        self.nodes_of: dict[str, list[int]] = {}
        """Of each job's surplus, by its key."""
        self.nodes_in: dict[str, set[int]] = {}
        """Of each queue's."""
        self._gathered = False

    def gather(self, chosen: Iterable[Victim] = ()) -> None:
        """Only when a claim needs it: most of the time nobody has to leave.

        `chosen`: who leaves by an attempt that may still be undone, and then is surplus again.
        """
        if self._gathered:
            return
        self._gathered = True
        givers = {victim.standing.job.key for victim in chosen}
        for standing in self._standings.values():
            gives = standing.size - standing.unit >= standing.job.min
            if standing.movable and (gives or standing.job.key in givers):
                protects = bool(standing.policy.shrink.protect)
                self._add(
                    standing,
                    (
                        pod
                        for pod in standing.bound.values()
                        if pod.index != 0 and not (protects and self.too_young(pod, standing))
                    ),
                )
        self._nodes.expect(
            {
                n: tuple(
                    sum(column)
                    for column in zip(
                        *(
                            [amount * len(lot.pods) for amount in lot.standing.shape.vector]
                            for lot in lots.values()
                        ),
                        strict=True,
                    )
                )
                for n, lots in self.on_node.items()
            }
        )
        for victim in chosen:
            # Their room counts as coming already.
            self._add(victim.standing, (victim.pod,))

    def _add(self, standing: Standing, pods: Iterable[Pod]) -> None:
        on: dict[str | None, list[Pod]] = {}
        for pod in pods:
            on.setdefault(pod.node, []).append(pod)
        key, queue = standing.job.key, standing.job.queue
        for name, here in on.items():
            n = self._nodes.index(name)
            if n is None:
                continue
            lot = self.on_node.setdefault(n, {}).get(key)
            if lot is not None:
                lot.pods += here
                continue
            self.on_node[n][key] = Lot(standing, here)
            self.nodes_of.setdefault(key, []).append(n)
            self.nodes_in.setdefault(queue, set()).add(n)

    def too_young(self, pod: Pod, standing: Standing) -> bool:
        """As Volcano's cdp plugin, but from creation: `shrink.protectSeconds`."""
        protect = standing.policy.shrink.protect
        if not protect or pod.created is None:
            return False
        until = pod.created + protect
        if until <= self._now:
            return False
        self.protected_until = min(until, self.protected_until or until)
        return True

    def forget(self) -> None:
        """What could leave has changed in another way than by picking: gather it again."""
        self.on_node, self.nodes_of, self.nodes_in = {}, {}, {}
        self._gathered = False

    def nodes_within(self, queue: str) -> set[int]:
        """Of the surplus that counts in `queue`."""
        within = self._queues.within
        return set().union(*(at for name, at in self.nodes_in.items() if within(name, queue)))

    def any_of(self, full: Full, queue: str, protected: bool) -> Option | None:
        """The cheapest pod, wherever it is, whose leaving makes some room in the full queue for a
        claim of `queue`."""
        found = [
            self._option((Victim(pod, lot.standing, n),), queue)
            for n in self.nodes_within(full.queue)
            for lot in self.on_node[n].values()
            if self._queues.within(lot.standing.job.queue, full.queue)
            and full.eased(lot.standing.shape.vector)
            and self._gives(lot.standing, queue)
            # Of those on one node the first to leave is the cheapest.
            for pod in islice(lot.leavers(protected), 1)
        ]
        return min(found, key=lambda option: option.key, default=None)

    def _gives(self, standing: Standing, queue: str, besides: Iterable[Victim] = ()) -> bool:
        """Whether the job may lose one pod more for a claim of `queue`, besides these."""
        cost, owner = standing.cost(), standing.job.queue
        if not cost or owner == queue:
            # What leaves anyway, nobody has to be asked for.
            return cost is not None
        # With the rest of its unit.
        given = [amount * cost for amount in standing.shape.vector]
        for other in besides:
            if other.standing.job.queue == owner:
                given = list(map(add, given, other.vector))
        return self._queues.may_take(owner, given)

    def option(self, n: int, ask: Ask) -> Option | None:
        """The best smallest set of node n's surplus that makes room for one more such pod."""
        nodes, shape, queue, within = self._nodes, ask.shape, ask.queue, ask.within
        bases, taken = nodes.bases[Room.COMING][n], nodes.taken[n]
        free = {i: bases[i] - taken[i] for i, _ in shape.needs}
        slots = max(0, min((free[i] // amount for i, amount in shape.needs), default=0))
        lack = {i: (slots + 1) * amount - free[i] for i, amount in shape.needs}
        lack = {i: amount for i, amount in lack.items() if amount > 0}
        leavers: dict[str, Iterator[Pod]] = {}
        first: dict[str, Victim] = {}
        for job, lot in self.on_node.get(n, {}).items():
            standing = lot.standing
            if (
                ask.own in (None, job)
                and (within is None or self._queues.within(standing.job.queue, within))
                and self._gives(standing, queue)
            ):
                leavers[job] = lot.leavers(ask.protected)
                pod = next(leavers[job], None)
                if pod is not None:
                    first[job] = Victim(pod, standing, n)

        def offer(*victims: Victim) -> Option:
            have = dict(free)
            for victim in victims:
                for i in have:
                    have[i] += victim.vector[i]
            after = min((have[i] // amount for i, amount in shape.needs), default=0)
            return self._option(victims, queue, max(1, min(ask.need, after - slots)))

        single = [
            offer(victim)
            for victim in first.values()
            if all(victim.vector[i] >= amount for i, amount in lack.items())
        ]
        if single:
            return min(single, key=lambda option: option.key)
        # Of a job's pods, which are alike, only the first need be looked at.
        keys = {job: self._option((victim,), queue).key for job, victim in first.items()}
        quota = {job: victim.standing.quota for job, victim in first.items()}
        chosen: list[Victim] = []
        while any(amount > 0 for amount in lack.values()):
            helps = {
                vector: sum(min(vector[i], a) / a for i, a in lack.items() if a > 0)
                for vector in {victim.vector for victim in first.values()}
            }
            job = min(first, key=lambda j: (-helps[first[j].vector], keys[j]), default="")
            if not job or not helps[first[job].vector]:
                return None
            best = first.pop(job)
            if not (quota[job] and self._gives(best.standing, queue, chosen)):
                continue
            chosen.append(best)
            quota[job] -= 1
            pod = next(leavers[job], None)
            if pod is not None:
                first[job] = Victim(pod, best.standing, n)
                keys[job] = self._option((first[job],), queue).key
            lack = {i: amount - best.vector[i] for i, amount in lack.items()}
        for victim in list(chosen):
            if all(amount + victim.vector[i] <= 0 for i, amount in lack.items()):
                chosen.remove(victim)
                lack = {i: amount + victim.vector[i] for i, amount in lack.items()}
        return offer(*chosen)

    def _option(self, victims: tuple[Victim, ...], queue: str, slots: int = 1) -> Option:
        cost, queues = _cost(victims), self._queues
        jobs = {id(victim.standing): victim.standing for victim in victims}.values()
        others = {
            (standing.job.queue, standing.shape.vector)
            for standing in jobs
            if standing.job.queue != queue
        }
        spare, last = min((standing.spare, standing.job.key) for standing in jobs)
        of_last = [victim.pod for victim in victims if victim.standing.job.key == last]
        rank = (
            cost / slots,
            cost,
            sum(victim.pod.protected for victim in victims),
            sum(victim.pod.running for victim in victims),
            max((2 - queues.borrows(*other) for other in others), default=0),
            -max((queues.share(name) for name, _ in others), default=0.0),
            -spare,
            -max(pod.index for pod in of_last),
        )
        return Option((rank, min(pod.key for pod in of_last)), victims, slots)


def _cost(victims: Iterable[Victim]) -> int:
    """Pods that leave in the end if these are picked, whole units counted."""
    total = 0
    left: dict[str, int] = {}
    for victim in victims:
        key, unit = victim.standing.job.key, victim.standing.unit
        credit = left.get(key, victim.standing.credit)
        if credit:
            left[key] = credit - 1
        else:
            total += unit
            left[key] = unit - 1
    return total
