"""An agent's order to a rank, given at a step boundary."""

from __future__ import annotations

from enum import Enum


class Order(Enum):
    """Tells a rank what to do at a step boundary: the answer of `WorkerLink.boundary`."""

    GO = "go"
    FENCE = "fence"
    LEAVE = "leave"
    ABORTED = "aborted"
    """The round broke; only a worker that recovers in process hears it."""
