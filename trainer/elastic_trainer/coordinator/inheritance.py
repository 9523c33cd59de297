"""Start of a ledger: the sums of the coordinators before, and until when they have each
agent; pure.

Agents bring what they were told last, and how long ago. Two coordinators may be there at once, as
after a partition, and the older one goes on counting agents that it has lost without knowing it. So
the ledger begins with the newest word that was told before the first agent came, and each agent is
counted on from where that word ends for it: not from when it was itself told last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from elastic_trainer.protocol.message import Goodput, Moment

MOST_KEEPERS = 8
MOST_TOLD_DEPARTED = 32
"""In each heartbeat; others' silence tells the next coordinator when they went."""


@dataclass(frozen=True)
class Arrival:
    """Use of an agent's time, told when it comes. Milliseconds of the coordinator's clock."""

    at: int
    processes: int
    told: Goodput
    """By the coordinator that it heard last; without id: by none."""
    heard: int
    """When that was; of an agent that heard none: when it began."""
    born: int
    """When it began."""
    keepers: tuple[tuple[str, int], ...] = ()
    """Coordinators that it had, the newest first, and since when."""


@dataclass(frozen=True)
class Inheritance:
    """The sums that an agent was told by a coordinator before this one."""

    told: Goodput
    at: int
    """When they were told."""
    silence: int
    """So long that coordinator went on counting an agent that it heard no more."""
    absent: dict[str, int]
    """Until when they have agents that were away by then, as far as these are known."""
    keepers: dict[str, int]
    """Until when they have what each of the coordinators before counted, the newest first."""

    @classmethod
    def of(cls, arrival: Arrival, silence: int) -> Inheritance:
        """Return what an agent brings."""
        told, at = arrival.told, arrival.heard
        absent = {one.name: at - max(0, one.ago) for one in told.departed}
        earlier = {one.name: at - max(0, one.ago) for one in told.earlier}
        return cls(told, at, silence, absent, {told.keeper: at, **earlier})

    def earlier(self, now: int) -> tuple[Moment, ...]:
        """Return the coordinators before, to be told to the next one."""
        newest = islice(self.keepers.items(), MOST_KEEPERS)
        return tuple(Moment(keeper, now - until) for keeper, until in newest)

    @property
    def rank(self) -> tuple[int, int]:
        """Return what is greater of a later word."""
        return self.told.generation, sum(self.told.milliseconds)

    def until(self, agent: str, arrival: Arrival) -> int:
        """Return up to when the sums have an agent's time."""
        if arrival.told.id != self.told.id:
            return min(arrival.heard, arrival.at)
        # They have its time with a coordinator that they are from, if it was there by then.
        had = arrival.keepers or ((arrival.told.keeper, arrival.heard),)
        counted = [self.keepers[one] for one, since in had if since <= self.keepers.get(one, -1)]
        if not counted:
            return min(arrival.born, arrival.at)
        until = self.absent.get(agent, counted[0])
        if agent not in self.absent and len(self.absent) >= MOST_TOLD_DEPARTED:
            until = min(until, arrival.heard + self.silence)  # it may be one more that was away
        return min(until, arrival.at)

    def missing(self, agent: str, arrival: Arrival) -> int:
        """Return an agent's time up to its coming that the sums don't have, times processes."""
        return (arrival.at - self.until(agent, arrival)) * max(1, arrival.processes)
