"""The network between the agents of a job, which can be parted, delayed and cut, pair by pair."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from tests.elastic_trainer.fault_proxy import Proxy

VARIABLE = "FAULTY_NETWORK"
"""Holds, for faulty_node/sitecustomize.py, what `told_to` returns."""


Kind = Literal["drop", "refuse"]
"""Fate of new connections between parted nodes, as by a firewall's DROP and REJECT. Those that are
open fall silent by both."""


def address(node: int) -> str:
    return f"127.0.0.{node + 1}"


class Network:
    """From each agent to each other's coordinator there is a proxy. Questions to succession
    services go straight there, so that one that has ended refuses them, and nowhere while a pair is
    parted; where it is parted by `refuse`, they are refused. What ranks tell one another is not
    parted.

    Args:
        folder: for the file that says which pairs are.
        nodes: that the job may have.
        kind: of its partitions.
        port: of the coordinator, wherever it is; its agents serve the second one after it.
    """

    def __init__(self, folder: Path, nodes: int, port: int, kind: Kind = "drop") -> None:
        self._nodes, self._port = nodes, port
        self._file = folder / "parted"
        self._parted: dict[frozenset[int], int] = {}
        """How often each pair is."""
        self._nowhere = socket.socket()
        self._nowhere.bind((f"127.64.{nodes}.1", port + 2))
        if kind == "drop":
            self._nowhere.listen()
        self._ways = {
            (one, other): Proxy((address(other), port), (self._way(one, other), port))
            for one, other in itertools.permutations(range(nodes), 2)
        }

    def _way(self, one: int, other: int) -> str:
        return f"127.64.{one}.{other + 1}"

    def told_to(self, node: int) -> str:
        """Return what an agent's process is told of the network."""
        others = [other for other in range(self._nodes) if other != node]
        return json.dumps(
            {
                "node": node,
                "port": self._port,
                "parted": str(self._file),
                "nowhere": self._nowhere.getsockname()[0],
                "nodes": {address(other): other for other in others},
                "ways": {address(other): self._way(node, other) for other in others},
            }
        )

    def of(self, node: int) -> list[Proxy]:
        """Return the ways from and to a node."""
        return [proxy for pair, proxy in self._ways.items() if node in pair]

    def part(self, side: Collection[int]) -> None:
        """Nothing passes between these nodes and the others, until `join` is called alike."""
        self._change(side, 1)

    def join(self, side: Collection[int]) -> None:
        self._change(side, -1)

    def _change(self, side: Collection[int], by: int) -> None:
        others = set(range(self._nodes)) - set(side)
        for one, other in itertools.product(side, others):
            pair = frozenset((one, other))
            self._parted[pair] = self._parted.get(pair, 0) + by
            for way in ((one, other), (other, one)):
                if self._parted[pair]:
                    self._ways[way].open.clear()
                else:
                    self._ways[way].open.set()
        parted = [sorted(pair) for pair, times in self._parted.items() if times]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(parted))
        new.rename(self._file)

    def close(self) -> None:
        self._nowhere.close()
        for proxy in self._ways.values():
            with contextlib.suppress(OSError):
                proxy.close()
