"""Decides which nodes are cordoned for failures of their hardware, where a queue's policy says so.

A node that a job keeps away from is cordoned once for it. Who uncordons it has looked: only a later
failure cordons it again. And only so many are: what a script does to all nodes must not close the
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.pytorchjob.exclusion import Exclusion

ANNOTATION = "volcano-elastic.io/cordoned"
"""On a node: until when the job keeps away from it that it was cordoned for, which one, and why."""
MOST_SHARE = 0.05
"""Share of all nodes, at least one, that are cordoned so at one time."""


@dataclass(frozen=True, slots=True)
class Cordon:
    node: str
    mark: str

    def patch(self) -> dict[str, Any]:
        """Return the merge patch of the node."""
        return {
            "metadata": {"annotations": {ANNOTATION: self.mark}},
            "spec": {"unschedulable": True},
        }


def decide(
    nodes: Iterable[Mapping[str, Any]], excluded: Iterable[tuple[str, Exclusion]]
) -> tuple[list[Cordon], list[str]]:
    """Return the nodes to cordon, and those that would be too many.

    Args:
        nodes: all of the cluster.
        excluded: by jobs whose queues' policies say so, with their keys.
    """
    newest: dict[str, tuple[str, Exclusion]] = {}
    for job, one in excluded:
        if one.node not in newest or newest[one.node][1].until < one.until:
            newest[one.node] = job, one
    everybody = list(nodes)
    ours = sum(_unschedulable(node) and bool(_mark(node)) for node in everybody)
    room = max(1, int(MOST_SHARE * len(everybody))) - ours
    found: list[Cordon] = []
    beyond: list[str] = []
    for node in sorted(everybody, key=lambda node: str(node["metadata"]["name"])):
        name = str(node["metadata"]["name"])
        if name not in newest or _unschedulable(node):
            continue
        job, exclusion = newest[name]
        until = moment.micro_timestamp(exclusion.until)
        if _mark(node).partition(" ")[0] >= until:
            continue
        if len(found) >= room:
            beyond.append(name)
        else:
            found.append(Cordon(name, f"{until} {job}: {exclusion.reason}"[:1000]))
    return found, beyond


def _mark(node: Mapping[str, Any]) -> str:
    return str((node["metadata"].get("annotations") or {}).get(ANNOTATION) or "")


def _unschedulable(node: Mapping[str, Any]) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))
