"""Packs pods: points for how full the node would be in what the pod asks for."""

from __future__ import annotations

from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Node, Task

ARGUMENTS = (
    "binpack.weight",
    "binpack.cpu",
    "binpack.memory",
    "binpack.resources",
    "binpack.resources.*",
)


def binpack(session: Session, option: PluginOption) -> Functions:
    weights = {"cpu": option.number("binpack.cpu", 1), "memory": option.number("binpack.memory", 1)}
    for name in str(option.arguments.get("binpack.resources", "")).split(","):
        if name.strip():
            weights[name.strip()] = option.number(f"binpack.resources.{name.strip()}", 1)

    def points(task: Task, node: Node) -> float:
        """From 0 to 100, times the weight."""
        score = whole = 0.0
        for name, weight in weights.items():
            total, request = node.allocatable.get(name, 0), task.requests.get(name, 0)
            if request > 0 and total > 0:
                used = total - session.idle(node).get(name, 0) + request
                score += weight * min(1.0, used / total)
                whole += weight
        return option.number("binpack.weight", 1) * 100 * score / whole if whole else 0.0

    return Functions(node_order=points)
