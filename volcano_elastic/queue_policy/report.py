"""Reports why sizes stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cache

from volcano_elastic.cluster_state.reason import NoChange, Reason, no_change
from volcano_elastic.queue_policy.draft import Draft, JobDraft


def unchanged(
    draft: Draft,
    *,
    changed: Iterable[str],
    why: Mapping[str, Reason],
    resting: Collection[str],
    asked: bool,
    served: bool,
) -> dict[str, NoChange]:
    """Reasons for every elastic job but those `changed`.

    Args:
        why: what ended the growth of those that had a turn.
        resting: keys of jobs that don't grow since their surplus found no place.
        asked: some claim wanted room.
        served: some claim was promised room.
    """
    found: dict[str, NoChange] = {}
    cluster = draft.cluster
    was_idle = cache(lambda shape: max(cluster.idle_slots(shape), default=0) > 0)
    for queue in cluster.queues.values():
        found |= queue.kept_asked if asked else queue.kept_unasked
        for shape, keys in queue.roomless.items() if served else ():
            # The room that they lack may be there, and promised to a claim.
            for key in keys if was_idle(shape) else ():
                found[key] = no_change(Reason.ROOM_OWED_TO_MINIMUM, found[key].why_not_less)
        for ready, key in queue.cooling:
            if ready <= draft.now:
                break
            found[key] = no_change(Reason.COOLING_DOWN, found[key].why_not_less)
    for key, more in (*why.items(), *((key, Reason.COOLING_DOWN) for key in resting)):
        # Jobs that might grow and have no room are said to have none already, and whose it is.
        if key in found and more is not Reason.NO_ROOM and draft.cluster.jobs[key].settled:
            found[key] = no_change(more, found[key].why_not_less)
    for job in draft.unsettled:
        if job.job.elastic:
            found[job.job.key] = _unsettled(job, draft.now, asked)
    for key in changed:
        found.pop(key, None)
    return found


def _unsettled(draft: JobDraft, now: datetime, asked: bool) -> NoChange:
    """Reasons of a job whose pods have not all found a node yet."""
    state, job = draft.state, draft.job
    more = state.held_back(draft.size)
    if more is None and job.succeeded:
        more = Reason.FINISHING
    if more is None:
        more = Reason.WAITING_FOR_PODS
        waits = draft.waiting or state.by_role.excess or draft.blocked
        if not waits and state.cooling(now):
            more = Reason.COOLING_DOWN
    return no_change(more, state.why_not_less(draft.size, asked))
