"""The nodes of a simulation, filled as Volcano's binpack fills them."""

from __future__ import annotations

from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.snapshot.snapshot import Node


class SimulatedNodes:
    """Counts the free units of each node; every worker holds one."""

    def __init__(self, config: SimulationConfig) -> None:
        room = {config.resource: config.per_node * 1000, "pods": config.per_node * 1000}
        digits = len(str(config.nodes - 1))
        self.nodes = tuple(Node(f"node-{n:0{digits}}", room) for n in range(config.nodes))
        self.free = config.total
        self._left = {node.name: config.per_node for node in self.nodes}
        # Names by units left, so that the fullest node that still has room is found at once.
        self._by_left: list[dict[str, None]] = [{} for _ in range(config.per_node + 1)]
        self._by_left[config.per_node] = dict.fromkeys(self._left)

    def take(self) -> str | None:
        """Take one unit of the fullest node that has any; return its name, or None."""
        for left in self._by_left[1:]:
            if left:
                name = next(iter(left))
                self._move(name, -1)
                return name
        return None

    def give(self, name: str) -> None:
        """Free one unit of a node."""
        self._move(name, 1)

    def _move(self, name: str, change: int) -> None:
        left = self._left[name]
        del self._by_left[left][name]
        self._left[name] = left + change
        self._by_left[left + change][name] = None
        self.free += change
