"""One save to memory, as what follows it sees it: mirrors, and commits in storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from elastic_trainer.store.slot import Label, Slot


class Save(Protocol):
    """A save that may be under way still, see Snapshot."""

    @property
    def slot(self) -> Slot: ...

    @property
    def label(self) -> Label: ...

    def close(self) -> bool:
        """Wait until the slot holds all of it; return whether it does. In any thread, as often as
        one asks."""


@dataclass(frozen=True, slots=True)
class WholeSave:
    """A save that the slot holds all of."""

    slot: Slot
    label: Label

    def close(self) -> bool:
        return True
