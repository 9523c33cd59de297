"""The cheapest surplus pods whose leaving makes room: one search over all nodes.

An option is a smallest set of pods of one node that makes room there for one pod more. Nodes are
ordered by what their options cost at least, which follows from how many pods must leave there and
whose they are at best; only for those in front the option itself is looked for. What is known of a
node's surplus before the plan is kept with the node; pods that leave only make it less.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from operator import add
from typing import NamedTuple

from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.fit import Shape, Vector
from volcano_elastic.cluster_state.job_pods import FirstVictim
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.cluster_state.node_state import NOBODY, slots_in
from volcano_elastic.cluster_state.queue_state import QueueState
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.queue_policy.option import (
    OWN,
    BestFirst,
    Cost,
    Costs,
    Option,
    Victim,
    VictimRequest,
)
from volcano_elastic.queue_policy.queue_room import Full
from volcano_elastic.snapshot.snapshot import Pod

RIGHT = Cost._fields.index("right")
"""Where costs begin to tell a claim's own queue from others."""
FEW = 128
"""Nodes that all claims of a queue may look at; their surplus is counted at once."""
GLANCE = 16
"""Nodes that tell most of the time whether surplus could be enough."""


class _Candidates(NamedTuple):
    """The nodes that may have an option for one request."""

    places: Collection[int] | None
    """None: all nodes."""
    cheapest: BestFirst[int]
    seen: list[int]
    """How much of the log of cheaper nodes it has seen."""


