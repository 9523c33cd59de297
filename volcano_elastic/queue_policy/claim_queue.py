"""All claims of one plan: each has its turn, in Volcano's order."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from volcano_elastic.cluster_state.claim import Claim, ClaimOrder, Group, asked
from volcano_elastic.cluster_state.fact import fact
from volcano_elastic.cluster_state.fit import Vector
from volcano_elastic.queue_policy.backoff import Backoff
from volcano_elastic.queue_policy.draft import Draft
from volcano_elastic.queue_policy.placement import ClaimPlacement


class Blocked(NamedTuple):
    """Why claims cannot be served."""

    minimums: dict[str, str]
    """By key of the job or gang."""
    pods: dict[str, str]
    """By key of the pod."""


class ClaimQueue:
    """Serves claims in Volcano's order, each wholly or not at all."""

    def __init__(self, draft: Draft, backoff: Backoff, asking: Iterable[Claim]) -> None:
        """`asking`: the claims of those that have started."""
        self._draft, self._placement = draft, ClaimPlacement(draft, backoff.freed)
        self.from_idle = self._placement.from_idle
        """Keys of the claims that idle room alone was enough for."""
        self._asking = {claim.key: claim for claim in asking}
        self._lines = [*([claim] for claim in self._asking.values()), *draft.cluster.waiting]
        running = (claim for claim in self._asking.values() if claim.job is None)
        self._others = [*running, *draft.cluster.others]
        """Claims of gangs and pods that aren't ours."""
        self.served: dict[str, Claim] = {}
        """By key, in the order in which they were."""
        self.blocked: dict[str, str] = {}
        """Why those who cannot start can't, likewise."""
        self._asked: dict[tuple[Group, ...], str] = {}
        self._ahead = backoff.ahead
        self._refused: dict[tuple[object, ...], str] = {}
        """Why claims of a kind cannot be served as long as nothing changes."""
        self._set_aside: dict[str, str] = {}
        """Why those that have no turn have none, by key."""
        for key in backoff.noted & self._claims.keys() if backoff.noted else ():
            if (why := backoff.set_aside(key)) is not None:
                self._set_aside[key] = self._sentence(self._claims[key], why)

    @fact
    def _claims(self) -> Mapping[str, Claim]:
        """All of them by key: of a backlog hardly one is asked for."""
        return {claim.key: claim for line in self._lines for claim in line}

    @property
    def leaving(self) -> dict[str, set[str]]:
        """Uids of the surplus that leaves, by key of each claim of pods that aren't ours."""
        taken = self._placement.taken
        others = sorted(self._others, key=attrgetter("order"))
        return {claim.key: taken.get(claim.key, set()) for claim in others}

    def kept_for_others(self) -> dict[int, Vector]:
        """Return by node the room kept for pods that aren't ours."""
        claims = [claim for claim in self.served.values() if claim.job is None]
        return self._placement.promised({group.shape for c in claims for group in c.groups})

    @property
    def stuck(self) -> list[Claim]:
        """Claims of those that have started and are blocked, in order."""
        found = (claim for key, claim in self._asking.items() if key in self.blocked)
        return sorted(found, key=attrgetter("order"))

    def reasons(self) -> Blocked:
        """Why those who cannot start can't."""
        pods = {claim.key: claim.pod.key for claim in self._others if claim.pod is not None}
        blocked = self.blocked.items()
        minimums = {key: why for key, why in blocked if key not in pods} if pods else self.blocked
        return Blocked(minimums, {pods[key]: why for key, why in blocked if key in pods})

    def _first_blocked(self) -> ClaimOrder | None:
        """The first turn of those who are blocked and not set aside."""
        found = self.blocked.keys() - self._set_aside.keys()
        return min((self._claims[key].order for key in found), default=None)

    def ahead(self) -> list[str]:
        """Keys of the claims that go first in the next plan."""
        helped = self._placement.from_surplus.union(self._ahead)
        served = [claim for key, claim in self.served.items() if key in helped]
        first = self._first_blocked() if served else None
        return [claim.key for claim in served if first is not None and first < claim.order]

    def run(self) -> None:
        """Serve whoever is not served yet, as far as possible."""
        ahead = [self._claims[key] for key in self._ahead if key in self._claims]
        for claim in sorted(ahead, key=attrgetter("order")):
            if claim.key not in self.served and claim.key not in self._set_aside:
                self.serve_first([claim])
        while self._take_turns():
            pass

    def serve_first(self, claims: Iterable[Claim]) -> Claim | None:
        """The first of these, which were blocked, that is not any more."""
        return next((claim for claim in claims if self._serve(claim) is None), None)

    def set_aside(self, key: str) -> None:
        """This claim, which is blocked, has no more turn in this plan."""
        self._set_aside[key] = self.blocked[key]

    def _take_turns(self) -> bool:
        """Each claim that is not served yet has its turn. Whether those that failed should have
        another, since one behind them may have left room for them."""
        before, passed = len(self.served), self.served.keys() | self._set_aside.keys()
        lines: Sequence[Sequence[Claim]] = self._lines
        if passed:
            left = ([claim for claim in line if claim.key not in passed] for line in lines)
            lines = [line for line in left if line]
        turns = [(line[0].order, n, 0) for n, line in enumerate(lines)]
        heapq.heapify(turns)
        refused: list[tuple[int, int, str]] = []
        """Lines, from which place on they are refused as the plan is now, and why."""
        while turns:
            order, n, at = heapq.heappop(turns)
            why = self._refusal(lines[n][at])
            if why is not None:
                refused.append((n, at, why))
                continue
            # The plan has changed: who is behind this one may be served now.
            for other, first, said in (*refused, (n, at + 1, "")):
                line = lines[other]
                behind = bisect_right(line, order, first, key=attrgetter("order"))
                self._block(line[first:behind], said)
                if behind < len(line):
                    heapq.heappush(turns, (line[behind].order, other, behind))
            refused.clear()
        for n, at, why in refused:
            self._block(lines[n][at:], why)
        self.blocked |= self._set_aside
        for key, claim in self._asking.items():
            if claim.job is not None:
                self._draft.job(key).blocked = key in self.blocked
        return self._leave_more(list(self.served.values())[before:])

    def _block(self, claims: Iterable[Claim], why: str) -> None:
        self.blocked |= dict.fromkeys([claim.key for claim in claims], why)

    def _refusal(self, claim: Claim) -> str | None:
        """Why the claim cannot be served; None if it has been. Those like one that could not be
        need not be tried."""
        until = self._placement.freed.get(claim.key)
        scope, version = self._draft.quotas.scope(claim.key), self._draft.journal.version
        alike = (version, claim.kind, scope, until)
        if alike not in self._refused:
            why = self._serve(claim)
            if why is None:
                return None
            self._refused[alike] = self._sentence(claim, why)
        return self._refused[alike]

    def _serve(self, claim: Claim) -> str | None:
        why = self._placement.serve(claim)
        if why is None:
            self.served[claim.key] = claim
            self.blocked.pop(claim.key, None)
            self._set_aside.pop(claim.key, None)
        return why

    def _leave_more(self, claims: Iterable[Claim]) -> bool:
        """Return whether serving these may help an earlier, blocked claim: more pods left than they
        needed, a full queue holds less, or they have surplus again."""
        helpers = (
            claim.order
            for claim in claims
            if claim.key in self._placement.from_surplus or not claim.order.leader_placed
        )
        last = max(helpers, default=None)
        first = None if last is None else self._first_blocked()
        return last is not None and first is not None and first < last

    def _sentence(self, claim: Claim, why: str) -> str:
        words = self._asked.get(claim.groups)
        if words is None:
            words = self._asked[claim.groups] = asked([claim], self._draft.cluster.dimensions)
        return f"it needs {words}, and {why}"
