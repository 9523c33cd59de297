"""The cheapest option of all nodes, found without a look at the pods of each.

Nodes stand in line by what their options cost at least, which is known from how many pods must
leave there and whose they are at best. Only for those in front the option itself is looked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from volcano_elastic.queue_policy.fit import Vector
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.surplus import Lot, Surplus
from volcano_elastic.queue_policy.victim import Ask, Option, Rank

ALL = 1 << 30
"""As many slots as an option may make."""

NOBODY = ""
"""The queue of a claim that has no surplus of its own anywhere."""

Step = tuple[int, float, int]
"""So many pods there are of jobs with at least this spare, which is negative here; their highest
index, negative."""


@dataclass(frozen=True, slots=True)
class Site:
    """What need not be counted again of one node's surplus: pods that leave only make it less."""

    jobs: tuple[tuple[Standing, int, int], ...]
    """Each with how many pods it has here, and their highest index."""
    largest: Vector
    """The most that any one pod holds, by dimension."""
    still: int
    """Pods that don't run."""
    soft: int
    """Pods that are not protected."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What the order of queues and jobs says of a node's surplus, at best."""

    rank: int
    share: float
    """Negative."""
    steps: tuple[Step, ...]
    """Largest spare first."""


class Cheapest:
    """Of what surplus offers, the option to take first."""

    def __init__(self, surplus: Surplus, nodes: NodeRoom, queues: QueueRoom) -> None:
        self._surplus, self._nodes, self._queues = surplus, nodes, queues
        self.better: list[int] = []
        """Nodes whose options may have become cheaper."""
        self._seen = len(nodes.changes)
        self._sites: dict[int, Site] = {}
        self._entitlements: dict[int, Entitlement] = {}
        self._lines: dict[Ask, Line] = {}

    def forget(self) -> None:
        """The surplus has been gathered anew."""
        self._sites.clear()
        self.forget_lines()

    def forget_lines(self) -> None:
        """Some options are cheaper than they were, and nobody knows which."""
        self._lines.clear()
        self._entitlements.clear()

    def holds_more(self, queue: str) -> None:
        """What a queue holds has grown, and with it the right of others to its surplus."""
        for name in self._queues.chain(queue):
            if self._queues.entitled(name):
                self._improve(self._surplus.nodes_in.get(name, ()))

    def best(self, ask: Ask) -> Option | None:
        """The cheapest option for one slot of those asked for."""
        changes = self._nodes.changes
        self._improve(changes[self._seen :])
        self._seen = len(changes)
        found = None
        # One that frees more than the claim can use is dearer than it looks: then all are compared
        # by what is of use to it. Most of the time the first is the answer, whatever the need.
        for useful in (ALL, ask.need):
            found = self._first(replace(ask, need=useful))
            if found is None or found.slots <= ask.need:
                break
        return found

    def _improve(self, places: Iterable[int]) -> None:
        for n in places:
            self._entitlements.pop(n, None)
            self.better.append(n)

    def _first(self, ask: Ask) -> Option | None:
        found = self._line(ask).first()
        if ask.own is not None or ask.within is not None or self._has_most(ask.queue):
            return found
        # Where its queue has no surplus, all claims see the same.
        others = self._line(replace(ask, queue=NOBODY)).first(
            but=self._surplus.nodes_in.get(ask.queue, ()),
            below=None if found is None else found.rank,
        )
        return others or found

    def _has_most(self, queue: str) -> bool:
        """Whether a line for it alone may as well have all nodes."""
        return 2 * len(self._surplus.nodes_in.get(queue, ())) > len(self._surplus.on_node)

    def _line(self, ask: Ask) -> Line:
        line = self._lines.get(ask)
        if line is None:
            usable = set(self._places(ask)).intersection(self._nodes.eligible(ask.shape))
            line = self._lines[ask] = Line(self, self._surplus, ask, usable)
        return line

    def _places(self, ask: Ask) -> Collection[int]:
        surplus = self._surplus
        if ask.own is not None:
            return surplus.nodes_of.get(ask.own, ())
        if ask.within is not None:
            return surplus.nodes_within(ask.within)
        if ask.queue == NOBODY or self._has_most(ask.queue):
            return surplus.on_node
        return surplus.nodes_in.get(ask.queue, ())

    def name(self, n: int) -> str:
        return self._nodes.nodes[n].name

    def at_least(self, n: int, ask: Ask) -> Rank | None:
        """Node n's option has no smaller rank; None if it has no option. The answer may be from
        before something became dearer."""
        site = self._sites.get(n)
        if site is None:
            site = self._sites[n] = _site(self._surplus.on_node[n].values())
        coming, taken = self._nodes.bases[Room.COMING][n], self._nodes.taken[n]
        free = [(i, amount, coming[i] - taken[i]) for i, amount in ask.shape.needs]
        slots = max(0, min((have // amount for _, amount, have in free), default=0))
        pods = won = 1
        for i, amount, have in free:
            lack, largest = (slots + 1) * amount - have, site.largest[i]
            if lack > 0:
                if not largest:
                    return None
                pods = max(pods, -(-lack // largest))
                # Without any one of its pods an option would not do.
                won = max(won, 1 + (largest - 1) // amount)
        if pods > site.soft and not ask.protected:
            return None
        whose = self._whose(n, site, ask, pods)
        if whose is None:
            return None
        cost = 0 if any(standing.credit for standing, _, _ in site.jobs) else pods
        return (
            cost / min(ask.need, won),
            cost,
            max(0, pods - site.soft),
            max(0, pods - site.still),
            *whose,
        )

    def _whose(
        self, n: int, site: Site, ask: Ask, pods: int
    ) -> tuple[int, float, float, int] | None:
        """The part of a rank that tells whose pods they are, at best; None if there are too few."""
        if ask.queue != NOBODY:
            mine = _step(_steps(s for s in site.jobs if s[0].job.queue == ask.queue), pods)
            if mine is not None:
                return (0, 0.0, *mine)
        found = self._entitlements.get(n)
        if found is None:
            held = {(s.job.queue, s.shape.vector) for s, _, _ in site.jobs}
            found = self._entitlements[n] = Entitlement(
                rank=min(2 - self._queues.borrows(*each) for each in held),
                share=-max(self._queues.share(queue) for queue, _ in held),
                steps=_steps(site.jobs),
            )
        step = _step(found.steps, pods)
        return None if step is None else (found.rank, found.share, *step)


class Line:
    """Some nodes, the cheapest first, for one kind of claim."""

    def __init__(self, cheapest: Cheapest, surplus: Surplus, ask: Ask, places: set[int]) -> None:
        self._cheapest, self._surplus = cheapest, surplus
        self._ask, self._places = ask, places
        self._seen = len(cheapest.better)
        self._heap: list[tuple[Rank, str, int]] = []
        self._enter(places)

    def _enter(self, places: Iterable[int]) -> None:
        for n in places:
            rank = self._cheapest.at_least(n, self._ask)
            if rank is not None:
                heapq.heappush(self._heap, (rank, self._cheapest.name(n), n))

    def first(self, but: Collection[int] = (), below: Rank | None = None) -> Option | None:
        """The cheapest of all nodes `but` these; None if it has no rank `below` this."""
        better = self._cheapest.better
        if self._seen < len(better):
            self._enter(self._places.intersection(better[self._seen :]))
            self._seen = len(better)
        heap = self._heap
        looked: dict[int, Option | None] = {}
        aside: list[tuple[Rank, str, int]] = []
        found: Option | None = None
        while heap and (below is None or heap[0][0] < below):
            rank, name, n = heap[0]
            if n not in looked:
                looked[n] = self._surplus.option(n, self._ask)
            option = looked[n]
            if option is None:
                heapq.heappop(heap)
            elif option.rank > rank:
                heapq.heapreplace(heap, (option.rank, name, n))
            elif n in but:
                aside.append(heapq.heappop(heap))
            else:
                found = option
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return found


def _site(lots: Iterable[Lot]) -> Site:
    found = list(lots)
    pods = [pod for lot in found for pod in lot.pods]
    vectors = {lot.standing.shape.vector for lot in found}
    return Site(
        jobs=tuple(
            (lot.standing, len(lot.pods), max(pod.index for pod in lot.pods)) for lot in found
        ),
        largest=tuple(map(max, zip(*vectors, strict=True))),
        still=sum(not pod.running for pod in pods),
        soft=sum(not pod.protected for pod in pods),
    )


def _steps(jobs: Iterable[tuple[Standing, int, int]]) -> tuple[Step, ...]:
    found: list[Step] = []
    total = 0
    for spare, index, pods in sorted(
        (-standing.spare, -index, min(pods, standing.quota)) for standing, pods, index in jobs
    ):
        total += pods
        if found and found[-1][1] == spare:
            found[-1] = (total, spare, found[-1][2])
        else:
            found.append((total, spare, index))
    return tuple(found)


def _step(steps: Iterable[Step], pods: int) -> tuple[float, int] | None:
    """Of so many pods, the smallest spare and its highest index, at best."""
    for total, spare, index in steps:
        if total >= pods:
            return spare, index
    return None
