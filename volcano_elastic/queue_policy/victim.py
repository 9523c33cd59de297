"""Surplus pods that may be asked to leave, what is asked, and sets of them that make room."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing

Rank = tuple[float, int, int, int, int, float, float, int]
"""Pods that leave per slot won, pods that leave, protected, running, whose queue, its share,
surplus of the job that has least, its highest index that leaves: smallest first."""

Key = tuple[Rank, str]
"""A rank, and the name of the pod that decides among equals of one node."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Room for more pods, from surplus."""

    shape: Shape
    queue: str
    own: str | None
    """Key of the job that gives all of it, if one must."""
    protected: bool
    """Whether protected pods may leave."""
    need: int
    """Slots that are of use."""
    within: str | None = None
    """The queue in which all of it must count, if one is full."""


@dataclass(frozen=True, slots=True)
class Victim:
    pod: Pod
    standing: Standing
    node: int

    @property
    def vector(self) -> Vector:
        return self.standing.shape.vector


@dataclass(frozen=True, slots=True)
class Option:
    key: Key
    victims: tuple[Victim, ...]
    slots: int = 1
    """How many more pods of the claim it makes room for."""

    @property
    def rank(self) -> Rank:
        return self.key[0]
