"""Nodes as the page lists them: what is free there, and what keeps pods out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from volcano_elastic.dashboard.model.gpu_use import PodCount
from volcano_elastic.snapshot.snapshot import Node, Snapshot

_KEEPS_OUT = frozenset(("NoSchedule", "NoExecute"))
_MOST_TAINTS = 4


@dataclass(frozen=True, slots=True)
class NodeRow:
    name: str
    offered: int
    """Thousandths of the resource."""
    held: int
    takes_pods: bool
    out: tuple[str, ...]
    """Faults that keep pods out, all of them or those that don't tolerate it."""
    avoided_by: int
    """Jobs that keep away from it, since it failed them."""

    def shown(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "offered": self.offered / 1000,
            "held": self.held / 1000,
            "free": max(0, self.offered - self.held) / 1000,
            "takesPods": self.takes_pods,
            "out": list(self.out),
            "avoidedBy": self.avoided_by,
        }


def node_rows(snapshot: Snapshot, counts: PodCount, resource: str) -> tuple[NodeRow, ...]:
    """Return nodes that something is the matter with first, those with most GPUs free before
    others."""
    avoided = Counter(node for job in snapshot.jobs for node in job.excluded)
    rows = [
        NodeRow(
            node.name,
            node.allocatable.get(resource, 0),
            counts.nodes.get(node.name, 0),
            node.takes_pods,
            tuple(_out(node)),
            avoided[node.name],
        )
        for node in snapshot.nodes
    ]
    return tuple(sorted(rows, key=_order))


def _order(row: NodeRow) -> tuple[bool, bool, int, str]:
    calm = not (row.out or row.avoided_by)
    return row.takes_pods, calm, row.held - row.offered, row.name


def _out(node: Node) -> list[str]:
    found = []
    if not node.ready:
        found.append("it is not Ready")
    if node.unschedulable:
        found.append("it is cordoned")
    if node.leave:
        found.append(f"jobs leave it: it {node.leave}")
    taints = [
        f"taint {key}={value}:{effect}" if value else f"taint {key}:{effect}"
        for key, value, effect in node.taints
        if effect in _KEEPS_OUT and not (node.unschedulable and key.endswith("/unschedulable"))
    ]
    found += taints[:_MOST_TAINTS]
    if len(taints) > _MOST_TAINTS:
        found.append(f"{len(taints) - _MOST_TAINTS} more taints")
    return found
