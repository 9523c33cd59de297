"""The nodes of a simulation: which has how much left, filled as Volcano's binpack fills them."""

from __future__ import annotations

from volcano_elastic.simulator.setting import Setting
from volcano_elastic.snapshot.snapshot import Node


class Floor:
    """Every worker holds one unit, so a node is a number of free units."""

    def __init__(self, setting: Setting) -> None:
        room = {setting.resource: setting.per_node * 1000, "pods": setting.per_node * 1000}
        digits = len(str(setting.nodes - 1))
        self.nodes = tuple(Node(f"node-{n:0{digits}}", room) for n in range(setting.nodes))
        self.free = setting.total
        self._left = {node.name: setting.per_node for node in self.nodes}
        # Names by units left, so that the fullest node that still has room is found at once.
        self._by_left: list[dict[str, None]] = [{} for _ in range(setting.per_node + 1)]
        self._by_left[setting.per_node] = dict.fromkeys(self._left)

    def take(self) -> str | None:
        """One unit on the fullest node that has any."""
        for left in self._by_left[1:]:
            if left:
                name = next(iter(left))
                self._move(name, -1)
                return name
        return None

    def give(self, name: str) -> None:
        self._move(name, 1)

    def _move(self, name: str, change: int) -> None:
        left = self._left[name]
        del self._by_left[left][name]
        self._left[name] = left + change
        self._by_left[left + change][name] = None
        self.free += change
