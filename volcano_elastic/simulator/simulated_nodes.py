"""The nodes of a simulation, filled as Volcano's binpack fills them. Amounts are thousandths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.snapshot.snapshot import Node


class SimulatedNodes:
    """Counts what is free of one resource on each node."""

    def __init__(self, nodes: Iterable[Node], resource: str) -> None:
        self.nodes = tuple(nodes)
        self._left = {
            node.name: node.allocatable.get(resource, 0) for node in self.nodes if node.takes_pods
        }
        self.free = sum(self._left.values())
        # Names by what is left, so that the fullest node that still has room is found at once.
        self._by_left: dict[int, dict[str, None]] = {}
        for name, left in self._left.items():
            self._by_left.setdefault(left, {})[name] = None
        self._rooms: dict[int, int] = {}
        """How many workers fit on all nodes as they are, by what each asks for."""

    def room(self, each: int, only: Collection[str] | None = None) -> int:
        """Return how many workers of `each` fit; on the nodes named, if any are."""
        found = self._rooms.get(each)
        if found is not None and only is None:
            return found
        if each <= 0:
            return 1 << 30
        if only is not None:
            return sum(max(0, self._left.get(name, 0)) // each for name in only)
        if found is None:
            there = self._by_left.items()
            found = sum([len(names) * (left // each) for left, names in there if left > 0])
            self._rooms[each] = found
        return found

    def take(self, each: int, only: Collection[str] | None = None) -> str | None:
        """Take so much of the fullest node that has it; return its name, or None."""
        for left in sorted(left for left in self._by_left if left >= each):
            for name in self._by_left[left]:
                if only is None or name in only:
                    self.hold(name, each)
                    return name
        return None

    def hold(self, name: str, amount: int) -> None:
        """Take so much of a node, whether it has it or not. One that takes no pods does not
        count."""
        if name in self._left:
            self._move(name, -amount)

    def give(self, name: str, amount: int) -> None:
        """Free so much of a node."""
        if name in self._left:
            self._move(name, amount)

    def _move(self, name: str, change: int) -> None:
        self._rooms.clear()
        left = self._left[name]
        names = self._by_left[left]
        del names[name]
        if not names:
            del self._by_left[left]
        self._left[name] = left + change
        self._by_left.setdefault(left + change, {})[name] = None
        self.free += change


def equal_nodes(config: SimulationConfig) -> tuple[Node, ...]:
    """Return the nodes of a cluster in which all are alike."""
    room: Mapping[str, int] = {
        config.resource: config.per_node * 1000,
        "pods": 1000 * config.per_node,
    }
    digits = len(str(config.nodes - 1))
    return tuple(Node(f"node-{n:0{digits}}", room) for n in range(config.nodes))
