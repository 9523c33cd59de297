"""The nodes in the order in which tasks of one shape want them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from embedded_cluster.scheduler.functions import Points
from embedded_cluster.scheduler.resources import PODS, Resources, lacking
from embedded_cluster.scheduler.snapshot import Node, Task

_Entry = tuple[bool, float, str]


class Nodes(Protocol):
    """Answers of the session that a ranking needs."""

    @property
    def nodes(self) -> Mapping[str, Node]: ...

    @property
    def touched(self) -> Sequence[str]:
        """Names of nodes, each time that what they hold changes."""

    def predicate(self, task: Task, node: Node) -> str | None:
        """Return why the task may not be on the node."""

    def points(self, task: Task) -> list[Points]: ...

    def idle(self, node: Node) -> Resources: ...

    def future_idle(self, node: Node) -> Resources: ...


class Ranking:
    """Follows the session: only the nodes that it touched since are looked at again."""

    def __init__(self, session: Nodes, task: Task) -> None:
        self._session, self._task = session, task
        self._refused: Counter[str] = Counter()
        self._open: dict[str, Node] = {}
        for node in session.nodes.values():
            if reason := session.predicate(task, node):
                self._refused[reason] += 1
            else:
                self._open[node.name] = node
        self._wanted = session.points(task)
        self._asks = [(name, amount) for name, amount in task.requests.items() if amount > 0]
        self._points: dict[str, float] = {}
        self._entries: dict[str, _Entry] = {}
        """Entries of each node that has room or will have it; the heap holds outdated ones too:
        whether it must wait for room, points below none, name."""
        self._heap: list[_Entry] = []
        self._seen = len(session.touched)
        self._why: tuple[int, str] | None = None
        for name in self._open:
            self._look(name)

    def best(self) -> tuple[Node, bool] | None:
        """The best node and whether there is room now; else, where there will be when what is
        leaving has left. Room that was promised to others is none. Ties go by name."""
        self._follow()
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) == entry:
                return self._open[entry[2]], not entry[0]
            heapq.heappop(self._heap)
        return None

    def nodes(self) -> list[Node]:
        """All that the task may be on, whatever room they have: by points; among equals those with
        room first, then by name."""
        self._follow()

        def order(name: str) -> tuple[float, bool, str]:
            return -self._points[name], name not in self._entries, name

        return [self._open[name] for name in sorted(self._open, key=order)]

    def why_none(self) -> str:
        """Why `best` is None, as Kubernetes counts reasons."""
        self._follow()
        if self._why is None or self._why[0] != self._seen:
            why = self._refused.copy()
            for node in self._open.values():
                for name in lacking(self._task.requests, self._session.future_idle(node)):
                    why["Too many pods" if name == PODS else f"Insufficient {name}"] += 1
            counted = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
            total = len(self._session.nodes)
            self._why = (
                self._seen,
                f"0/{total} nodes are unavailable: {counted or 'there is no node'}.",
            )
        return self._why[1]

    def _follow(self) -> None:
        touched = self._session.touched
        if self._seen < len(touched):
            for name in dict.fromkeys(touched[self._seen :]):
                if name in self._open:
                    self._look(name)
            self._seen = len(touched)

    def _look(self, name: str) -> None:
        node = self._open[name]
        points = 0.0
        for function in self._wanted:
            points += function(node)
        self._points[name] = points
        future, idle, waits = self._session.future_idle(node), self._session.idle(node), False
        for resource, amount in self._asks:
            if amount > future.get(resource, 0):
                self._entries.pop(name, None)
                return
            waits = waits or amount > idle.get(resource, 0)
        entry = (waits, -points, name)
        if self._entries.get(name) != entry:
            self._entries[name] = entry
            heapq.heappush(self._heap, entry)
