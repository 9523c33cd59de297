"""Saves of a rank's state to its node's memory, at once or beside training.

Which steps are saved, and what is agreed on among the ranks, is Checkpointer's; the copy that
training goes on beside is a Snapshot.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from dataclasses import asdict, dataclass

from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.checkpoint.save import Save, WholeSave
from elastic_trainer.checkpoint.snapshot import Snapshot
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.copier import Copier, overlap_bytes
from elastic_trainer.store.digest import digest_of_replicated
from elastic_trainer.store.slot import Label, Slot, SlotError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Destination:
    """Storage to which an agent is to bring what is saved, see WorkerLink.saved."""

    folder: str
    keep: int
    run: int
    claim: str
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class _UnderWay:
    snapshot: Snapshot
    memory: Memory
    destination: Destination | None


class MemorySaves:
    """Saves states to memory, and tells the agent of each once it is whole.

    `save` is told what the state is and where the agent is to bring it, and gives back what mirror
    and storage follow. At most one is under way, until `settle`, which gives back how it ended.

    Args:
        link: to the agent.
        data: whose steps are saved, by the ranks of its group.
        place: of the training's folder, see `digest_of_location`.
        overlaps: a large state is copied while training goes on, which calls `precede`.
    """

    def __init__(self, link: WorkerLink, data: ElasticData, place: str, *, overlaps: bool) -> None:
        self._link, self._data, self._place = link, data, place
        self.told: tuple[Identity, int] = (NOTHING, 0)
        """The state in memory that the agent was told of last, and the run with whose claim it is
        to bring that to storage; 0: it isn't."""
        self._overlaps = overlaps
        self._overlap_bytes: int | None = None
        """A state from so many bytes on is copied while training goes on; None: none is."""
        self._under_way: _UnderWay | None = None
        if overlaps:
            atexit.register(_settle_at_exit, weakref.ref(self))

    def copy_by(self, copier: Copier | None) -> None:
        """Know by what the next states are copied from their device.

        Raises:
            ValueError: as `overlap_bytes`.
        """
        self._overlap_bytes = overlap_bytes(copier, os.environ) if self._overlaps else None

    def save(
        self,
        memory: Memory | None,
        state: ModelState,
        training: str,
        identity: Identity,
        destination: Destination | None,
        unstored: str | None = None,
    ) -> Save | None:
        """Save this step; nothing where this rank has no slots, or there is no room.

        Args:
            training, identity: of the state.
            destination: None where this rank's agent isn't to bring it to storage.
            unstored: as Memory.ready's.
        """
        if memory is None or not memory.saves:
            self._tell_digest(state)
            return None
        blob = lay_out(state.capture())
        group = self._data.group
        label = Label(
            training,
            *identity,
            group.rank,
            group.world,
            state.sharded,
            len(blob.skeleton),
            blob.size,
            *state.part(group.rank, group.world),
            self._link.round,
            *(self._place, memory.layout),
        )
        try:
            slots = memory.ready(unstored)
            if self._overlap_bytes is not None and blob.size >= self._overlap_bytes:
                snapshot = Snapshot(slots, label, blob, state.steady(), memory.copier)
                self._under_way = _UnderWay(snapshot, memory, destination)
                return snapshot
            slot = slots.write(label, blob)
        except SlotError as error:
            log.warning("not saved to memory: %s", error)
            self._tell_digest(state)
            return None
        self.tell(memory, slot, label, destination)
        return WholeSave(slot, label)

    def precede(self) -> None:
        """Have whatever changes the state from now on come after the copy of what was saved."""
        if self._under_way is not None:
            self._under_way.snapshot.precede()

    def settle(self, *, waits: bool = True) -> Snapshot | None:
        """Tell the agent of the save that was under way, once it is whole; return that save, which
        has ended, be it whole or not.

        Args:
            waits: for the copy's end; else another call finds it.
        """
        ended = self._under_way
        if ended is None or not (waits or ended.snapshot.done()):
            return None
        self._under_way = None
        snapshot = ended.snapshot
        if snapshot.close():
            self.tell(ended.memory, snapshot.slot, snapshot.label, ended.destination)
            return snapshot
        # Else a forward that changes weights would let none be saved.
        self._overlaps, self._overlap_bytes = False, None
        log.warning(
            "the copy of step %d in memory isn't used, as weights or moments were changed between "
            "that step and the next one's application, and training waits for all later copies: "
            "change them in apply",
            snapshot.label.step,
        )
        return snapshot

    def tell(
        self, memory: Memory, slot: Slot, label: Label, destination: Destination | None
    ) -> None:
        """Have the agent verify a slot, and bring it to its destination, if any."""
        self.told = (label.identity, 0 if destination is None else destination.run)
        memory.tell(slot, label.step, **({} if destination is None else asdict(destination)))

    def _tell_digest(self, state: ModelState) -> None:
        """The other ranks wait for those that save meanwhile, whose agents digest what they did."""
        if self._link.agent and (digest := digest_of_replicated(state.take())):
            self._link.digested(self._data.steps, digest)


def _settle_at_exit(found: weakref.ref[MemorySaves]) -> None:
    """An error of the script's ends the process: what was being saved is saved all the same."""
    saves = found()
    if saves is not None:
        try:
            saves.settle()
        except Exception as error:  # it says nothing of why the process ends
            log.warning("the last save to memory has failed: %r", error)
