"""Sums up each queue for its policy's status: what is free, held, borrowed and owed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from volcano_elastic.api import quantity
from volcano_elastic.cluster_state.claim import Claim
from volcano_elastic.cluster_state.cluster_state import ClusterState


class QueueFigures(NamedTuple):
    """Amounts in milli-units of the policy's `resource`."""

    resource: str
    free: int
    """Idle on nodes that take pods, as far as the queue may still use it."""
    guaranteed: int
    """Amount that pods of minimums hold: it is never taken."""
    surplus: int
    """Amount that elastic pods beyond the minimums hold, those of others' gangs too."""
    borrowed: int
    """Amount held beyond the larger of the queue's deserved and its guarantee; 0 where it states
    neither."""
    owed_to_minimums: int
    """Amount that jobs and gangs of the queue still need to start or to go on."""
    jobs: int
    problem: str = ""
    """The fault of the Queue itself: its parents."""

    def shown(self) -> dict[str, str | int]:
        """Return the figures as quantities, under the names of a policy's status."""
        return {
            "free": quantity.text(self.free),
            "guaranteed": quantity.text(self.guaranteed),
            "surplus": quantity.text(self.surplus),
            "borrowed": quantity.text(self.borrowed),
            "owedToMinimums": quantity.text(self.owed_to_minimums),
            "jobs": self.jobs,
        }


def queue_figures(cluster: ClusterState, asking: Iterable[Claim]) -> dict[str, QueueFigures]:
    """Return the figures by queue, in its policy's resource; `asking`: claims of jobs that have
    started."""
    tree, bounds = cluster.tree, cluster.bounds
    surplus, jobs, owed = Counter[str](), Counter[str](), Counter[str]()
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
    # All claims of a line ask for the same.
    alike = [(claims[0], len(claims)) for claims in cluster.lines.values()]
    requests = [(claim.queue, [amount * n for amount in claim.request]) for claim, n in alike]
    others = (*asking, *(claim for claim in cluster.gang_claims if not claim.runs))
    requests += [(claim.queue, claim.request) for claim in others]
    for asker, request in requests:
        for queue in tree.chains.get(asker, ()):
            i = tree.dimension[queue]
            if i is not None:
                owed[queue] += request[i]
    found: dict[str, QueueFigures] = {}
    for name, amounts in cluster.held.items():
        i, resource, problem = tree.dimension[name], tree.resources[name], tree.problems.get(name)
        held = elastic = free = borrowed = 0
        if i is not None:
            held, right = amounts[i], max(bounds.deserved[name][i], tree.guarantees[name][i])
            elastic = min(held, surplus[name])
            borrowed = max(0, held - right) if right > 0 else 0
            if cluster.idle and tree.closed(name) is None:
                room = [bounds.caps[q][i] - cluster.held[q][i] for q in tree.chains[name]]
                free = max(0, min(cluster.idle[i], *room))
        found[name] = QueueFigures(
            resource, free, held - elastic, elastic, borrowed, owed[name], jobs[name], problem or ""
        )
    return found
