"""All claims of one plan: each has its turn, in Volcano's order.

Most of thousands that wait are like many others of their queue, and what one of them is told goes
for those behind it until room changes hands: so they stand in one line a kind.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from volcano_elastic.queue_policy.backoff import Backoff
from volcano_elastic.queue_policy.claims import Claim, ClaimOrder, Group
from volcano_elastic.queue_policy.draft import Draft
from volcano_elastic.queue_policy.messages import asked
from volcano_elastic.queue_policy.placement import ClaimPlacement


class _Line:
    """Claims of one kind, in order, and how far this plan has come with them."""

    __slots__ = ("at", "claims", "failed", "why")

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.claims, self.at = claims, 0
        self.failed, self.why = -1, ""
        """The plan's version when one of these could not be served, and what it was told: in that
        version it goes for those behind it too."""

    @property
    def next(self) -> ClaimOrder | None:
        return self.claims[self.at].order if self.at < len(self.claims) else None

    def before(self, order: ClaimOrder) -> int:
        """How many of the claims come before this one's turn."""
        return bisect_left(self.claims, order, self.at, key=lambda claim: claim.order)


class ClaimQueue:
    def __init__(self, draft: Draft, backoff: Backoff, asking: Iterable[Claim]) -> None:
        """`asking`: the claims of those that have started."""
        self._draft, self._placement = draft, ClaimPlacement(draft)
        self._waiting = draft.cluster.waiting
        self.served: list[Claim] = []
        self.blocked: dict[str, str] = {}
        """Why those who cannot start can't, by key of the job or gang."""
        self._asking = {claim.key: claim for claim in asking}
        self._asked: dict[tuple[Group, ...], str] = {}
        self._ahead = backoff.ahead
        self._set_aside: dict[str, str] = {}
        """Why those that have no turn have none, by key."""
        for key in backoff.noted:
            claim = self._claim(key)
            if claim is not None and (why := backoff.set_aside(key)) is not None:
                self._set_aside[key] = self._sentence(claim, why)

    @property
    def from_idle(self) -> set[str]:
        """Keys of the claims that idle room alone was enough for."""
        return self._placement.from_idle

    @property
    def stuck(self) -> list[Claim]:
        """Claims of those that have started and are blocked, in order."""
        found = (claim for key, claim in self._asking.items() if key in self.blocked)
        return sorted(found, key=lambda claim: claim.order)

    def _claim(self, key: str) -> Claim | None:
        return self._draft.cluster.waiting_claims.get(key) or self._asking.get(key)

    def _first_blocked(self) -> ClaimOrder | None:
        """The first turn of those who are blocked and not set aside."""
        found = map(self._claim, self.blocked.keys() - self._set_aside.keys())
        return min((claim.order for claim in found if claim is not None), default=None)

    def ahead(self) -> list[str]:
        """Keys of the claims that go first in the next plan."""
        helped = self._placement.from_surplus.union(self._ahead)
        served = [claim for claim in self.served if claim.key in helped]
        first = self._first_blocked() if served else None
        return [claim.key for claim in served if first is not None and first < claim.order]

    def run(self) -> None:
        """Serve whoever is not served yet, as far as possible."""
        ahead = [claim for key in self._ahead if (claim := self._claim(key)) is not None]
        for claim in sorted(ahead, key=lambda claim: claim.order):
            if claim not in self.served and claim.key not in self._set_aside:
                self.serve_first([claim])
        while self._take_turns():
            pass

    def serve_first(self, claims: Iterable[Claim]) -> Claim | None:
        """The first of these, which were blocked, that is not any more."""
        for claim in claims:
            if self._placement.serve(claim) is None:
                self._note(claim)
                return claim
        return None

    def set_aside(self, key: str) -> None:
        """This claim, which is blocked, has no more turn in this plan."""
        self._set_aside[key] = self.blocked[key]

    def _take_turns(self) -> bool:
        """Each claim that is not served yet has its turn. Whether those that failed should have
        another, since one behind them may have left room for them."""
        before = len(self.served)
        lines: list[tuple[ClaimOrder, int, _Line]] = []
        # Those whose next claim fails, until another is served.
        failing: list[_Line] = []
        # In order, since what one is told may name what was found out for another.
        for line in sorted(self._lines(), key=lambda line: line.claims[0].order):
            why = self._placement.hopeless(line.claims[0])
            if why is None:
                lines.append((line.claims[0].order, len(lines), line))
            else:
                line.why = self._sentence(line.claims[0], why)
                failing.append(line)
        heapq.heapify(lines)
        while lines:
            _, number, line = lines[0]
            if line.failed == self._draft.journal.version:
                failing.append(line)
                heapq.heappop(lines)
                continue
            served = self._serve(line, lines, failing)
            order = line.next
            if order is not None:
                heapq.heapreplace(lines, (order, number, line))
            else:
                heapq.heappop(lines)
            if served is not None:
                for other in failing:
                    self._block(other, other.before(served.order))
                    if other.next is not None:
                        heapq.heappush(lines, (other.next, -len(lines), other))
                failing.clear()
        for line in failing:
            self._block(line, len(line.claims))
        self.blocked |= self._set_aside
        for claim in self._asking.values():
            if claim.job is not None:
                self._draft.job(claim.key).blocked = claim.key in self.blocked
        return self._leave_more(self.served[before:])

    def _serve(
        self, line: _Line, lines: list[tuple[ClaimOrder, int, _Line]], failing: list[_Line]
    ) -> Claim | None:
        """Give the next claims of the line their turn; the last that was served."""
        claim = line.claims[line.at]
        if claim.key in self._set_aside:
            line.at += 1
            return None
        batch = self._batch(line, lines, failing)
        if batch:
            self._placement.serve_from_idle(batch)
            for claim in batch:
                self._note(claim)
            return batch[-1]
        line.at += 1
        why = self._placement.serve(claim)
        if why is None:
            self._note(claim)
            return claim
        line.failed, line.why = self._draft.journal.version, self._sentence(claim, why)
        self.blocked[claim.key] = line.why
        return None

    def _batch(
        self, line: _Line, lines: list[tuple[ClaimOrder, int, _Line]], failing: list[_Line]
    ) -> list[Claim]:
        """The next claims of the line that idle room is enough for, as far as no other's turn comes
        between; the line moves behind them. Less than two are nobody."""
        end, claims = line.at + 1, line.claims
        if end == len(claims):
            return []
        most = self._placement.idle_for(claims[line.at])
        if most < 2:
            return []
        turns = [order for order, _, _ in lines[1:3]]
        for other in failing:
            at = other.before(claims[line.at].order)
            turns += [other.claims[at].order] if at < len(other.claims) else []
        end = line.before(min(turns)) if turns else len(claims)
        left = (i for i in range(line.at, end) if claims[i].key not in self._set_aside)
        found = list(islice(left, most))
        if len(found) < 2:
            return []
        line.at = found[-1] + 1
        return [claims[i] for i in found]

    def _leave_more(self, claims: Iterable[Claim]) -> bool:
        """Whether serving these may be of use to who came before them and is blocked: more left
        than they needed, since whole units do, or a full queue holds less; or they have surplus
        again, now that their worker 0 has a place."""
        helpers = (
            claim.order
            for claim in claims
            if claim.key in self._placement.from_surplus or not claim.order.leader_placed
        )
        last, first = max(helpers, default=None), None
        if last is not None:
            first = self._first_blocked()
        return last is not None and first is not None and first < last

    def _lines(self) -> Iterable[_Line]:
        done = {claim.key for claim in self.served}
        for claim in self._asking.values():
            if claim.key not in done:
                yield _Line([claim])
        for claims in self._waiting.values():
            left = [claim for claim in claims if claim.key not in done] if done else claims
            if left:
                yield _Line(left)

    def _note(self, claim: Claim) -> None:
        self.served.append(claim)
        self.blocked.pop(claim.key, None)
        self._set_aside.pop(claim.key, None)

    def _block(self, line: _Line, upto: int) -> None:
        self.blocked.update(dict.fromkeys([c.key for c in line.claims[line.at : upto]], line.why))
        line.at = upto

    def _sentence(self, claim: Claim, why: str) -> str:
        words = self._asked.get(claim.groups)
        if words is None:
            words = self._asked[claim.groups] = asked([claim], self._draft.cluster.dimensions)
        return f"it needs {words}, and {why}"
