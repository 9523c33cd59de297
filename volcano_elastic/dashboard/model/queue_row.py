"""Queues as the page lists them: a tree, each with what it holds beside what it is entitled to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.dashboard.model.gpu_use import NO_QUEUE, GpuUse, QueueUse
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.snapshot.snapshot import Queue, Resources, Snapshot

MOST = 200
"""Rows; a longer list tells how many more there are."""
_NOTHING = QueueUse()


def in_tree_order(queues: Iterable[Queue]) -> list[tuple[Queue, int]]:
    """Return each queue once with its depth, parents before their children, else by name. Parents
    that don't exist or run in a ring count as none."""
    by_name = {queue.name: queue for queue in queues}
    children: dict[str | None, list[str]] = {}
    for name in sorted(by_name):
        parent = by_name[name].parent
        above = parent if parent in by_name and not _ring(name, by_name) else None
        children.setdefault(above, []).append(name)
    found: list[tuple[Queue, int]] = []
    # Without recursion: nothing bounds the depth of somebody's tree.
    due = [(name, 0) for name in reversed(children.get(None, []))]
    while due:
        name, depth = due.pop()
        found.append((by_name[name], depth))
        due += [(child, depth + 1) for child in reversed(children.get(name, []))]
    return found


def _ring(name: str, queues: Mapping[str, Queue]) -> bool:
    """Return whether the queue's parents lead back to it."""
    seen, at = {name}, queues[name].parent
    while at in queues:
        assert at is not None
        if at == name:
            return True
        if at in seen:
            return False
        seen.add(at)
        at = queues[at].parent
    return False


def family(queues: Iterable[Queue], name: str) -> frozenset[str]:
    """Return the queue and all below it."""
    ordered = in_tree_order(queues)
    found, depth = {name}, -1
    for queue, at in ordered:
        if depth >= 0 and at > depth:
            found.add(queue.name)
        else:
            depth = at if queue.name == name else -1
    return frozenset(found)


def _summed(ordered: Sequence[tuple[Queue, int]], use: GpuUse) -> dict[str, QueueUse]:
    """Return by queue what it and all below it use together."""
    found: dict[str, QueueUse] = {}
    above: list[str] = []
    for queue, depth in ordered:
        above = [*above[:depth], queue.name]
        mine = use.queues.get(queue.name, _NOTHING)
        for name in above:
            total = found.setdefault(name, QueueUse())
            total.held += mine.held
            total.running += mine.running
            total.wanted += mine.wanted
            total.idle_wanted = min(use.idle, total.idle_wanted + mine.idle_wanted)
    return found


def queue_rows(
    snapshot: Snapshot, plan: Plan, use: GpuUse, waiting: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the rows in the tree's order, and last what is in no queue. Amounts are those of a
    queue and all below it, as Volcano counts.

    Args:
        waiting: how many jobs and gangs of each queue wait for their minimum.
    """
    policies, resource = effective(snapshot.policies), use.resource
    ordered = in_tree_order(snapshot.queues)
    listed = {queue.name for queue, _ in ordered}
    stray = sorted(name for name in use.queues if name not in listed and name != NO_QUEUE)
    sums = _summed(ordered, use)
    rows = []
    for queue, depth in (*ordered, *((Queue(name), 0) for name in stray)):
        name, policy = queue.name, policies.get(queue.name) or QueuePolicy(queue.name)
        figures = plan.queues.get(name)
        mine = sums.get(name) or use.queues.get(name, _NOTHING)
        same = figures is not None and figures.resource == resource
        rows.append(
            {
                "name": name,
                "parent": queue.parent,
                "depth": depth,
                "open": queue.open,
                "missing": bool(snapshot.queues) and name in stray,
                **_use(mine),
                "deserved": _stated(queue.deserved, resource),
                "guarantee": _stated(queue.guarantee, resource),
                "capability": _stated(queue.capability, resource),
                "weight": queue.weight if snapshot.proportion else None,
                "free": figures.free / 1000 if figures is not None and same else None,
                "borrowed": figures.borrowed / 1000 if figures is not None and same else None,
                "jobs": figures.jobs if figures is not None else 0,
                "waiting": waiting.get(name, 0),
                "problem": (figures.problem if figures is not None else "") or None,
                "mode": str(policy.mode),
                "policy": policy.name or None,
            }
        )
    if NO_QUEUE in use.queues:
        rows.append({"name": "", "depth": 0, "open": True, **_use(use.queues[NO_QUEUE])})
    return rows


def _use(use: QueueUse) -> dict[str, float]:
    return {
        "held": use.held / 1000,
        "running": use.running / 1000,
        "wanted": use.wanted / 1000,
        "idleWanted": use.idle_wanted / 1000,
    }


def _stated(resources: Resources | None, resource: str) -> float | None:
    amount = (resources or {}).get(resource)
    return None if amount is None else amount / 1000
