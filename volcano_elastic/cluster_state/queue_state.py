"""The jobs of one queue, as a frozen value: what they hold, ask for, and might give."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import add, attrgetter, sub
from typing import NamedTuple

from volcano_elastic.cluster_state.fact import fact, keep_facts, value
from volcano_elastic.cluster_state.fit import UNLIMITED, Shape, Vector
from volcano_elastic.cluster_state.job_pods import FirstVictim
from volcano_elastic.cluster_state.job_state import GrowthKey, JobState, LossKey
from volcano_elastic.cluster_state.reason import NoChange, Reason


class LeastSurplus(NamedTuple):
    """Bounds of what a queue's surplus frees, and of what that costs."""

    largest: Vector
    """The most that one worker asks for, by dimension; empty where no job might give."""
    cost: int
    """The least that one costs, in pods: of a unit the rest leaves anyway."""
    running: bool
    """All that have a node run."""

    def least_cost(self, shape: Shape, need: int) -> tuple[float, int, int, int]:
        """Return what no option of it goes below that makes room for up to `need` pods, in the
        first fields of its cost. One of several pods frees no more than the largest does."""
        largest = self.largest
        if not largest:
            return math.inf, 0, 0, 0
        slots = max([1 + (largest[i] - 1) // amount for i, amount in shape.needs], default=1)
        return self.cost / min(need, slots), self.cost, 0, int(self.running)


@value
class QueueState:
    """The jobs of one queue."""

    name: str
    jobs: tuple[JobState, ...]

    @fact
    def held(self) -> Vector:
        """Amounts that the pods of the jobs hold."""
        return tuple(map(sum, zip(*map(attrgetter("by_role.held"), self.jobs), strict=True)))

    def learn(self, before: QueueState, gone: Iterable[JobState], come: Iterable[JobState]) -> None:
        """Know what is as it was before these jobs went and came, and work out what they hold from
        what they held."""
        if "held" in before.__dict__:
            held = before.held
            for state in gone:
                held = tuple(map(sub, held, state.by_role.held))
            for state in come:
                held = tuple(map(add, held, state.by_role.held))
            self.__dict__["held"] = held
        if all(state.unstarted for state in (*gone, *come)):
            keep_facts(before, self, _OF_STARTED)
        if not any(state.job.excluded for state in (*gone, *come)):
            keep_facts(before, self, _OF_EXCLUDING)

    @fact
    def started(self) -> Sequence[JobState]:
        """Jobs of which something runs, has run or may have to be corrected."""
        # Most are settled, which is known of them anyway.
        return [state for state in self.jobs if state.settled or not state.unstarted]

    @fact
    def surplus(self) -> int:
        """Amount of the policy's resource that pods beyond minimums hold."""
        return sum([state.by_role.surplus for state in self.started])

    @fact
    def excluding(self) -> tuple[JobState, ...]:
        """Jobs that nodes have failed."""
        return tuple([s for s in self.jobs if s.job.excluded])

    @fact
    def growth(self) -> Mapping[Shape, Sequence[GrowthKey]]:
        """Settled jobs that may grow, by shape; each list is a heap."""
        found: defaultdict[Shape, list[GrowthKey]] = defaultdict(list)
        for state in self.started:
            key = state.growth_key
            if key is not None:
                found[state.shape].append(key)
        for keys in found.values():
            heapq.heapify(keys)
        return found

    @fact
    def losses(self) -> Sequence[LossKey]:
        """Settled jobs that may give for others' growth."""
        return [key for s in self.started if (key := s.loss_key) is not None]

    @fact
    def least_loss(self) -> float:
        """The smallest of their losses."""
        return min([key.loss for key in self.losses], default=math.inf)

    @fact
    def givers(self) -> Sequence[JobState]:
        """Jobs of which surplus might leave for a claim in some plan."""
        return [state for state in self.started if state.most_surplus is not None]

    @fact
    def yields_from(self) -> float:
        """The least priority of a pod that surplus of some job may leave for."""
        return min([state.yields_from for state in self.givers], default=math.inf)

    @fact
    def surplus_vectors(self) -> tuple[Vector, ...]:
        """Amounts that may leave for claims at most, by shape."""
        found: Counter[Vector] = Counter()
        for state in self.started:
            if state.surplus:
                found[state.shape.vector] += state.surplus
        return tuple([tuple([a * pods for a in vector]) for vector, pods in found.items()])

    @fact
    def giver_nodes(self) -> frozenset[str]:
        """Names of the nodes with pods of jobs that might give some."""
        return frozenset().union(*[state.nodes for state in self.givers])

    @fact
    def first_victims(self) -> Sequence[FirstVictim]:
        """A heap of the pods that leave first of each job that might give. Behind those in front
        are bounds without a pod: few pods are ever asked for."""
        by_key, running = {s.job.key: s for s in self.givers}, self.least_surplus.running
        heap = [
            FirstVictim(False, running, most.weighted, -UNLIMITED, "", "", key)
            for key, state in by_key.items()
            if (most := state.most_surplus) is not None
        ]
        heapq.heapify(heap)
        while heap and not heap[0].pod:
            first = by_key[heap[0].job].first_victim
            if first is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, first)
        return heap

    @fact
    def least_surplus(self) -> LeastSurplus:
        """Bounds of what their surplus frees and costs."""
        givers = self.givers
        if not givers:
            return LeastSurplus((), 0, False)
        largest = tuple(map(max, zip(*{state.shape.vector for state in givers}, strict=True)))
        single = all(state.unit == 1 for state in givers)
        bound = chain.from_iterable([state.by_role.bound.values() for state in givers])
        return LeastSurplus(largest, int(single), all(map(attrgetter("running"), bound)))

    @fact
    def _least_costs(self) -> dict[tuple[Shape, int], tuple[float, int, int, int]]:
        return {}

    def least_cost(self, shape: Shape, need: int) -> tuple[float, int, int, int]:
        """Return what `LeastSurplus.least_cost` does, worked out once."""
        found = self._least_costs.get((shape, need))
        if found is None:
            found = self._least_costs[shape, need] = self.least_surplus.least_cost(shape, need)
        return found

    @fact
    def kept_unasked(self) -> Mapping[str, NoChange]:
        """Reasons of jobs to keep their size while nobody waits."""
        return {s.job.key: s.kept.unasked for s in self.jobs if s.kept is not None}

    @fact
    def kept_asked(self) -> Mapping[str, NoChange]:
        """Reasons of jobs to keep their size while somebody waits."""
        return {s.job.key: s.kept.asked for s in self.jobs if s.kept is not None}

    @fact
    def roomless(self) -> Mapping[Shape, Sequence[str]]:
        """Keys of jobs that lack nothing but room to grow, by shape."""
        found: defaultdict[Shape, list[str]] = defaultdict(list)
        for state in self.started:
            if state.kept is not None and state.kept.asked.why_not_more is Reason.NO_ROOM:
                found[state.shape].append(state.job.key)
        return found

    @fact
    def cooling(self) -> Sequence[tuple[datetime, str]]:
        """Until when which of them cool down, the last first."""
        found = ((s.kept.ready, s.job.key) for s in self.started if s.kept is not None)
        return sorted([(ready, key) for ready, key in found if ready is not None], reverse=True)


_OF_STARTED = frozenset(
    (
        "started",
        "surplus",
        "growth",
        "losses",
        "least_loss",
        "givers",
        "yields_from",
        "surplus_vectors",
        "giver_nodes",
        "first_victims",
        "least_surplus",
        "_least_costs",
        "roomless",
        "cooling",
    )
)
"""Facts that follow from jobs that have started, whatever becomes of the others."""
_OF_EXCLUDING = frozenset(("excluding",))
"""Those that follow from jobs that nodes have failed, which are few."""
