"""Ledger: which samples are in the model; saved with it, in the same commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_trainer.data.audit import AuditLog, RunStart, last_run
from elastic_trainer.shards.ranges import Ranges
from elastic_trainer.shards.shards import Shards


@dataclass(frozen=True, slots=True)
class Lease:
    """Positions start..stop-1 of the stream, of one epoch, handed out in one life of the model."""

    start: int
    stop: int
    life: str


class Ledger:
    """Kept by the process that saves the model, beside it.

        ledger = Ledger(samples=len(dataset), epochs=3, size=64)
        ...
        if ledger.add(lease):        # first, as it may be a straggler's
            apply the gradient of dataset[ledger.indices(lease)]
        ...
        save({"model": model.state_dict(), "ledger": ledger.state_dict()})  # one commit

    `load_state_dict` begins a new life of the model: leases handed out before are refused, as what
    they were for is undone.

    Args:
        samples: of the data set.
        epochs: how often the whole of it is passed.
        size: most samples of a lease.
        seed: of the order; a restart must use the same.
        audit: a folder for the record that `elastic_trainer.data.audit` verifies.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(
        self,
        *,
        samples: int,
        epochs: int,
        size: int,
        seed: int = 0,
        audit: str | Path | None = None,
    ) -> None:
        self.shards = Shards(samples, epochs, size, seed)
        self.consumed = Ranges()
        self.committed = Ranges()
        """Samples in the newest commit, by ShardClient.commit or load_state_dict."""
        self.life = uuid.uuid4().hex
        self._audit = None if audit is None else Path(audit)
        self._log: AuditLog | None = None
        self._count = 0
        """Leases in the model; the steps of the audit."""
        self._run = self._parent = 0

    @property
    def complete(self) -> bool:
        """True once the model has seen every sample of every epoch."""
        return not self.shards.all - self.consumed

    def add(self, lease: Lease) -> bool:
        """Takes the lease's samples as consumed; call it with the model's change, not before.

        False: the model has them already, or was rolled back since the lease was handed out; don't
        apply them.
        """
        positions = Ranges.of(lease.start, lease.stop)
        if lease.life != self.life or self.consumed & positions:
            return False
        self.consumed |= positions
        self._count += 1
        log = self._audit_log()
        if log is not None:
            indices = self.indices(lease)
            log.took(step=self._count, epoch=self.shards.epoch(lease.start), indices=indices)
            log.applied(self._count)
        return True

    def indices(self, lease: Lease) -> list[int]:
        """The samples of a lease."""
        found: list[int] = self.shards.indices(lease.start, lease.stop).tolist()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "samples": self.shards.samples,
            "seed": self.shards.seed,
            "consumed": list(self.consumed.bounds),
            "count": self._count,
            "run": self._run or self._parent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved model, perhaps with other `epochs` or `size`.

        Raises:
            ValueError: it was saved for another order of samples.
        """
        saved = Shards(state["samples"], 1, 1, state["seed"])
        if difference := saved.difference(self.shards):
            raise ValueError(
                f"the saved ledger is for another data set: {difference}; samples would be lost or "
                "repeated: restore the former, or start in a new folder"
            )
        self.consumed = self.committed = Ranges(tuple(state["consumed"]))
        self.life = uuid.uuid4().hex
        self._count = state["count"]
        self._parent, self._run = state["run"], 0
        if self._log is not None:
            self._log.close()
            self._log = None

    def _audit_log(self) -> AuditLog | None:
        if self._audit is not None and self._log is None:
            self._run = last_run(self._audit) + 1
            # The count before the lease that asks for the log.
            start = RunStart(self._run, 0, 0, 1, self._count - 1, self._parent)
            self._log = AuditLog(self._audit, start)
        return self._log
