"""How often agents and coordinator speak, though there is nothing to say; pure.

A job's agents all speak to one coordinator. So they share what it can hear in a second: of a large
job each speaks less often, and silence means nothing until later.
"""

from __future__ import annotations

from dataclasses import dataclass

BEAT_SECONDS = 0.2
MOST_BEAT_SECONDS = 4.0
BEATS_PER_SECOND = 1000.0
"""Beats of all agents together."""
SILENT_BEATS = 2.5
"""Between two signs of life, at the least, before silence says that somebody is gone."""
SLOW_TO_HEAR = 3.0
"""Beats in which agents that are told a shorter one may still keep the longer one."""


def beat_seconds(agents: int) -> float:
    """Return the time between two signs of life of each of so many agents."""
    return max(BEAT_SECONDS, min(MOST_BEAT_SECONDS, agents / BEATS_PER_SECOND))


def silence(least: float, beat: float) -> float:
    """Return the seconds of silence after which somebody is gone who speaks so often; `least`: as
    the job says, which counts where it has a usual number of agents."""
    return least if beat <= BEAT_SECONDS else max(least, SILENT_BEATS * beat)


@dataclass(frozen=True)
class Pace:
    """The beat that a coordinator tells its agents."""

    slowest: float = BEAT_SECONDS
    """That some agents may still keep."""
    told: float = BEAT_SECONDS
    until: float = 0.0
    """When all will have heard what is told."""

    def at(self, agents: int, now: float) -> Pace:
        """Return it while there are so many agents."""
        beat = beat_seconds(agents)
        if beat >= self.slowest or (beat == self.told and now >= self.until):
            return Pace(beat, beat, now + SLOW_TO_HEAR * beat)
        if beat != self.told:
            return Pace(self.slowest, beat, now + SLOW_TO_HEAR * self.slowest)
        return self
