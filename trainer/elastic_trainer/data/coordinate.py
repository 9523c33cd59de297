"""Coordinate: whose samples a rank takes, where several ranks work on the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from elastic_trainer.ranks.process_group import ProcessGroup

    Mesh = DeviceMesh | Callable[[], DeviceMesh]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Samples are shared among `world` coordinates, of which this process has number `rank`.

    Ranks of one tensor-, context- or pipeline-parallel group have the same one.
    """

    rank: int = 0
    world: int = 1
    first: bool = True
    """True if this process is the first one with its coordinate: it speaks for the others."""
    speakers: tuple[int, ...] = (0,)
    """The first process of each coordinate, by its rank among all processes."""
    numbers: tuple[int, ...] = (0,)
    """The coordinate of each process, by its rank among all processes."""


def coordinate(group: ProcessGroup, mesh: Mesh | None) -> Coordinate:
    """Return this process's coordinate; with a mesh on all ranks at once.

    Args:
        mesh: its data-parallel dimensions, such as `mesh["dp"]`; or a function that makes it for
            each round's processes.

    Raises:
        ValueError: the mesh isn't of all processes.
    """
    if mesh is None:
        ranks = tuple(range(group.world))
        return Coordinate(group.rank, group.world, True, ranks, ranks)
    made = mesh() if callable(mesh) else mesh
    own = made.get_coordinate()
    number = -1
    if own is not None:
        number = 0
        for place, size in zip(own, made.shape, strict=True):
            number = number * size + place
    return agreed(group.gather((number, made.size())), group.rank)


def agreed(said: Sequence[tuple[int, int]], rank: int) -> Coordinate:
    """Return the coordinate of `rank`, from each rank's own and their number. Pure.

    Raises:
        ValueError: they aren't coordinates of one mesh that all ranks are in.
    """
    numbers = [number for number, _ in said]
    worlds = {world for _, world in said}
    expected = sorted(list(range(max(worlds))) * (len(said) // max(worlds)))
    if len(worlds) > 1 or sorted(numbers) != expected:
        raise ValueError(
            f"the data-parallel coordinates of {len(said)} ranks are {numbers} in meshes of "
            f"{sorted(worlds)}: expected each coordinate of one mesh equally often; make the mesh "
            "of all processes, and give its data-parallel dimensions, as in mesh['dp']"
        )
    (world,) = worlds
    speakers = tuple(numbers.index(number) for number in range(world))
    return Coordinate(numbers[rank], world, rank in speakers, speakers, tuple(numbers))
