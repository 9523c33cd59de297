"""CPU and memory of one pod or of several together, and the limits that every estimate keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from volcano_elastic.api.amount import Bytes, Cpu

LEAST_CPU, LEAST_MEMORY = Cpu(25), Bytes.parse("250M")
"""No recommendation is below these: the floors of Kubernetes' VerticalPodAutoscaler
(`--pod-recommendation-min-cpu-millicores`, `--pod-recommendation-min-memory-mb`)."""


@dataclass(frozen=True, slots=True)
class Amounts:
    cpu: Cpu
    memory: Bytes

    def __add__(self, other: Self) -> Self:
        return type(self)(self.cpu + other.cpu, self.memory + other.memory)

    def most_of(self, other: Self) -> Self:
        """Return the greater CPU and the greater memory of the two."""
        return type(self)(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def __str__(self) -> str:
        return f"{self.cpu} CPU, {self.memory}"


NOTHING = Amounts(Cpu(0), Bytes(0))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a pod's request."""

    used: Amounts = NOTHING
    """By the pod at its busiest, as far as is known."""
    node: Amounts | None = None
    """Allocatable of the largest node that the pod may be on; None: not known."""


def within(wanted: Amounts, limits: Limits) -> Amounts:
    """Return what may be requested instead of `wanted`: not below what is used, never 0, and not
    above a node, whatever else; memory in whole MiB."""
    found = wanted.most_of(limits.used).most_of(Amounts(LEAST_CPU, LEAST_MEMORY))
    found = Amounts(found.cpu, found.memory.whole_mebibytes())
    if limits.node is None:
        return found
    return Amounts(min(found.cpu, limits.node.cpu), min(found.memory, limits.node.memory))
