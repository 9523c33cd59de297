"""Reports a plan beside its decisions: figures of each queue, and why sizes stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.fit import Shape
from volcano_elastic.cluster_state.reason import NoChange, Reason, no_change
from volcano_elastic.queue_policy.decision import QueueFigures
from volcano_elastic.queue_policy.draft import Draft, JobDraft


def figures(draft: Draft) -> dict[str, QueueFigures]:
    """By queue, in its policy's resource, before the plan changes anything; nothing owed yet."""
    cluster, queues, tree = draft.cluster, draft.queues, draft.queues.tree
    surplus: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    # A queue holds what its children hold, so these count for it too.
    for name, members in cluster.queues.items():
        for queue in tree.chains.get(name, ()):
            jobs[queue] += len(members.jobs)
            if tree.resources[queue] == tree.resources[name]:
                surplus[queue] += members.surplus
    for gang in cluster.gangs.values():
        for vector, times in gang.surplus.items():
            for queue in tree.chains.get(gang.gang.queue if gang.gang else "", ()):
                i = tree.dimension[queue]
                if i is not None:
                    surplus[queue] += vector[i] * times
    found: dict[str, QueueFigures] = {}
    for name, used in queues.used.items():
        i, resource, problem = tree.dimension[name], tree.resources[name], tree.problems.get(name)
        held = elastic = free = borrowed = 0
        if i is not None:
            held, borrowed = used[i], queues.borrowed(name, i)
            elastic = min(held, surplus[name])
            if cluster.idle and tree.closed(name) is None:
                free = max(0, queues.free(name, i, cluster.idle[i]))
        found[name] = QueueFigures(
            resource, free, held - elastic, elastic, borrowed, 0, jobs[name], problem or ""
        )
    return found


def with_owed(
    before: Mapping[str, QueueFigures],
    asking: Iterable[Claim],
    cluster: ClusterState,
) -> dict[str, QueueFigures]:
    """Add what each queue and its ancestors owe; `asking`: claims of jobs that have started."""
    owed: Counter[str] = Counter()
    requests = [(queue.name, queue.requested) for queue in cluster.queues.values()]
    others = (*asking, *(claim for claim in cluster.gang_claims if not claim.runs))
    requests += [(claim.queue, claim.request) for claim in others]
    for queue, request in requests:
        for name in cluster.tree.chains.get(queue, ()) if request else ():
            i = cluster.tree.dimension[name]
            if i is not None:
                owed[name] += request[i]
    return {
        name: found._replace(owed_to_minimums=owed[name]) if name in owed else found
        for name, found in before.items()
    }


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
    kept_for: dict[Shape, bool] = {}
    cluster = draft.cluster
    for queue in cluster.queues.values():
        found |= queue.kept[asked]
        for key, kept in queue.kept[asked].items() if served else ():
            if kept.why_not_more is Reason.NO_ROOM:
                # The room that it lacks may be there, and promised to a claim.
                shape = cluster.jobs[key].shape
                if shape not in kept_for:
                    kept_for[shape] = draft.nodes.was_idle(shape)
                if kept_for[shape]:
                    found[key] = no_change(Reason.ROOM_OWED_TO_MINIMUM, kept.why_not_less)
        for ready, key in queue.cooling:
            if ready <= draft.now:
                break
            found[key] = no_change(Reason.COOLING_DOWN, found[key].why_not_less)
    for key, more in (*why.items(), *((key, Reason.COOLING_DOWN) for key in resting)):
        # Who stands in line and has no room is said to have none already, and whose it is.
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
