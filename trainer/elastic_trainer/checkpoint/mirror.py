"""A sharded state's parts in a second node's memory, so that a node may be lost with its own.

Each rank's part goes to the rank with its place on the next node, as it is: label, seal, payload.
A rank that lacks its part, as the new one of a replaced node does, gets it back the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import cast

import torch
import torch.distributed as dist

from elastic_trainer.checkpoint.lockstep import Peers
from elastic_trainer.checkpoint.recovery import Identity
from elastic_trainer.ranks.gathering import gather_objects
from elastic_trainer.ranks.process_group import CONTROL_TIMEOUT, ProcessGroup
from elastic_trainer.store.slot import Label, Slot, SlotError, Slots

LARGEST = 1 << 28
"""Bytes of one message."""

MOST_SKIPS = 64
"""Saves without a mirror, until it is tried again whether there is room."""

log = logging.getLogger(__name__)


class Mirror:
    """The slots for another node's parts. For ranks of several nodes.

    Args:
        slots: of this rank, for the other's part.
        local_world: workers of each node.
    """

    def __init__(self, slots: Slots, local_world: int) -> None:
        self._slots = slots
        self._distance = local_world
        self._skips = 0
        """Turns that are left out, as there was no room."""
        self._next_skips = 1
        self.kept: Identity | None = None
        """The newest state of which this rank's part was handed on, and another's taken."""

    def keep(self, slot: Slot, label: Label, peers: Peers) -> bool:
        """On all ranks: hands this rank's part on, and takes another's. Whether that was done."""
        group = peers.group
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        receiver, giver = (rank + self._distance) % world, (rank - self._distance) % world
        if receiver == rank:
            return True
        said = peers.gather((label, self._skips))
        if any(skips for _, skips in said):
            self._skips = max(0, self._skips - 1)
            return True
        parts = [part for part, _ in said]
        problem = None
        try:
            self._slots.check(parts[giver].payload)
            content = slot.content(label)
        except Exception as error:  # whatever it is, the other ranks wait for a word
            problem = str(error) or repr(error)
        problem = next((one for one in peers.gather(problem) if one), None)
        if problem is not None:
            self._skips, self._next_skips = self._next_skips, min(MOST_SKIPS, 2 * self._next_skips)
            if rank == 0:
                log.warning(
                    "no mirrors of the state's parts in other nodes' memory (the next try: after "
                    "%d saves): %s",
                    self._skips,
                    problem,
                )
            return True
        self._next_skips = 1
        with peers.waiting():
            sent = [
                work
                for part in reversed(content)  # the head last
                for piece in _pieces(part)
                if (work := dist.isend(piece, receiver, group=group)) is not None
            ]
            fill = partial(_receive, giver, group)
            self._slots.copy(label.training, parts[giver].payload, fill)
            for work in sent:
                work.wait()
        self.kept = label.identity
        return True

    def look(self, group: ProcessGroup) -> tuple[tuple[str, Identity, int], ...]:
        """Return the parts held of this world: training, identity, and the rank whose part it
        is."""
        return tuple(
            (label.training, label.identity, label.rank)
            for label in self._slots.sealed().values()
            if label.world == group.world
        )

    @property
    def slots(self) -> Slots:
        return self._slots

    def restore(
        self,
        training: str,
        identity: Identity,
        mirrors: Mapping[int, int],
        own: Slots,
    ) -> None:
        """On all ranks: whoever is a key of `mirrors` gets its part from the rank named there.

        Raises:
            SlotError: on every rank, if a part is gone, or there is no room for it.
        """
        rank = dist.get_rank()
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT))
        try:
            found, problem = {}, None
            try:
                for taker, giver in mirrors.items():
                    if giver == rank:
                        found[taker] = self._find(training, identity, taker)
            except SlotError as error:
                problem = str(error)
            sizes: dict[int, int] = {}
            for part in gather_objects({taker: found[taker][1].numel() for taker in found}, group):
                sizes |= part
            try:
                own.check(sizes.get(rank, 0))
            except SlotError as error:
                problem = problem or str(error)
            problem = next((one for one in gather_objects(problem, group) if one), None)
            if problem is not None:
                raise SlotError(problem)
            for taker, giver in sorted(mirrors.items()):
                if rank == giver:
                    for part in reversed(found[taker]):
                        for piece in _pieces(part):
                            dist.send(piece, taker, group=group)
                elif rank == taker:
                    own.copy(training, sizes[rank], partial(_receive, giver, group))
            dist.barrier(group)
        finally:
            dist.destroy_process_group(group)

    def _find(
        self, training: str, identity: Identity, owner: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for slot, label in self._slots.sealed().items():
            if (label.training, label.identity, label.rank) == (training, identity, owner):
                return slot.content(label)
        raise SlotError(f"{self._slots.folder} no longer holds rank {owner}'s part")


def _receive(source: int, group: dist.ProcessGroup | None, target: torch.Tensor) -> None:
    for piece in _pieces(target):
        dist.recv(piece, source, group=group)


def _pieces(content: torch.Tensor) -> Iterator[torch.Tensor]:
    for begin in range(0, content.numel(), LARGEST):
        yield content[begin : begin + LARGEST]
