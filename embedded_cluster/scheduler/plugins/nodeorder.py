"""Spreads pods: points for room left, balance, preferred affinity and tolerated taints."""

from __future__ import annotations

import math

from embedded_cluster.scheduler.functions import Functions, Points, number
from embedded_cluster.scheduler.plugins.predicates import term_matches, tolerates
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Node, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption

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
        number(option, name, default)
        for name, default in zip(ARGUMENTS, (1.0, 0.0, 1.0, 2.0, 3.0), strict=True)
    )

    def order(task: Task) -> Points:
        asks = [(name, task.requests.get(name, 0)) for name in ("cpu", "memory")]
        if _GPU in task.requests:
            asks.append((_GPU, task.requests[_GPU]))
        suits = {
            name: affinity * _preferred(task, node) + taints * _tolerated(task, node)
            for name, node in session.nodes.items()
        }

        def points(node: Node) -> float:
            """Each part from 0 to 100, in whole points as in Kubernetes."""
            left, used = session.future_idle(node), []
            mean = 0.0
            for name, request in asks:
                if total := node.allocatable.get(name, 0):
                    part = min(1.0, max(0.0, 1 - (left.get(name, 0) - request) / total))
                    used.append(part)
                    if name != _GPU:
                        mean += int(100 * part) / 2
            return (
                suits[node.name]
                + least * int(100 - mean)
                + most * int(mean)
                + balanced * int(100 * (1 - _deviation(used)))
            )

        return points

    return Functions(node_order=order)


def _deviation(values: list[float]) -> float:
    if not values:
        return 0.0
    mean, squares = sum(values) / len(values), 0.0
    for value in values:
        squares += (value - mean) ** 2
    return math.sqrt(squares / len(values))


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
