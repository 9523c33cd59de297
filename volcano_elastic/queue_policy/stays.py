"""Why the jobs that keep their size don't have more, and don't have less."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.queue_policy.decision import Reason, Stay
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.lineup import end
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.terms import capped_by

_STAYS: dict[tuple[Reason, Reason], Stay] = {}
"""Made once: a large cluster has ten thousand of them in each plan."""


class Settled:
    """Stays as far as they depend on the job alone, kept from plan to plan: of jobs that have not
    started, and of whole ones, ready made for plans in which somebody waits for room, too."""

    def __init__(self) -> None:
        self.calm: dict[str, Stay] = {}
        """When nobody waits for anything."""
        self.asked: dict[str, Stay] = {}
        self.owing: dict[Shape, dict[str, Stay]] = {}
        """If the room that a job of this shape lacks is kept for a claim."""
        self._shapes: dict[str, Shape] = {}
        self.unstarted: dict[str, Stay] = {}
        """Of jobs that have not started: they wait for pods, whatever the plan says."""

    def put_unstarted(self, standing: Standing, open_queue: bool, now: datetime) -> None:
        key = standing.job.key
        self.remove(key)
        if standing.job.elastic:
            self.unstarted[key] = restless(standing, open_queue, now, asked=True)

    def put(self, standing: Standing, open_queue: bool, now: datetime) -> None:
        key = standing.job.key
        self.remove(key)
        if not standing.job.elastic:
            return
        more = _held_back(standing, open_queue)
        if more is None and standing.job.succeeded:
            more = Reason.FINISHING
        if more is None and standing.cooling(now):
            more = Reason.COOLING_DOWN
        if more is None and standing.departing:
            more = Reason.WAITING_FOR_PODS
        more = more or end(standing) or Reason.NO_ROOM
        less = _less(standing, False)
        self.calm[key] = _stay(more, less)
        if less is Reason.NOBODY_WAITS:
            less = Reason.NOT_NEEDED
        self.asked[key] = _stay(more, less)
        if more is Reason.NO_ROOM:
            shape = self._shapes[key] = standing.shape
            if shape not in self.owing:
                self.owing[shape] = {}
            self.owing[shape][key] = _stay(Reason.ROOM_OWED_TO_MINIMUM, less)

    def remove(self, key: str) -> None:
        self.unstarted.pop(key, None)
        self.calm.pop(key, None)
        self.asked.pop(key, None)
        shape = self._shapes.pop(key, None)
        if shape is not None:
            del self.owing[shape][key]
            if not self.owing[shape]:
                del self.owing[shape]


def restless(standing: Standing, open_queue: bool, now: datetime, asked: bool) -> Stay:
    """For a job whose pods have not all found a node yet."""
    more = _held_back(standing, open_queue)
    if more is None:
        if standing.job.succeeded:
            more = Reason.FINISHING
        elif standing.waiting or standing.excess or standing.blocked or not standing.cooling(now):
            more = Reason.WAITING_FOR_PODS
        else:
            more = Reason.COOLING_DOWN
    return _stay(more, _less(standing, asked))


def stays(
    settled: Settled,
    others: Iterable[tuple[str, Stay]],
    *,
    changed: Iterable[str],
    why: Mapping[str, Reason],
    resting: Iterable[str],
    owed: Callable[[Shape], bool] | None,
    asked: bool,
) -> dict[str, Stay]:
    """For every elastic job but those `changed`.

    Args:
        others: as `restless` says.
        why: what ended the growth of those that had a turn.
        resting: keys of jobs that don't grow since their surplus found no place.
        owed: whether the room that a job lacks is there, and promised to a claim; None: never.
        asked: some claim wanted room.
    """
    found = {**(settled.asked if asked else settled.calm)}
    if asked and owed is not None:
        for shape, owing in settled.owing.items():
            if owed(shape):
                found.update(owing)
    for key, more in (*why.items(), *((key, Reason.COOLING_DOWN) for key in resting)):
        # Who stands in line and has no room is said to have none already, and whose it is.
        if key in found and more is not Reason.NO_ROOM:
            found[key] = _stay(more, found[key].why_not_less)
    found.update(settled.unstarted)
    found.update(others)
    for key in changed:
        found.pop(key, None)
    return found


def _held_back(standing: Standing, open_queue: bool) -> Reason | None:
    """Why this job may not even be offered room; None if it may."""
    if standing.job.unmodelled:
        return Reason.UNMODELLED
    if standing.policy.mode is not Mode.ACTIVE:
        return Reason.HELD
    if standing.size + standing.unit > standing.cap:
        return capped_by(standing.job, standing.policy)
    return None if open_queue else Reason.QUEUE_CLOSED


def _less(standing: Standing, asked: bool) -> Reason:
    if standing.size <= standing.job.min:
        return Reason.AT_MIN
    if standing.job.unmodelled:
        return Reason.UNMODELLED
    if not standing.movable:
        return Reason.HELD
    return Reason.NOT_NEEDED if asked else Reason.NOBODY_WAITS


def _stay(more: Reason, less: Reason) -> Stay:
    found = _STAYS.get((more, less))
    if found is None:
        found = _STAYS[more, less] = Stay(more, less)
    return found
