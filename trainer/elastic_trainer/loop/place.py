"""Keeps torchrun's variables true while a process' place changes."""

from __future__ import annotations

import os

from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import ROUND_VARIABLE


def environment(place: Place, local_world_size: int) -> dict[str, str]:
    """The variables that torchrun would start a worker of this place with."""
    size = max(1, local_world_size)
    return {
        "RANK": str(place.rank),
        "ROLE_RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "ROLE_WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.rank % size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": str(place.rank // size),
        "GROUP_WORLD_SIZE": str(place.world // size),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        ROUND_VARIABLE: str(place.round),
    }


def set_environment(place: Place) -> None:
    """Make this process's environment say its place; libraries ask it at any time."""
    os.environ.update(environment(place, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