class VictimSearch:
    """Finds the cheapest pods to leave for a request, node by node."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._nodes, self._queues = draft, draft.nodes, draft.queues
        self.protected_until: datetime | None = None
        """When the first pod that is still too young to be taken may be."""
        self._candidates: dict[VictimRequest, _Candidates] = {}
        draft.at_end.append(self._candidates.clear)
        self._cheaper: list[int] = []
        """Nodes whose options may have become cheaper, one after the other."""
        self._seen_nodes = self._seen_queues = 0
        self._cheaper_than: dict[tuple[object, ...], frozenset[str]] = {}
        """Queues that may have a pod of less than a cost for a shape, to which none is added."""
        self._at_first: dict[frozenset[str] | None, frozenset[str]] = {}
        """By those that are left: as many as there were, whose nodes are ordered once for all."""
        self._first_victims: dict[str, list[FirstVictim]] = {}
        """Those of each queue's jobs, as a heap: bounds, or of before a change of the plan."""
        draft.at_end.append(self._first_victims.clear)
        self._protects = any(p.shrink.protect for p in draft.cluster.policies.values())
        self._costs = Costs(draft.queues)
        self._any_right = any(map(self._queues.entitled, self._queues.tree.queues))

    # What there is

    def might_fit(self, shape: Shape, count: int) -> bool:
        """Return whether so many pods of a shape might fit if all surplus left, some not yet."""
        left, cluster = count, self._draft.cluster
        if not cluster.gives:
            return False
        places = cluster.eligible(shape)
        for n in places[:GLANCE] if len(places) > FEW else ():
            room = map(add, self._nodes.left(n), self._nodes.states[n].surplus_total)
            left -= slots_in(tuple(room), shape)
            if left <= 0:
                return True
        return self._nodes.slots(shape, Room.RECLAIMABLE).total() >= count

    def _nodes_of(self, queues: Iterable[str]) -> frozenset[int]:
        return frozenset().union(*map(self._draft.cluster.giver_nodes, queues))

    def leavers(self, job: JobDraft, pods: Iterable[Pod], protected: bool) -> Iterator[Pod]:
        """Those of the job's pods that may leave, in order; `protected` too, or not."""
        protects = job.state.policy.shrink.protect
        for pod in pods:
            if pod.key in job.bound and (protected or not pod.protected):
                if protects and self._too_young(pod, job):
                    continue
                yield pod

    def _too_young(self, pod: Pod, job: JobDraft) -> bool:
        """Return whether protectSeconds since its creation last on; cdp counts from its start."""
        if pod.created is None:
            return False
        until = pod.created + job.state.policy.shrink.protect
        if until <= self._draft.now:
            return False
        self.protected_until = min(until, self.protected_until or until)
        return True

    def gives(self, job: JobDraft, queue: str, besides: Iterable[Victim] = ()) -> bool:
        """Return whether the job may lose one pod more for a claim of `queue`, besides these."""
        if not job.state.movable:
            return False
        cost, owner = job.eviction_cost(), job.job.queue
        if not cost or owner == queue:
            # For what leaves anyway nobody has to be asked.
            return cost is not None
        # With the rest of its unit.
        given = [amount * cost for amount in job.state.shape.vector]
        for other in besides:
            if other.job.job.queue == owner:
                given = list(map(add, given, other.vector))
        return self._queues.may_take(owner, given)

    # The search

    def best(self, request: VictimRequest, need: int) -> Option | None:
        """The cheapest option for one of `need` slots."""
        found = self._first(request)
        if found is not None and found.slots > need:
            # It frees more than the claim can use, and is dearer than it looks: all are compared by
            # what is of use to it. Most of the time the first is the answer, whatever the need.
            found = self._first(request._replace(need=need))
        return found

    def _note_cheaper(self) -> None:
        changes, grown = self._nodes.changes, self._queues.grown
        self._cheaper += changes[self._seen_nodes :]
        for queue in set(grown[self._seen_queues :]):
            # What a queue holds has grown, and with it the right of others to its surplus.
            if self._queues.entitled(queue):
                self._cheaper += self._draft.cluster.giver_nodes(queue)
        self._seen_nodes, self._seen_queues = len(changes), len(grown)

    def _first(self, request: VictimRequest) -> Option | None:
        own = self._at_once(request)
        among = None if own is None else self._cheaper_queues(own.cost, request)
        if own is not None and among is not None:
            # Other pods of its own queue cost no less, nor do they together with others'.
            if among <= {request.queue}:
                return own
            others = self._cheapest_first(request._replace(queue=NOBODY, among=among))
            if others.first(below=own.cost[:RIGHT]) is None:
                return own
            among -= {request.queue}
        mine = self._cheapest_first(request._replace(among=among))
        found = mine.first(below=None if own is None else own.cost) or own
        if not self._apart(request):
            return found
        if found is not None and among is None:
            among = self._cheaper_queues(found.cost, request)
            if not among:
                return found
        # Where its queue has no surplus, all claims see the same.
        others = self._cheapest_first(request._replace(queue=NOBODY, among=among))
        nodes = self._draft.cluster.giver_nodes(request.queue)
        return others.first(but=nodes, below=None if found is None else found.cost) or found

    def _at_once(self, request: VictimRequest) -> Option | None:
        """The option of that job of the claim's queue which gives first, if none of the queue can
        cost less: then its nodes need not be compared. Mostly that is so."""
        cluster, shape = self._draft.cluster, request.shape
        queue = cluster.queues.get(request.queue)
        # Whoever looks at fewer pods would not see all that are still too young.
        if queue is None or request.own or request.within or self._protects:
            return None
        first = self._first_victim(queue)
        if first is None or (first.protected and not request.protected):
            return None
        job, n = self._draft.job(first.job), self._nodes.index(first.node)
        if n is None or cluster.idle_slots(shape)[n] < 0:
            return None
        left, state, need = self._nodes.left(n), job.state, request.need
        won = slots_in(tuple(map(add, left, state.shape.vector)), shape) - slots_in(left, shape)
        if won <= 0 or not state.gives_way(request.priority):
            return None
        count, won = 0 if job.unit_remainder else state.unit, min(need, won)
        per_slot, least = count / won, queue.least_cost(shape, need)
        if per_slot != least[0] or count != least[1]:
            return None
        protected, running, surplus, last, _, pod, _ = first
        cost = Cost(per_slot, count, protected, running, OWN.right, OWN.share, surplus, last)
        return Option(cost, pod, (Victim(job.bound[pod], job, n),), won)

    def _first_victim(self, queue: QueueState) -> FirstVictim | None:
        """The pod of the queue's jobs that leaves first as they are now."""
        heap = self._first_victims.get(queue.name)
        if heap is None:
            heap = self._first_victims[queue.name] = list(queue.first_victims)
        while heap:
            first, key = heap[0], heap[0].job
            job = self._draft.jobs.get(key)
            if job is None:
                now = self._draft.cluster.jobs[key].first_victim
            else:
                # Once that pod has left a bound will do until the job stands in front again.
                now = job.first_victim(first if first.pod and first.pod not in job.bound else None)
            if now == first:
                return first
            if now is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, now)
        return None

    def _cheaper_queues(self, cost: Cost, request: VictimRequest) -> frozenset[str]:
        """Queues of which a pod might leave for another's claim at less than this."""
        shape, need, cluster = request.shape, request.need, self._draft.cluster
        asked, found = (cost[:5], shape, need), frozenset[str]()
        if asked not in self._cheaper_than:
            for least, names in cluster.least_surplus.items():
                if (*least.least_cost(shape, need), 1) <= cost[:5]:
                    found = found.union(names)
            self._cheaper_than[asked] = found
        among = self._cheaper_than[asked]
        if among:
            # Mostly the few pods that cost less have left by now.
            found = self._at_first.get(among, among)
            for queue in map(cluster.queues.__getitem__, among):
                first, lowest = self._first_victim(queue), queue.least_cost(shape, need)[:2]
                if first is None or (*lowest, first.protected, first.running, 1) > cost[:5]:
                    among -= {queue.name}
            self._cheaper_than[asked], self._at_first[among] = among, found
        return among

    def _cheapest_first(self, request: VictimRequest) -> BestFirst[int]:
        """The nodes that may have an option for the request."""
        self._note_cheaper()
        request = request._replace(among=self._at_first.get(request.among, request.among))
        candidates, cheaper = self._candidates.get(request), self._cheaper
        if candidates is None:
            places = self._places(request)
            eligible = self._draft.cluster.eligible(request.shape)
            cheapest = BestFirst(
                eligible if places is None else sorted(places.intersection(eligible)),
                lambda n: self._least(n, request),
                lambda n: self.option(n, request),
            )
            candidates = self._candidates[request] = _Candidates(places, cheapest, [len(cheaper)])
        elif candidates.seen[0] < len(cheaper):
            news = dict.fromkeys(cheaper[candidates.seen[0] :])
            within, idle = candidates.places, self._draft.cluster.idle_slots(request.shape)
            candidates.cheapest.enter(
                n for n in news if (within is None or n in within) and idle[n] >= 0
            )
            candidates.seen[0] = len(cheaper)
        return candidates.cheapest

    def _places(self, request: VictimRequest) -> frozenset[int] | None:
        if request.own is not None:
            return frozenset(self._draft.nodes_of(self._draft.job(request.own)))
        if request.within is not None:
            tree, queues = self._queues.tree, self._draft.cluster.queues
            return self._nodes_of(name for name in queues if tree.within(name, request.within))
        mine = self._draft.cluster.giver_nodes(request.queue) if self._apart(request) else None
        if request.among is None:
            return mine
        among = self._nodes_of(request.among)
        return among if mine is None else among & mine

    def _apart(self, request: VictimRequest) -> bool:
        """Return whether nodes with surplus of the claim's queue are searched apart from others; it
        may as well see all where nodes are few, or most are its queue's."""
        nodes, asks = len(self._nodes.states), request.queue != NOBODY
        asks = asks and request.own is None and request.within is None and nodes > FEW
        return asks and 2 * len(self._draft.cluster.giver_nodes(request.queue)) <= nodes

    def _least(self, n: int, request: VictimRequest) -> Cost | None:
        """Return a cost that node n's option does not go below; None if it has no option."""
        state = self._nodes.states[n]
        here = state.surplus
        if here is None:
            return None
        asked = request.shape, request.queue, request.protected
        if n in self._nodes.changed or state.terminating:
            found = here.least(self._nodes.left(n), *asked)
        else:
            found = state.least_option(*asked)
        if found is None:
            return None
        right, share = OWN
        if not found.own:
            right = 1
            if self._any_right:
                rights = [self._costs.right(*each) for each in here.queues]
                right, share = min([r.right for r in rights]), min([r.share for r in rights])
        count = found.pods
        if here.units and any(self._draft.job(state.job.key).unit_remainder for state in here.jobs):
            count = 0
        per_slot = count / min(request.need, found.slots)
        surplus, last = found.surplus, found.last
        return Cost(per_slot, count, found.protected, found.running, right, share, surplus, last)

    def option(self, n: int, request: VictimRequest) -> Option | None:
        """The best smallest set of node n's surplus that makes room for one more such pod."""
        shape, left = request.shape, self._nodes.left(n)
        slots = slots_in(left, shape)
        lack = [((slots + 1) * amount - left[i], i) for i, amount in shape.needs]
        lack = [(amount, i) for amount, i in lack if amount > 0]
        leavers = self._leavers_on(n, request)
        # Pods of a job are alike: only the first need be looked at.
        first = [Victim(pod, job, n) for job, pods in leavers for pod in islice(pods, 1)]
        enough = [(one,) for one in first if all(one.vector[i] >= amount for amount, i in lack)]
        found: Iterable[tuple[Victim, ...]] = enough
        if not enough:
            chosen = self._gathered(first, dict(leavers), lack, request.queue)
            found = () if chosen is None else (tuple(chosen),)
        options = [
            self._costs.option(victims, request.queue, self._useful(left, victims, request, slots))
            for victims in found
        ]
        return min(options, default=None)

    def _leavers_on(self, n: int, request: VictimRequest) -> list[tuple[JobDraft, Iterator[Pod]]]:
        """Jobs on node n that may give for the request, and their pods there in order."""
        state, within = self._nodes.states[n], request.within
        found: list[tuple[JobDraft, Iterator[Pod]]] = []
        for owner in state.surplus.jobs if state.surplus else ():
            if request.own not in (None, owner.job.key) or not owner.gives_way(request.priority):
                continue
            if within is not None and not self._queues.tree.within(owner.job.queue, within):
                continue
            job = self._draft.job(owner.job.key)
            if self.gives(job, request.queue):
                pods = state.workers(owner.job.key)
                found.append((job, self.leavers(job, pods, request.protected)))
        return found

    def _gathered(
        self,
        first: Iterable[Victim],
        leavers: Mapping[JobDraft, Iterator[Pod]],
        lack: Iterable[tuple[int, int]],
        queue: str,
    ) -> list[Victim] | None:
        """Victims that together free what is lacking, as (amount, dimension); None if they can't.

        Those that help most first, and of equal ones the cheapest.
        """
        by_size: defaultdict[Vector, list[Option]] = defaultdict(list)
        for victim in first:
            heapq.heappush(by_size[victim.vector], self._costs.option((victim,), queue))
        lacking = {i: amount for amount, i in lack}
        chosen: list[Victim] = []
        quota: dict[JobDraft, int] = {}
        while any(amount > 0 for amount in lacking.values()):
            found = [
                (-sum(min(size[i], a) / a for i, a in lacking.items() if a > 0), heap[0], heap)
                for size, heap in by_size.items()
                if heap
            ]
            if not found:
                return None
            helps, _, heap = min(found)
            if not helps:
                return None
            [victim] = heapq.heappop(heap).victims
            job = victim.job
            left = quota.setdefault(job, job.evictable)
            if not left or not self.gives(job, queue, chosen):
                continue
            quota[job] = left - 1
            chosen.append(victim)
            for pod in islice(leavers[job], 1):
                after = Victim(pod, job, victim.node)
                heapq.heappush(heap, self._costs.option((after,), queue))
            for i in lacking:
                lacking[i] -= victim.vector[i]
        for victim in list(chosen):
            if all(amount + victim.vector[i] <= 0 for i, amount in lacking.items()):
                chosen.remove(victim)
                for i in lacking:
                    lacking[i] += victim.vector[i]
        return chosen

    @staticmethod
    def _useful(left: Vector, victims: Iterable[Victim], request: VictimRequest, slots: int) -> int:
        """Return how many slots of those asked for these make, besides those there are."""
        for victim in victims:
            left = tuple(map(add, left, victim.vector))
        return max(1, min(request.need, slots_in(left, request.shape) - slots))

    def easing(
        self, full: Full, jobs: Iterable[JobState], claim: Claim, protected: bool
    ) -> BestFirst[str]:
        """Jobs in what is full, by the cheapest pod, wherever it is, whose leaving makes some room
        there for a claim. Of use until something else than such pods leaves."""

        def look(key: str) -> Option | None:
            job = self._draft.job(key)
            if self.gives(job, claim.queue):
                for pod in self.leavers(job, job.leavers(), protected):
                    n = self._nodes.index(pod.node)
                    if n is not None:
                        return self._costs.option((Victim(pod, job, n),), claim.queue)
            return None

        keys = [
            state.job.key
            for state in jobs
            if state.may_give and state.gives_way(claim.priority) and full.eased(state.shape.vector)
        ]
        return BestFirst(keys, lambda key: (option := look(key)) and option.cost, look)

    def evict(self, victims: Iterable[Victim]) -> None:
        """These pods leave for a claim."""
        for pod, job, n in victims:
            vector, free = job.state.shape.vector, job.unit_remainder > 0
            job.evict(pod)
            self._nodes.leave(n, vector, reclaimed=True)
            self._draft.quotas.leave(job.state)
            self._queues.use(job.job.queue, vector, -1)
            if not free and job.unit_remainder:
                # The rest of the unit now leaves for nothing, wherever it is.
                self._cheaper += self._draft.nodes_of(job)

    def may_give_again(self, job: JobDraft) -> None:
        """The job has been promised workers, and may have surplus that it had not before."""
        first = job.state.first_victim
        if first is not None:
            self._cheaper += self._draft.nodes_of(job)
            self._cheaper_than.clear()
            # A heap that is made later has it.
            heapq.heappush(self._first_victims.get(job.job.queue, []), first)

    def undo(self, mark: int) -> None:
        """Take back what a failed attempt has done since `mark`."""
        self._draft.journal.rollback(mark)
        # Options that had become dearer are as cheap as before, wherever they are.
        for known in (self._candidates, self._first_victims, self._cheaper_than):
            known.clear()
