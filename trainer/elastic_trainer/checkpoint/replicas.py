"""Tells which ranks hold the same part of a sharded state, as HSDP's replicas do. Pure."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

Layout = tuple[DeviceMesh, tuple[bool, ...]]
"""A mesh, and by dimension of it whether its ranks hold the same."""


def layouts(parameters: Collection[DTensor]) -> set[Layout]:
    """Return how these are spread over their ranks."""
    return {
        (one.device_mesh, tuple(placement.is_replicate() for placement in one.placements))
        for one in parameters
    }


def number_parts(spread: Collection[Layout], world: int) -> list[int]:
    """Return the number of each rank's part: equal for ranks that hold the same, from 0 on.

    Where a mesh lacks some of the ranks, it isn't known here what those hold, and each rank has a
    part of its own.
    """
    places: list[tuple[int, ...]] = [()] * world
    for mesh, alike in spread:
        ranks, order = mesh.mesh.flatten().sort()
        if ranks.tolist() != list(range(world)):
            return list(range(world))
        at = torch.stack(torch.unravel_index(order, mesh.mesh.shape), 1)
        at[:, torch.tensor(alike)] = 0
        places = [known + tuple(found) for known, found in zip(places, at.tolist(), strict=True)]
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(place, len(numbers)) for place in places]
