"""A worker's use of its agent's shared memory: what to save there, and what is found there."""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from elastic_trainer.checkpoint.mirror import Mirror
from elastic_trainer.checkpoint.recovery import NOTHING, Identity, Part, Recovery
from elastic_trainer.checkpoint.save import WholeSave
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import Blob, MeshKey
from elastic_trainer.store.copier import Copier, HostCopier
from elastic_trainer.store.memory_folder import SHORT_SECONDS, remove_abandoned
from elastic_trainer.store.origin import Origin, read_origin, write_origin
from elastic_trainer.store.slot import (
    MEMORY_VARIABLE,
    TURNS,
    Label,
    Slot,
    SlotError,
    Slots,
    payload_size,
)

log = logging.getLogger(__name__)


class Memory:
    """The slots of this worker; of a replicated state, those of its node's first worker, who alone
    saves: all others of the node can read them.

    Args:
        folder: the agent's.
        link: to the agent.
        every_rank: the state is sharded.
        local_rank: of this worker on its node.
        local_world: the node's workers.
        copier: copies from the model's device; the CPU's if None.
    """

    def __init__(
        self,
        folder: Path,
        link: WorkerLink,
        *,
        every_rank: bool = False,
        local_rank: int = 0,
        local_world: int = 1,
        copier: Copier | None = None,
    ) -> None:
        self.saves = every_rank or local_rank == 0
        self._savers = local_world if every_rank else 1
        self._every_rank = every_rank
        self._link = link
        self.copier = copier or HostCopier()
        self._slots = Slots(folder, local_rank if every_rank else 0)
        self.mirror: Mirror | None = None
        """Copy of another node's part, where the state is sharded."""
        if every_rank:
            self.mirror = Mirror(self._slots, Slots(folder, local_rank, "mirror"), local_world)
        self.layout = ""
        """Digest of how a sharded state is spread over the ranks of this world."""
        self._prefault: threading.Thread | None = None
        self._prepared = 0
        self._stored = NOTHING
        """The newest state that was brought to storage past memory."""

    @classmethod
    def from_environment(
        cls, link: WorkerLink, *, every_rank: bool, copier: Copier | None = None
    ) -> Memory | None:
        """None where the agent gives none."""
        folder = os.environ.get(MEMORY_VARIABLE, "")
        if not folder or not link.agent:
            return None
        return cls(
            Path(folder),
            link,
            every_rank=every_rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            copier=copier,
        )

    def spread_as(self, layout: str) -> None:
        """Know how a sharded state is spread over the ranks of this world; before anything is
        looked for here."""
        self.layout = layout
        if self.mirror is not None:
            self.mirror.layout = layout

    def renew(self) -> Memory:
        """Return it for another world: as a new one, but that what is mapped already stays so,
        which takes the longer, the larger the states are."""
        renewed = copy.copy(self)
        renewed._slots = self._slots.renew()
        if self.mirror is not None:
            renewed.mirror = self.mirror.renew(renewed._slots)
        renewed.layout, renewed._prepared, renewed._stored = "", 0, NOTHING
        return renewed

    def prepare(self, blob: Blob) -> None:
        """Make room for states of this size, in the background where there is enough: for two, or,
        of a replicated state, for one, see `narrow`.

        Raises:
            SlotError: there isn't; says how much is needed and how to get it.
        """
        size = payload_size(blob)
        if not self.saves or size <= self._prepared:
            return
        try:
            self._slots.check(size)
        except SlotError:
            shared = self._slots.folder.parent
            remove_abandoned(shared, time.monotonic(), SHORT_SECONDS)
            self._choose_turns(size)
        self._prepared = size
        self._wait()
        self._prefault = threading.Thread(target=self._make_room, args=(size,), daemon=True)
        self._prefault.start()

    def has_room(self) -> bool:
        """Return whether one more state of each of the node's savers has room beside all there are,
        as large as `prepare` was told; not before that."""
        return self._prepared > 0 and self._slots.has_room(self._savers * self._prepared)

    def ready(self, unstored: str | None = None) -> Slots:
        """Return the slots once the next save may begin.

        Args:
            unstored: what `unstored` returned for the rank whose agent stores; None: this one's.

        Raises:
            SlotError: the only slot holds what isn't in storage.
        """
        self._wait()
        self._spare_one_slot(unstored)
        return self._slots

    def note_stored(self, identity: Identity) -> None:
        """Know that this state was brought to storage past memory: none before it is needed."""
        self._stored = identity

    def tell(self, slot: Slot, step: int, **storage: Any) -> None:
        """Have the agent verify a slot, and bring it to storage if `storage` says to which; see
        WorkerLink.saved."""
        self._link.saved(str(slot.path), step, self._savers, **storage)

    def look(self, group: ProcessGroup) -> tuple[tuple[str, Identity], ...]:
        """Return what there is, verified by the agent at the time it was saved."""
        self._link.settle(storage=False)
        return tuple(
            (label.training, label.identity)
            for label in self._slots.sealed().values()
            if not self._every_rank or self._fits(label, group)
        )

    def parts(self) -> tuple[tuple[str, Part], ...]:
        """Return the parts of sharded states that are here, of any world: by training."""
        return tuple(
            (label.training, _part(label))
            for slots in self._all_slots()
            for label in slots.sealed().values()
            if label.sharded
        )

    def read_part(
        self, training: str, identity: Identity, owner: int, world: int, layout: str
    ) -> dict[str, Any]:
        """Return one rank's part of what so many held in a layout, in views of its slot, verified
        again.

        Raises:
            SlotError: it isn't here.
        """
        problem = SlotError(
            f"{self._slots.folder} holds no verified part of rank {owner} of {world}, of step "
            f"{identity[1]}"
        )
        wanted = (training, identity, owner, world, layout)
        for slots in self._all_slots():
            for slot, label in slots.sealed().items():
                found = (label.training, label.identity, label.rank, label.world, label.layout)
                if label.sharded and found == wanted:
                    try:
                        read: dict[str, Any] = slot.read_parts()
                        return read
                    except SlotError as error:
                        problem = error
        raise problem

    def find_own(self, training: str, identity: Identity, group: ProcessGroup) -> WholeSave | None:
        """Return this rank's own part of a sharded state, where it is here as of this world."""
        for slot, label in self._slots.sealed().items():
            if (label.training, label.identity) == (training, identity) and self._fits(
                label, group
            ):
                return WholeSave(slot, label)
        return None

    def spare(self, training: str, *identities: Identity) -> None:
        """Keep what is here of sharded states, of any world, until a newer one is on two nodes; of
        the newest, where there is no room for all."""
        for slots in self._all_slots():
            there = [
                slot
                for slot, label in slots.sealed().items()
                if label.training == training and label.identity in identities
            ]
            slots.spared = frozenset(there[: len(slots.slots) - TURNS])  # else none could be saved

    def _all_slots(self) -> list[Slots]:
        return [self._slots] + ([self.mirror.slots] if self.mirror is not None else [])

    def orphaned(self, training: str, place: str) -> tuple[tuple[str, Identity], ...]:
        """Return what is known of other trainings whose folder had this one's name.

        Args:
            place: of the folder, see `digest_of_location`.
        """
        known = [
            (label.training, label.identity)
            for label in self._slots.sealed().values()
            if label.place == place
        ]
        origin = read_origin(self._slots.folder, place)
        if origin is not None:
            known.append((origin.training, (origin.run, origin.step)))
        return tuple(one for one in known if one[0] != training)

    def note_origin(self, training: str, place: str, identity: Identity) -> None:
        """Keep for this node's next workers what this one goes on from, until it has saved."""
        write_origin(self._slots.folder, place, Origin(training, *identity))

    def restore_mirrored(self, training: str, found: Recovery) -> None:
        """On all ranks: parts that their ranks lack come back from other nodes' memory.

        Raises SlotError on a rank that has no room."""
        if self.mirror is not None and found.mirrors:
            self.mirror.restore(training, found.identity, found.mirrors)

    def read(
        self,
        training: str,
        identity: Identity,
        meshes: Mapping[MeshKey, DeviceMesh],
        group: ProcessGroup,
    ) -> tuple[dict[str, Any], Label, Slot]:
        """Return the state, of a sharded one this rank's part in this world, in views of the slot,
        verified again. Raises SlotError."""
        problem = SlotError(f"{self._slots.folder} holds no verified state of step {identity[1]}")
        for slot, label in self._slots.sealed().items():
            if (label.training, label.identity) == (training, identity) and (
                # The same state may be here as another rank's, or another world's, part, too.
                not self._every_rank or self._fits(label, group)
            ):
                try:
                    return slot.read(meshes), label, slot
                except SlotError as error:
                    problem = error  # another slot may have it too, brought back from a mirror
        raise problem

    def _fits(self, label: Label, group: ProcessGroup) -> bool:
        wanted = (group.rank, group.world, self.layout)
        return label.sharded and (label.rank, label.world, label.layout) == wanted

    def _choose_turns(self, size: int) -> None:
        """Raises SlotError where there is no room at all."""
        try:
            self._slots.check(size)
        except SlotError as problem:
            if self._every_rank:  # all ranks' parts of a state are to be there
                raise
            try:
                self._slots.check(size, turns=1)
            except SlotError:
                raise problem from None
            self._slots.turns = 1
            log.warning(
                "%s. Until then one slot is used: each save waits until the one before is in "
                "storage, and where a node's processes are killed in the midst of a save, its "
                "memory holds nothing for the next ones",
                problem,
            )

    @property
    def narrow(self) -> bool:
        """Return whether there is one slot, whose state is lost as the next save begins."""
        return self._slots.turns == 1

    def unstored(self) -> str:
        """Wait for what this node's agent brings to storage; return why the newest state here, or a
        later one, isn't there. Empty: it is."""
        error = self._link.settle(storage=True)
        labels = [label for slot in self._slots.slots if (label := slot.label()) is not None]
        if not labels or max(label.identity for label in labels) <= self._stored:
            return ""
        return error

    def _spare_one_slot(self, unstored: str | None) -> None:
        """Raises SlotError where the only slot holds what isn't in storage."""
        if self.narrow and (error := self.unstored() if unstored is None else unstored):
            raise SlotError(f"the one slot is kept, as what it holds is not in storage: {error}")

    def _make_room(self, size: int) -> None:
        try:
            self._slots.prepare(size)
            for slot in self._slots.slots[: self._slots.turns]:
                self.copier.pin(str(slot.path), slot.memory)
        except SlotError as error:
            log.warning("%s", error)  # the first save tries again

    def _wait(self) -> None:
        if self._prefault is not None:
            self._prefault.join()
            self._prefault = None


def _part(label: Label) -> Part:
    numbers = label.part, label.parts
    return Part(label.identity, label.rank, label.world, *numbers, label.layout)
