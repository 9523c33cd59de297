"""Packs pods: points for how full the node would be in what the pod asks for."""

from __future__ import annotations

from embedded_cluster.scheduler.functions import Functions, Points, number
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Node, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption

ARGUMENTS = (
    "binpack.weight",
    "binpack.cpu",
    "binpack.memory",
    "binpack.resources",
    "binpack.resources.*",
)


def binpack(session: Session, option: PluginOption) -> Functions:
    weights = {name: number(option, f"binpack.{name}", 1) for name in ("cpu", "memory")}
    for name in str(option.arguments.get("binpack.resources", "")).split(","):
        if name.strip():
            weights[name.strip()] = number(option, f"binpack.resources.{name.strip()}", 1)

    def order(task: Task) -> Points:
        asks = [(n, task.requests[n], w) for n, w in weights.items() if task.requests.get(n, 0) > 0]
        whole = sum(weight for _, _, weight in asks)

        def points(node: Node) -> float:
            """From 0 to 100, times the weight; 0 where the pod doesn't fit at once."""
            idle, score = session.idle(node), 0.0
            for name, request, weight in asks:
                total = node.allocatable.get(name, 0)
                used = total - idle.get(name, 0) + request
                if used > total > 0:
                    return 0.0
                score += weight * used / total if total else 0.0
            return number(option, "binpack.weight", 1) * 100 * score / whole if whole else 0.0

        return points

    return Functions(node_order=order)
