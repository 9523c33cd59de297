"""Spreads pods: points for room left, balance, preferred affinity and tolerated taints."""

from __future__ import annotations

import math

from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.plugins.predicates import term_matches, tolerates
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Node, Task

_GPU = "nvidia.com/gpu"
ARGUMENTS = (
    "leastrequested.weight",
    "mostrequested.weight",
    "balancedresource.weight",
    "nodeaffinity.weight",
    "tainttoleration.weight",
)


def nodeorder(session: Session, option: PluginOption) -> Functions:
    least, most, balanced, affinity, taints = (
        option.number(name, default)
        for name, default in zip(ARGUMENTS, (1.0, 0.0, 1.0, 2.0, 3.0), strict=True)
    )

    def points(task: Task, node: Node) -> float:
        """Each part from 0 to 100, as in Kubernetes: whole points, so that near equals are equal."""
        left = session.future_idle(node)
        used = {}
        for name in ("cpu", "memory", _GPU):
            total, request = node.allocatable.get(name, 0), task.requests.get(name, 0)
            if total > 0 and (request or name != _GPU):
                used[name] = min(1.0, max(0.0, 1 - (left.get(name, 0) - request) / total))
        full = [int(100 * used[name]) for name in ("cpu", "memory") if name in used]
        mean = sum(full) / len(full) if full else 0.0
        spread = _deviation(list(used.values()))
        return (
            least * int(100 - mean)
            + most * int(mean)
            + balanced * int(100 * (1 - spread))
            + affinity * _preferred(task, node)
            + taints * _tolerated(task, node)
        )

    return Functions(node_order=points)


def _deviation(values: list[float]) -> float:
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _preferred(task: Task, node: Node) -> float:
    affinity = (task.spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    whole = sum(term.get("weight", 0) for term in terms)
    got = sum(t.get("weight", 0) for t in terms if term_matches(t.get("preference") or {}, node))
    return 100 * got / whole if whole else 0.0


def _tolerated(task: Task, node: Node) -> float:
    soft = [taint for taint in node.taints if taint.get("effect") == "PreferNoSchedule"]
    tolerations = task.spec.get("tolerations") or ()
    bad = sum(not any(tolerates(t, taint) for t in tolerations) for taint in soft)
    return 100 * (1 - bad / len(soft)) if soft else 100.0
