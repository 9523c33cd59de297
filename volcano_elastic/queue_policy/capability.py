"""Lowers queues that hold more than their capability, as when an admin has just set it.

Volcano keeps such a queue from holding more and takes nothing back. Here its surplus leaves, its
children's included, a unit at a time from the job that has most; minimums stay.
"""

from __future__ import annotations

import heapq

from volcano_elastic.api.queue_policy import Mode
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.draft import Draft, JobDraft


def lower_to_capability(draft: Draft) -> None:
    """Lower jobs until each queue holds what it may, or nothing but minimums."""
    tree = draft.queues.tree
    # Who leaves for a child leaves for its parents too.
    for name in sorted(tree.queues, key=lambda name: (-len(tree.chains[name]), name)):
        if draft.queues.beyond_capability(name):
            _lower(draft, name)


def _lower(draft: Draft, name: str) -> None:
    inside = [
        state.job.key
        for queue, jobs in draft.cluster.queues.items()
        if draft.queues.tree.within(queue, name)
        for state in jobs.jobs
    ]
    givers = [(-job.weighted_surplus, key) for key in inside if _may_give(job := draft.job(key))]
    heapq.heapify(givers)
    while givers and (beyond := draft.queues.beyond_capability(name)):
        _, key = heapq.heappop(givers)
        job = draft.job(key)
        if any(job.state.shape.vector[i] for i in beyond):
            draft.lower(job, job.size - job.state.unit, Reason.LOWERED_TO_CAPABILITY)
            job.queue_beyond = name
            if _may_give(job):
                heapq.heappush(givers, (-job.weighted_surplus, key))


def _may_give(job: JobDraft) -> bool:
    return (
        job.state.movable
        and job.state.policy.mode is Mode.ACTIVE
        and job.size - job.state.unit >= job.job.min
        and job.held > job.job.min
    )
