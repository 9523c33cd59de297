"""One plan's way through all claims: each has its turn, in Volcano's order."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from volcano_elastic.queue_policy.backlog import Backlog, Kind, Waiting
from volcano_elastic.queue_policy.claims import Claim, Group, Order
from volcano_elastic.queue_policy.fit import Dimensions
from volcano_elastic.queue_policy.patience import Patience
from volcano_elastic.queue_policy.shrink import Shrink
from volcano_elastic.queue_policy.wording import asked


class Line:
    """Claims of one kind, in order, and how far this plan has come with them."""

    __slots__ = ("at", "entries", "failed", "kind", "why")

    def __init__(self, entries: Sequence[Waiting], kind: Kind | None = None) -> None:
        """`kind`: if these are all of that kind in the backlog."""
        self.entries, self.kind, self.at = entries, kind, 0
        self.failed, self.why = -1, ""
        """How many claims had been served when one of these could not be, and what it was told:
        until another is served that goes for those behind it too."""


class Serving:
    def __init__(
        self,
        shrink: Shrink,
        patience: Patience,
        backlog: Backlog,
        others: Iterable[Claim],
        dimensions: Dimensions,
    ) -> None:
        """`others`: the claims that are not in the backlog."""
        self._shrink, self._backlog, self._dimensions = shrink, backlog, dimensions
        self.served: list[Claim] = []
        self.blocked: dict[str, str] = {}
        """What those who cannot start are told, by key of the job or gang."""
        self._others = {claim.key: claim for claim in others}
        self._asked: dict[tuple[Group, ...], str] = {}
        self._ahead = patience.ahead
        self._set_aside: dict[str, str] = {}
        for key in patience.noted:
            claim = self._claim(key)
            if claim is not None and (why := patience.set_aside(key)) is not None:
                self._set_aside[key] = self._sentence(claim, why)

    @property
    def waiting(self) -> list[Claim]:
        """Who is blocked and not in the backlog, in order."""
        found = (claim for key, claim in self._others.items() if key in self.blocked)
        return sorted(found, key=lambda claim: claim.order)

    def _claim(self, key: str) -> Claim | None:
        return self._backlog.get(key) or self._others.get(key)

    def ahead(self) -> Iterable[str]:
        """Keys of the claims that go first in the next plan."""
        helped = self._shrink.from_surplus.union(self._ahead)
        served = [claim for claim in self.served if claim.key in helped]
        if not served:
            return []
        blocked = map(self._claim, self.blocked.keys() - self._set_aside.keys())
        first = min((claim.order for claim in blocked if claim is not None), default=None)
        return [claim.key for claim in served if first is not None and first < claim.order]

    def run(self) -> None:
        """Serve whoever is not served yet, as far as possible."""
        ahead = [claim for key in self._ahead if (claim := self._claim(key)) is not None]
        for claim in sorted(ahead, key=lambda claim: claim.order):
            if claim not in self.served and claim.key not in self._set_aside:
                self.serve_first([claim])
        while self._take_turns():
            pass

    def _take_turns(self) -> bool:
        """Each claim that is not served yet has its turn. Whether those that failed should have
        another, since one behind them may have left room for them."""
        before = len(self.served)
        lines: list[tuple[Order, Line]] = []
        # Those whose next claim fails, until another is served.
        failing: list[Line] = []
        # In order, since what one is told may name what was found out for another.
        for line in sorted(self._lines(), key=lambda line: line.entries[0][0]):
            order, claim = line.entries[0]
            why = self._shrink.hopeless(claim)
            if why is None:
                lines.append((order, line))
            else:
                line.why = self._sentence(claim, why)
                failing.append(line)
        heapq.heapify(lines)
        while lines:
            _, line = lines[0]
            if line.failed == self._shrink.served:
                failing.append(line)
                heapq.heappop(lines)
                continue
            order, claim = line.entries[line.at]
            served, batch = False, []
            if claim.key not in self._set_aside:
                batch = self._batch(line, lines, failing)
                served = bool(batch) or self._serve(claim, line)
            if batch:
                self._shrink.serve_from_idle(batch)
                for claim in batch:
                    self._note(claim)
                order = batch[-1].order
            else:
                line.at += 1
            if line.at < len(line.entries):
                heapq.heapreplace(lines, (line.entries[line.at][0], line))
            else:
                heapq.heappop(lines)
            if served:
                for other in failing:
                    self._block(other, bisect_left(other.entries, (order,), other.at))
                    if other.at < len(other.entries):
                        heapq.heappush(lines, (other.entries[other.at][0], other))
                failing.clear()
        for line in failing:
            self._block(line, len(line.entries))
        self.blocked |= self._set_aside
        for claim in self._others.values():
            if claim.standing is not None:
                claim.standing.blocked = claim.key in self.blocked
        return self._leave_more(self.served[before:])

    def _leave_more(self, claims: Iterable[Claim]) -> bool:
        """Whether serving these may be of use to who came before them and is blocked: more left
        than they needed, since whole units do, or a full queue holds less; or they have surplus
        again, now that their worker 0 has a place."""
        helpers = (
            claim.order
            for claim in claims
            if claim.key in self._shrink.from_surplus or not claim.own_surplus_first
        )
        last = max(helpers, default=None)
        if last is None:
            return False
        blocked = map(self._claim, self.blocked.keys() - self._set_aside.keys())
        return any(claim is not None and claim.order < last for claim in blocked)

    def serve_first(self, claims: Iterable[Claim]) -> Claim | None:
        """The first of these, which were blocked, that is not any more."""
        for claim in claims:
            if self._shrink.serve(claim) is None:
                self._note(claim)
                return claim
        return None

    def set_aside(self, key: str) -> None:
        """This claim, which is blocked, has no more turn in this plan."""
        self._set_aside[key] = self.blocked[key]

    def _lines(self) -> Iterable[Line]:
        done = {claim.key for claim in self.served}
        for claim in self._others.values():
            if claim.key not in done:
                yield Line([(claim.order, claim)])
        for kind, ranking in self._backlog.lines.items():
            left = [e for e in ranking.entries if e[-1].key not in done] if done else ()
            if not done or len(left) == len(ranking.entries):
                yield Line(ranking.entries, kind)
            elif left:
                yield Line(left)

    def _batch(
        self, line: Line, lines: list[tuple[Order, Line]], failing: list[Line]
    ) -> list[Claim]:
        """The next claims of the line that idle room is enough for, as far as no other's turn comes
        between; the line moves behind them. Less than two are nobody."""
        end, entries = line.at + 1, line.entries
        if end == len(entries):
            return []
        here, most = entries[line.at][0], self._shrink.idle_for(entries[line.at][1])
        if most < 2:
            return []
        turns = [order for order, _ in lines[1:3]]
        for other in failing:
            at = bisect_left(other.entries, (here,), other.at)
            turns += [other.entries[at][0]] if at < len(other.entries) else []
        end = bisect_left(entries, (min(turns),), end) if turns else len(entries)
        left = (i for i in range(line.at, end) if entries[i][1].key not in self._set_aside)
        found = list(islice(left, most))
        if len(found) < 2:
            return []
        line.at = found[-1] + 1
        return [entries[i][1] for i in found]

    def _serve(self, claim: Claim, line: Line) -> bool:
        why = self._shrink.serve(claim)
        if why is None:
            self._note(claim)
            return True
        line.failed, line.why = self._shrink.served, self._sentence(claim, why)
        self.blocked[claim.key] = line.why
        return False

    def _note(self, claim: Claim) -> None:
        self.served.append(claim)
        self.blocked.pop(claim.key, None)
        self._set_aside.pop(claim.key, None)

    def _block(self, line: Line, upto: int) -> None:
        if line.kind is not None and line.at == 0 and upto == len(line.entries):
            self.blocked.update(self._backlog.told(line.kind, line.why))
        else:
            keys = (claim.key for _, claim in line.entries[line.at : upto])
            self.blocked.update(dict.fromkeys(keys, line.why))
        line.at = upto

    def _sentence(self, claim: Claim, why: str) -> str:
        words = self._asked.get(claim.groups)
        if words is None:
            words = self._asked[claim.groups] = asked([claim], self._dimensions)
        return f"it needs {words}, and {why}"
