"""A sharded state's parts in a second node's memory, so that a node may be lost with its own.

Each rank's part goes to the rank with its place on the next node, as it is: label, seal, payload.
A rank that lacks its part, as the new one of a replaced node does, gets it back the same way. What
two nodes hold is spared by later saves until a newer state is on two nodes everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
import torch.distributed as dist

from elastic_trainer.checkpoint.copies import Copy, plan_copies
from elastic_trainer.checkpoint.lockstep import Peers
from elastic_trainer.checkpoint.recovery import NOTHING, Identity
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
        own: slots of this rank's part.
        slots: of this rank, for the other's part.
        local_world: workers of each node.
    """

    def __init__(self, own: Slots, slots: Slots, local_world: int) -> None:
        self._own = own
        self._slots = slots
        self._distance = local_world
        self._skips = 0
        """Turns that are left out, as there was no room."""
        self._next_skips = 1
        self.layout = ""
        """Digest of how the state is spread over this world's ranks."""
        self.kept: Identity | None = None
        """The newest state of which this rank's part was handed on, and another's taken."""
        self.spared = NOTHING
        """The state that is on two nodes and that saves leave alone, of this world or an earlier
        one."""
        self.was_alone = False
        """This process's world was one node's, or the one it restored a state of was, and no state
        of a later one was on two."""

    def renew(self, own: Slots) -> Mirror:
        """Return it for another world.

        Args:
            own: as the constructor's.
        """
        renewed = Mirror(own, self._slots.renew(), self._distance)
        renewed.spared = self.spared
        renewed.was_alone = self.was_alone and self.kept is None
        return renewed

    def begin(self, world: int, restored: int) -> None:
        """Know the ranks of this world, and of that of which parts were restored, as processes that
        have started since know of no other; 0: of this one."""
        self.was_alone |= any(self._distance % one == 0 for one in (world, restored or world))

    def keep(self, slot: Slot, label: Label, peers: Peers) -> bool:
        """On all ranks: hands this rank's part on, and takes another's. Whether that was done."""
        group = peers.group
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        receiver, giver = (rank + self._distance) % world, (rank - self._distance) % world
        if receiver == rank:
            self._spare()
            return True
        said = peers.gather((label, self._skips))
        if any(skips for _, skips in said):
            self._skips = max(0, self._skips - 1)
            self._spare()
            return True
        parts = [part for part, _ in said]
        problem = None
        try:
            self._slots.check(parts[giver].payload)
            self._slots.reserve(label.training, [parts[giver].payload])
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
            self._spare()
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
            taken = self._slots.copy(label.training, parts[giver].payload, fill)
            for work in sent:
                work.wait()
        peers.gather(None)  # until here the state before may be all that is on two nodes
        self._spare(label.identity, slot, taken)
        self.kept = label.identity
        return True

    def _spare(
        self, identity: Identity = NOTHING, own: Slot | None = None, taken: Slot | None = None
    ) -> None:
        """Spare this rank's part and the other's of the newest state on two nodes, if any is."""
        self._own.spared = frozenset([own] if own is not None else [])
        self._slots.spared = frozenset([taken] if taken is not None else [])
        self.spared = identity

    def found(self, identity: Identity) -> None:
        """Know, on all ranks, that a state was on two nodes when this world began."""
        self.kept = self.spared = identity

    def look(self, group: ProcessGroup) -> tuple[tuple[str, Identity, int], ...]:
        """Return the parts held of this world: training, identity, and the rank whose part it
        is."""
        return tuple(
            (label.training, label.identity, label.rank)
            for label in self._slots.sealed().values()
            if (label.world, label.layout) == (group.world, self.layout)
        )

    def holds(self, training: str, identity: Identity, group: ProcessGroup) -> bool:
        """Return whether the part that this rank would take of a state is here."""
        giver = (group.rank - self._distance) % group.world
        return (training, identity, giver) in self.look(group)

    @property
    def slots(self) -> Slots:
        return self._slots

    def restore(self, training: str, identity: Identity, mirrors: Mapping[int, int]) -> None:
        """On all ranks: whoever is a key of `mirrors` gets its part from the rank named there.

        Raises:
            SlotError: on every rank, if a part is gone, or there is no room for it.
        """
        copies = [Copy(taker, giver, taker) for taker, giver in sorted(mirrors.items())]
        self._carry(training, identity, copies, self._slots, self._own)

    def spread(self, training: str, identity: Identity, stays: Sequence[bool]) -> bool:
        """On all ranks: bring each part of a mirrored state to two nodes that stay; return whether
        that was done.

        Args:
            stays: by rank, see `plan_copies`.
        """
        copies = plan_copies(stays, self._distance)
        if copies is None:
            return False
        try:
            self._carry(training, identity, copies, self._own, self._slots)
        except SlotError as problem:
            if dist.get_rank() == 0:
                log.warning("what leaves with its nodes goes to storage: %s", problem)
            return False
        return True

    def _carry(
        self,
        training: str,
        identity: Identity,
        copies: Sequence[Copy],
        source: Slots,
        target: Slots,
    ) -> None:
        """On all ranks: copy parts from their givers' `source` to their takers' `target`, where
        they are spared.

        Raises:
            SlotError: on every rank, if a part is gone, or there is no room for it.
            RuntimeError: a rank was lost, or its room was taken in the midst of it.
        """
        if not copies:
            return
        rank = dist.get_rank()
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT))
        try:
            found, problem = {}, None
            try:
                for copy in copies:
                    if copy.giver == rank:
                        found[copy.owner] = self._find(source, training, identity, copy.owner)
            except SlotError as error:
                problem = str(error)
            sizes: dict[int, int] = {}
            for part in gather_objects({owner: found[owner][1].numel() for owner in found}, group):
                sizes |= part
            try:
                coming = [sizes.get(one.owner, 0) for one in copies if one.taker == rank]
                target.reserve(training, coming)
            except SlotError as error:
                problem = problem or str(error)
            problem = next((one for one in gather_objects(problem, group) if one), None)
            for copy in copies if problem is None else ():
                if rank == copy.giver != copy.taker:
                    for content in reversed(found[copy.owner]):  # the head last
                        for piece in _pieces(content):
                            dist.send(piece, copy.taker, group=group)
                elif rank == copy.taker:
                    fill = partial(_receive, copy.giver, group)
                    if copy.giver == rank:  # it mirrored the part of the place that it has now
                        fill = partial(_take_next, iter(reversed(found[copy.owner])))
                    try:
                        taken = target.copy(training, sizes[copy.owner], fill)
                    except SlotError as error:  # the others are in the midst of it, and must hear
                        raise RuntimeError(f"room that was there is gone: {error}") from error
                    target.spared |= {taken}
            # In another group: what others still wait for in this one may be lost as it is closed.
            ProcessGroup.current().barrier()
            if problem is not None:
                raise SlotError(problem)
        finally:
            dist.destroy_process_group(group)

    def _find(
        self, slots: Slots, training: str, identity: Identity, owner: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = (training, identity, owner, dist.get_world_size(), self.layout)
        for slot, label in slots.sealed().items():
            found = (label.training, label.identity, label.rank, label.world, label.layout)
            if found == wanted:
                return slot.content(label)
        raise SlotError(f"{slots.folder} no longer holds rank {owner}'s part")


def _receive(source: int, group: dist.ProcessGroup | None, target: torch.Tensor) -> None:
    for piece in _pieces(target):
        dist.recv(piece, source, group=group)


def _take_next(contents: Iterator[torch.Tensor], target: torch.Tensor) -> None:
    target.copy_(next(contents))


def _pieces(content: torch.Tensor) -> Iterator[torch.Tensor]:
    for begin in range(0, content.numel(), LARGEST):
        yield content[begin : begin + LARGEST]
