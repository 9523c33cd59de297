"""Tells for how long a newcomer follows before it joins, and how long steps wait for it; pure.

Until it joins, the job lacks what its node would do, and steps may wait for it. If it joins earlier
all stand still, until it has the whole state or has made the steps that it is behind. Nobody knows
how soon it comes near by itself. So it follows until that has cost what standing still would, or is
sure to: all in all about twice, at most, what is lost by whoever does know (the ski rental problem,
as in coordinator/joining.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

NEAR = 1
"""Steps that a newcomer may be behind when it asks for a place: what it is behind then, the others
wait for as it joins."""
STILL_MISSED = 1.0
STILL_GROWING = 30.0
"""A second in which nobody trains counts as so many in which a node is away: as one, where the job
has lost nodes and gets one back; where it grows beyond what it had, nobody waits for that, and a
standstill is the larger nuisance."""
LEAST_SECONDS = 3.0
"""For so long it may follow however little there is to wait for: a machine may be busy for a
moment."""
BRIEF_SECONDS = 0.3
"""For so long all may wait for what it is behind, even if the whole state would come sooner."""
MOST_BEHIND_SECONDS = 5.0
"""For no longer than that, though: at a fence nobody is waited for much longer."""
MOST_WAIT = 2.0
"""For so many times its own length at most a step waits for a newcomer."""
BYTES_PER_SECOND = 1e9
"""Taken to reach a newcomer until it is measured: those of a network of 10 Gbit/s, or nearly."""


class Decision(Enum):
    FOLLOW = auto()
    JOIN = auto()
    """Ask for a place: what it is behind, all wait for."""
    TAKE_WHOLE = auto()
    """Follow no more: the whole state comes as it joins."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a newcomer has come along so far."""

    state_bytes: int
    seconds: float
    """Since it might have asked for a place."""
    lost: float
    """Seconds that steps have taken longer meanwhile, for it."""
    staying: int
    """Nodes that train."""
    newcomers: int
    """Nodes that follow, this one among them."""
    missed: bool
    """The job has lost nodes that are not back yet."""
    behind: int | None = None
    """Steps; None: it has no state yet."""
    copy_seconds: float = 0.0
    """Until it has the copy of a state, at the speed so far; 0: it has, or nothing is known."""
    replay_seconds: float = 0.0
    """In which it makes a step again; 0: unknown, it has made none."""
    step_seconds: float = 0.0
    """A step's, without its waiting; 0: unknown."""
    bytes_per_second: float = BYTES_PER_SECOND
    """At which the state would reach it while all wait."""

    @property
    def nodes(self) -> int:
        return self.staying + self.newcomers

    @property
    def whole_seconds(self) -> float:
        """Return for how long all would wait for the whole state."""
        return self.state_bytes / self.bytes_per_second

    @property
    def behind_seconds(self) -> float:
        """Return for how long all would wait for the steps that it is behind, as far as it is
        known how long it takes for one."""
        return (self.behind or 0) * self.replay_seconds

    @property
    def spent(self) -> float:
        """Return what following has cost, in seconds of a node."""
        return self.newcomers * self.seconds + self.staying * self.lost

    @property
    def coming(self) -> float:
        """Return what it will cost at the least until it is near."""
        return self.newcomers * (self.copy_seconds + self.behind_seconds)

    @property
    def most(self) -> float:
        """Return what following may cost."""
        still = STILL_MISSED if self.missed else STILL_GROWING
        return max(self.newcomers * LEAST_SECONDS, still * self.nodes * self.whole_seconds)

    @property
    def near(self) -> bool:
        return self.behind is not None and self.behind <= NEAR


def decide(course: Course) -> Decision:
    """Return what is to be done about a newcomer that has no place yet; it is done once, and
    lasts."""
    if course.near:
        return Decision.JOIN
    if course.spent + course.coming < course.most:
        return Decision.FOLLOW
    if course.behind is None or not course.replay_seconds:
        return Decision.TAKE_WHOLE
    most = min(MOST_BEHIND_SECONDS, max(BRIEF_SECONDS, course.whole_seconds))
    return Decision.JOIN if course.behind_seconds <= most else Decision.TAKE_WHOLE


def count_missing(missing: int, before: int, now: int, *, stood: bool) -> int:
    """Return how many nodes the job has lost that are not back yet.

    Args:
        missing: before the last round ended.
        before, now: nodes of the last round and of this one.
        stood: the last one ended at a fence, so that who isn't here has left.
    """
    gone = before - now
    if gone > 0:
        return missing if stood else missing + gone
    return max(0, missing + gone)


def wait_seconds(course: Course, *, full: bool = False) -> float:
    """Return for how long at most the next step waits for a newcomer.

    With steps of x seconds, of which it makes one again in r, it is near after
    behind * r * x / (x - r). What that costs, in seconds of all nodes, only grows with x where
    staying * step > nodes * r, so that waiting is a waste; else it only falls. Steps of 2 * r cost
    at most twice what standing still until it is there would, and none of them is long.

    Args:
        full: there is no memory for another step that it is yet to make again.
    """
    if course.near or course.spent >= course.most:
        return 0.0
    most = MOST_WAIT * course.step_seconds
    if full:
        return most
    replay, step = course.replay_seconds, course.step_seconds
    if not course.behind or not replay or course.staying * step > course.nodes * replay:
        return 0.0
    if (1 + MOST_WAIT) * step <= replay:
        return 0.0  # it comes no nearer, however long each waits
    return min(most, max(0.0, 2 * replay - step))
