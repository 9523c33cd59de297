"""Decides which nodes a pod may go to, and how much of each resource it takes there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from volcano_elastic.snapshot.snapshot import Node, NodeAffinity, Pod, Requirement, Resources

Vector = tuple[int, ...]
"""Amounts in milli-units, in the order of `Dimensions.names`."""

PODS = "pods"
ONE = 1000
UNLIMITED = 1 << 62
"""Room of a dimension that a node does not state and that needs no statement (pods)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """All that fit asks of a pod; `Dimensions.shape` makes one object of all that ask the same, so
    that they are told apart by identity."""

    vector: Vector
    selector: frozenset[tuple[str, str]] = frozenset()
    tolerations: frozenset[tuple[str, str, str, str]] = frozenset()
    """(key, operator, value, effect)"""
    affinity: NodeAffinity = ()
    needs: tuple[tuple[int, int], ...] = field(init=False)
    """(dimension, amount) where the amount is not zero."""

    def __post_init__(self) -> None:
        needs = tuple((i, amount) for i, amount in enumerate(self.vector) if amount > 0)
        object.__setattr__(self, "needs", needs)


class Dimensions:
    """Turns resources into vectors; each distinct mapping is turned only once."""

    def __init__(self, named: Iterable[Resources]) -> None:
        """`named`: what nodes offer and pods ask: a resource that only pods name fits nowhere, and
        must still be seen to fit nowhere."""
        names = {PODS}
        for mapping in named:
            names.update(mapping)
        self.names: tuple[str, ...] = tuple(sorted(names))
        self._named = names
        self._by_content: dict[tuple[tuple[str, int], ...], Vector] = {}
        self._plain: dict[Vector, Shape] = {}
        self._shapes: dict[tuple[object, ...], Shape] = {}

    def know(self, requests: Resources) -> bool:
        """Return whether every resource named has its dimension."""
        return requests.keys() <= self._named

    def request(self, requests: Resources) -> Vector:
        # In another order it is found again, a little later.
        content = tuple(requests.items())
        vector = self._by_content.get(content)
        if vector is None:
            # Every pod takes one of its node's pods, whether it says so or not.
            vector = tuple(requests.get(name, ONE if name == PODS else 0) for name in self.names)
            self._by_content[content] = vector
        return vector

    def allocatable(self, node: Node) -> Vector:
        return tuple(
            node.allocatable.get(name, UNLIMITED if name == PODS else 0) for name in self.names
        )

    def shape(
        self,
        requests: Resources,
        selector: Mapping[str, str],
        tolerations: Sequence[Mapping[str, str | int]],
        affinity: NodeAffinity = (),
    ) -> Shape:
        vector = self.request(requests)
        if not (selector or tolerations or affinity):
            # Of most pods nothing else need be looked at.
            plain = self._plain.get(vector)
            if plain is None:
                plain = self._plain[vector] = Shape(vector)
            return plain
        tolerated = [
            (
                str(toleration.get("key", "")),
                str(toleration.get("operator", "Equal")),
                str(toleration.get("value", "")),
                str(toleration.get("effect", "")),
            )
            for toleration in tolerations
        ]
        asks = (
            vector,
            frozenset(selector.items()),
            frozenset(tolerated),
            affinity,
        )
        found = self._shapes.get(asks)
        if found is None:
            found = self._shapes[asks] = Shape(*asks)
        return found

    def shape_of(self, pod: Pod) -> Shape:
        return self.shape(pod.requests, pod.node_selector, pod.tolerations, pod.node_affinity)


def admits(node: Node, shape: Shape) -> bool:
    """Return whether `node` admits new pods of this shape, however full it is."""
    if not node.takes_pods:
        return False
    if any(node.labels.get(key) != value for key, value in shape.selector):
        return False
    if shape.affinity and not any(
        term and all(_satisfies(node, requirement) for requirement in term)
        for term in shape.affinity
    ):
        return False
    return all(
        effect == "PreferNoSchedule"
        or any(_tolerates(toleration, key, value, effect) for toleration in shape.tolerations)
        for key, value, effect in node.taints
    )


def _tolerates(toleration: tuple[str, str, str, str], key: str, value: str, effect: str) -> bool:
    t_key, operator, t_value, t_effect = toleration
    if t_effect not in ("", effect):
        return False
    if not t_key:
        return operator == "Exists"
    return t_key == key and (operator == "Exists" or t_value == value)


def _satisfies(node: Node, requirement: Requirement) -> bool:
    key, operator, values, of_field = requirement
    found = node.labels.get(key)
    if of_field:
        found = node.name if key == "metadata.name" else None
    match operator:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            try:
                have, bound = int(found or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > bound if operator == "Gt" else have < bound
    # Kubernetes matches nothing with an operator that it doesn't know.
    return False
