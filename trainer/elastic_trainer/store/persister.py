"""The agent's threads that verify what its workers saved to memory, and bring it to storage.

Newest first: of what was saved while it was busy, only the newest is looked at. A slot is locked
while it is copied to storage, see elastic_trainer.store.slot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastic_trainer.store.errors import SupersededError
from elastic_trainer.store.replica import write_replica
from elastic_trainer.store.slot import Label, Slot
from elastic_trainer.store.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """A worker's word that a slot holds a new state."""

    path: str
    step: int
    local_rank: int
    round: int
    folder: str = ""
    """The storage to bring it to; empty: none."""
    keep: int = 3
    run: int = 0
    """The run in which it was saved or restored, which is the one that the claim is for."""
    claim: str = ""
    """The token of the worker's claim to the storage, see Storage.hold."""
    retry_seconds: float | None = None
    """Storage's `retry_seconds`."""


class Persister:
    """Callbacks come in its threads: one verifies, so that it never waits for the one that stores.

    Args:
        verified: told of what is verified in memory, and as what.
        stored: told of what is in storage, likewise.
        superseded: told of what another process' claim keeps from storage, and why.
        digested: told of the digest of what a verified state has alike on every rank; nobody waits
            for that, so an older one's may be passed over.
    """

    def __init__(
        self,
        verified: Callable[[Saved, Label], None],
        stored: Callable[[Saved, Label], None],
        superseded: Callable[[Saved, str], None] = lambda *_: None,
        digested: Callable[[Saved, Label, str], None] = lambda *_: None,
    ) -> None:
        self._verified = verified
        self._stored = stored
        self._superseded = superseded
        self._digested = digested
        self._changed = threading.Condition()
        self._to_verify: dict[int, Saved] = {}
        """By local rank: the newest."""
        self._to_store: Saved | None = None
        self._verifying = self._storing = False
        self._waiting: list[tuple[bool, Callable[[str], None]]] = []
        self._error = ""
        """Why the newest is not in storage; empty: it is, or will be."""
        self._storage: tuple[tuple[str, int, float | None], Storage] | None = None
        """The last one, and what it was made of."""
        self._closing = False
        self._threads: list[threading.Thread] = []

    def saved(self, saved: Saved) -> None:
        with self._changed:
            self._to_verify[saved.local_rank] = saved
            self._start()
            self._changed.notify_all()

    def flush(self, storage: bool, done: Callable[[str], None]) -> None:
        """Call `done` with the last error, or with nothing, once all that was told is verified, or
        in storage too."""
        with self._changed:
            self._waiting.append((storage, done))
            self._answer()

    def close(self, patience: float) -> None:
        """End it after what is under way, for which it waits `patience` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(patience)

    def _start(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=target, name=target.__name__.strip("_"), daemon=True)
                for target in (self._verify_for_ever, self._store_for_ever)
            ]
            for thread in self._threads:
                thread.start()

    def _verify_for_ever(self) -> None:
        slots: dict[str, Slot] = {}
        while True:
            with self._changed:
                self._verifying = False
                self._answer()
                self._changed.wait_for(lambda: self._to_verify or self._closing)
                if self._closing:
                    return
                saved = self._to_verify.pop(min(self._to_verify))
                self._verifying = True
            slot = slots.setdefault(saved.path, Slot(Path(saved.path)))
            try:
                label = self._verify(slot, saved)
            except Exception as error:  # whatever it is, a worker may wait for an answer
                self._error = str(error)
                log.warning("step %d is not verified in memory: %s", saved.step, error)
                continue
            with self._changed:
                self._verifying = False
                self._answer()
            if label is not None:
                self._digest(slot, saved, label)

    def _digest(self, slot: Slot, saved: Saved, label: Label) -> None:
        try:
            digest = slot.replicated_digest(label)
        except Exception as error:  # as above
            log.warning("step %d is not compared with other nodes': %s", saved.step, error)
            return
        if digest:
            self._digested(saved, label, digest)

    def _verify(self, slot: Slot, saved: Saved) -> Label | None:
        """Return what is verified now; None where it is gone."""
        label = slot.verify()
        if label is None or label.step != saved.step:
            self._is_gone(saved)
            return None
        self._verified(saved, label)
        if saved.folder:
            with self._changed:
                self._to_store = saved
                self._changed.notify_all()
        return label

    def _store_for_ever(self) -> None:
        while True:
            with self._changed:
                self._storing = False
                self._answer()
                self._changed.wait_for(lambda: self._to_store or self._closing)
                if self._closing or self._to_store is None:
                    return
                saved, self._to_store = self._to_store, None
                self._storing = True
            try:
                self._store(saved)
            except SupersededError as error:
                self._error = str(error)
                self._superseded(saved, str(error))
            except Exception as error:  # as above
                self._error = str(error)
                log.warning("going on without step %d in storage: %s", saved.step, error)

    def _store(self, saved: Saved) -> None:
        slot = Slot(Path(saved.path))
        with slot.locked(exclusive=False) as ours:
            label = slot.sealed() if ours else None
            if label is None or label.step != saved.step:
                self._is_gone(saved)
                return
            storage = self._storage_of(saved)
            storage.expect(label.training)
            if saved.claim:
                storage.hold(saved.run or label.run, saved.claim)
            if label.identity not in {commit.identity for commit in storage.commits()}:
                write_replica(
                    storage, step=label.step, run=label.run, state=slot.read(), round_=label.round
                )
        self._error = ""
        self._stored(saved, label)

    def _storage_of(self, saved: Saved) -> Storage:
        """The same one for the same folder: it knows whether an earlier call is still under way."""
        wanted = (saved.folder, saved.keep, saved.retry_seconds)
        if self._storage is None or self._storage[0] != wanted:
            storage = Storage(saved.folder, keep=saved.keep, retry_seconds=saved.retry_seconds)
            self._storage = (wanted, storage)
        return self._storage[1]

    def _is_gone(self, saved: Saved) -> None:
        """Notes it for who asks whether all is in storage: mostly a newer one is being written in
        its place, whose word is on its way; else the memory was removed or damaged."""
        if saved.folder:
            self._error = (
                f"step {saved.step} can't be brought to {saved.folder}: {saved.path} no longer "
                "holds it; was the shared memory cleared?"
            )

    def _answer(self) -> None:
        """With the lock held."""
        for wait in list(self._waiting):
            storage, done = wait
            busy = self._to_verify or self._verifying
            if not (busy or (storage and (self._to_store or self._storing))):
                self._waiting.remove(wait)
                done(self._error if storage else "")
