"""A save to memory that training goes on beside, until the next step is applied."""

from __future__ import annotations

from collections.abc import Collection

from elastic_trainer.store.blob import Blob
from elastic_trainer.store.copier import Copier
from elastic_trainer.store.slot import Label, Slot, Slots


class Snapshot:
    """What a step's gradients change (parameters, and the optimizers' state for them) is copied
    while the next one's are computed; all else at once, such as buffers, which a forward changes.

    A script that changes weights by itself between two steps would tear the copy: it isn't
    labelled then, so nobody takes it for a state.

    Args:
        steady: addresses of the memory that nobody changes before `precede`.

    Raises:
        SlotError: there is no room; the newest state is as it was.
    """

    def __init__(
        self, slots: Slots, label: Label, blob: Blob, steady: Collection[int], copier: Copier
    ) -> None:
        self.label = label
        later, now = blob.parted(steady)
        self.slot: Slot
        self.slot, target = slots.open(label, blob.skeleton)
        copier.pin(str(self.slot.path), self.slot.memory)
        self._later = later
        self._versions = self._seen()
        now.write(target, waits=False)
        self._copy = copier.start(lambda: later.write(target, waits=False))
        self._whole = True
        self._ordered = False

    def precede(self) -> None:
        """What changes the state from now on comes after the copy."""
        if not self._ordered:
            self._whole = self._versions == self._seen()
            self._copy.precede()
            self._ordered = True

    def done(self) -> bool:
        return self._copy.done()

    def close(self) -> bool:
        """Wait for the copy, and label it; return whether it is whole."""
        self.precede()
        self._copy.wait()
        if self._whole:
            self.slot.close(self.label)
        return self._whole

    def seconds(self) -> float:
        """Return how long the copy took."""
        return self._copy.seconds()

    def _seen(self) -> list[int]:
        return [tensor._version for _, tensor in self._later.tensors]
