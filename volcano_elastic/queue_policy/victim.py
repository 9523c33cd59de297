"""Surplus pods that may be asked to leave, and sets of them that make room."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.queue_policy.fit import Vector
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing

Key = tuple[float, int, int, int, int, float, float, int, str]
"""Pods that leave per slot won, pods that leave, protected, running, whose queue, its share,
surplus, index, name: smallest first."""


@dataclass(frozen=True, slots=True)
class Victim:
    pod: Pod
    standing: Standing
    node: int
    vector: Vector


@dataclass(frozen=True, slots=True)
class Option:
    key: Key
    victims: tuple[Victim, ...]
    slots: int = 1
    """How many more pods of the claim it makes room for."""
