"""Why the jobs that keep their size don't have more, and don't have less."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.queue_policy.decision import Reason, Stay
from volcano_elastic.queue_policy.lineup import end
from volcano_elastic.queue_policy.standing import Standing

_STAYS: dict[tuple[Reason, Reason], Stay] = {}
"""Made once: a large cluster has ten thousand of them in each plan."""


def settled(standing: Standing, open_queue: bool, now: datetime) -> Stay:
    """For a calm job, when nobody waits for anything."""
    more = _held_back(standing, open_queue)
    if more is None and standing.job.succeeded:
        more = Reason.FINISHING
    if more is None and standing.cooling(now):
        more = Reason.COOLING_DOWN
    return _stay(more or end(standing) or Reason.NO_ROOM, _less(standing, False))


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
    calm: Mapping[str, Stay],
    others: Iterable[tuple[str, Stay]],
    *,
    changed: Collection[str],
    why: Mapping[str, Reason],
    resting: Collection[str],
    owed: Callable[[str], bool] | None,
    asked: bool,
) -> dict[str, Stay]:
    """For every elastic job but those `changed`.

    Args:
        calm: as `settled` says; others: as `restless` says.
        why: what ended the growth of those that had a turn.
        resting: keys of jobs that don't grow since their surplus found no place.
        owed: whether the room that a job lacks is there, and promised to a claim; None: never.
        asked: some claim wanted room.
    """
    found = dict(calm)
    for key, reason in why.items():
        if key in found:
            found[key] = _stay(reason, found[key].why_not_less)
    for key in resting:
        if key in found:
            found[key] = _stay(Reason.COOLING_DOWN, found[key].why_not_less)
    if asked:
        # One look-up each, by identity: there may be ten thousand.
        known = list(_STAYS.values())
        asking = {id(stay): _asked(stay) for stay in known}
        owing = {id(stay): _owing(_asked(stay)) for stay in known}
        roomless = {id(stay) for stay in known if stay.why_not_more is Reason.NO_ROOM}
        for key, stay in found.items():
            known_as = id(stay)
            owes = owed is not None and known_as in roomless and owed(key)
            found[key] = owing[known_as] if owes else asking[known_as]
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
        return Reason.AT_MAX
    return None if open_queue else Reason.QUEUE_CLOSED


def _less(standing: Standing, asked: bool) -> Reason:
    if standing.size <= standing.job.min:
        return Reason.AT_MIN
    if standing.job.unmodelled:
        return Reason.UNMODELLED
    if not standing.movable:
        return Reason.HELD
    return Reason.NOT_NEEDED if asked else Reason.NOBODY_WAITS


def _asked(stay: Stay) -> Stay:
    """When somebody waits for room."""
    if stay.why_not_less is not Reason.NOBODY_WAITS:
        return stay
    return _stay(stay.why_not_more, Reason.NOT_NEEDED)


def _owing(stay: Stay) -> Stay:
    return _stay(Reason.ROOM_OWED_TO_MINIMUM, stay.why_not_less)


def _stay(more: Reason, less: Reason) -> Stay:
    found = _STAYS.get((more, less))
    if found is None:
        found = _STAYS[more, less] = Stay(more, less)
    return found
