"""Shows the planner Kueue's quotas as queues, and workloads that wait as claims.

Quota that others' workloads hold is taken off: what is left is for jobs whose size the planner
decides, and for who waits. Cohorts are parents of their queues. A queue of several flavors has one
child for each, since a job that runs may only grow in the flavor that it was admitted with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from volcano_elastic.adapters.kueue import (
    Amounts,
    ClusterQueue,
    Cohort,
    FlavorQuota,
    LocalQueue,
    Workload,
)
from volcano_elastic.snapshot.snapshot import Gang, Queue

_PREFIX = "kueue/"
"""No queue of Volcano's can be called so."""


@dataclass(frozen=True, slots=True)
class Kueue:
    """All that Kueue's objects say."""

    cluster_queues: Mapping[str, ClusterQueue]
    cohorts: Mapping[str, Cohort]
    local_queues: Mapping[str, LocalQueue]
    """By namespace/name."""
    workloads: Mapping[str, Sequence[Workload]]
    """By owner; under an empty string those without one."""


def queue_name(cluster_queue: str, flavor: str = "") -> str:
    """Return the planner's name of a ClusterQueue, or of its part of one flavor."""
    return f"{_PREFIX}{cluster_queue}/{flavor}" if flavor else f"{_PREFIX}{cluster_queue}"


def is_kueue(name: str) -> bool:
    """Return whether a queue or claim of the planner's is of Kueue's making."""
    return name.startswith(_PREFIX)


def cohort_name(cohort: str) -> str:
    """Return the planner's name of a cohort."""
    return f"{_PREFIX}cohort:{cohort}"


def queues(kueue: Kueue, sized: Collection[str]) -> list[Queue]:
    """Return the planner's queues.

    Args:
        sized: owners whose workloads' quota is not taken off, as their size is planned.
    """
    used = _used_by_others(kueue, sized)
    found: list[Queue] = []
    totals: dict[str, dict[str, int]] = {}
    for name, one in kueue.cluster_queues.items():
        mine, chain = used.get(name, {}), _ancestors(kueue, one.cohort)
        parent = cohort_name(one.cohort) if chain else None
        whole = _queue(queue_name(name), one, one.flavors, mine, parent)
        found.append(whole)
        if len(one.flavors) > 1:
            found += (
                _queue(queue_name(name, flavor), one, {flavor: quota}, mine, whole.name)
                for flavor, quota in one.flavors.items()
            )
        for cohort in chain:
            _add(totals.setdefault(cohort, {}), _nominal(one.flavors, mine))
    for name, known in kueue.cohorts.items():
        for above in _ancestors(kueue, name):
            _add(totals.setdefault(above, {}), _nominal(known.flavors, {}))
    for name, total in totals.items():
        higher = _ancestors(kueue, name)[1:]
        found.append(
            Queue(
                name=cohort_name(name),
                # One below others borrows of them.
                capability=None if higher else _not_negative(total),
                parent=cohort_name(higher[0]) if higher else None,
            )
        )
    return found


def claims(kueue: Kueue, sized: Collection[str]) -> list[Gang]:
    """Return what waits for quota, but for the next slice of a sized job, which nobody makes room
    for."""
    found = []
    for owner, workloads in kueue.workloads.items():
        for one in () if owner and owner in sized else workloads:
            local = kueue.local_queues.get(one.local_queue)
            if one.cluster_queue or not (one.active and one.pods and local and local.open):
                continue
            found.append(
                Gang(
                    key=f"{_PREFIX}{one.key}",
                    queue=queue_name(local.cluster_queue),
                    min_member=one.pods,
                    created=one.created,
                    priority=one.priority,
                    pod_requests={n: -(-v // one.pods) for n, v in one.requests.items() if v},
                )
            )
    return found


def queue_of(kueue: Kueue, local_queue: str, owner: str) -> str:
    """Return the planner's queue of a job, by the quota that it holds; else by its LocalQueue."""
    admitted = _admitted(kueue, owner)
    local = kueue.local_queues.get(local_queue)
    name = admitted.cluster_queue if admitted else local.cluster_queue if local else ""
    queue = kueue.cluster_queues.get(name)
    if admitted is None or queue is None or len(queue.flavors) < 2:
        return queue_name(name)
    # Of resources with a choice of flavors one decides: GPUs' where there are any.
    flavors = {resource: flavor for flavor, resource, _ in admitted.usage}
    several = [r for r in flavors if sum(r in f.nominal for f in queue.flavors.values()) > 1]
    if not several:
        return queue_name(name)
    return queue_name(name, flavors[max(several, key=lambda r: ("/" in r, r))])


def admitted_pods(kueue: Kueue, owner: str) -> int | None:
    """Return how many pods of the owner hold quota; None if none do."""
    found = _admitted(kueue, owner)
    return found.pods if found is not None else None


def waiting_slice(kueue: Kueue, owner: str) -> Workload | None:
    """Return the workload by which the owner, which holds quota, asks for more."""
    if _admitted(kueue, owner) is None:
        return None
    return next((w for w in kueue.workloads.get(owner, ()) if not w.cluster_queue), None)


def _admitted(kueue: Kueue, owner: str) -> Workload | None:
    own = (w for w in kueue.workloads.get(owner, ()) if w.cluster_queue)
    # While a slice takes another one's place, both may be told as holding.
    return max(own, key=lambda w: (w.created, w.pods), default=None)


def _used_by_others(kueue: Kueue, sized: Collection[str]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the amounts by ClusterQueue, flavor and resource."""
    used: dict[str, dict[str, dict[str, int]]] = {}
    for owner, workloads in kueue.workloads.items():
        for one in () if owner and owner in sized else workloads:
            for flavor, resource, amount in one.usage:
                held = used.setdefault(one.cluster_queue, {}).setdefault(flavor, {})
                held[resource] = held.get(resource, 0) + amount
    return used


def _queue(
    name: str,
    one: ClusterQueue,
    flavors: Mapping[str, FlavorQuota],
    used: Mapping[str, Amounts],
    parent: str | None,
) -> Queue:
    nominal = _nominal(flavors, used)
    if one.cohort:
        free = {r for f in flavors.values() for r in f.nominal if r not in f.most}
        most: dict[str, int] = {}
        for flavor, quota in flavors.items():
            _add(most, quota.most)
            _add(most, {r: -v for r, v in used.get(flavor, {}).items() if r in quota.most})
        capability = {r: v for r, v in most.items() if r not in free}
    else:
        capability = nominal
    return Queue(
        name=name,
        open=one.open,
        capability=_not_negative(capability) or None,
        deserved=_not_negative(nominal),
        parent=parent,
    )


def _nominal(flavors: Mapping[str, FlavorQuota], used: Mapping[str, Amounts]) -> dict[str, int]:
    """Return what others have left of the quotas; below 0 where they have borrowed."""
    left: dict[str, int] = {}
    for flavor, quota in flavors.items():
        _add(left, quota.nominal)
        _add(left, {r: -v for r, v in used.get(flavor, {}).items() if r in quota.nominal})
    return left


def _add(total: dict[str, int], amounts: Amounts) -> None:
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount


def _not_negative(amounts: Amounts) -> dict[str, int]:
    return {resource: max(0, amount) for resource, amount in amounts.items()}


def _ancestors(kueue: Kueue, cohort: str) -> list[str]:
    """Return the cohort and those above it; a ring ends where it began."""
    found: list[str] = []
    while cohort and cohort not in found:
        found.append(cohort)
        known = kueue.cohorts.get(cohort)
        cohort = known.parent if known else ""
    return found
