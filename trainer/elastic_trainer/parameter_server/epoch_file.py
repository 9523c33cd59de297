"""EpochFile: what the first server has to know after it was restarted, in the job's storage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from elastic_trainer.store.folder import sync_directory

NAME = "PARAMETER-SERVERS"


@dataclass(frozen=True)
class Epoch:
    """Tables from their beginning, empty or loaded, to the next load."""

    name: str = ""
    """Empty: none has begun."""
    superseded: tuple[str, ...] = ()
    """Epochs whose rows count no more."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """By address, the lives that were heard of last."""
    ended: tuple[str, ...] = ()
    """Lives whose rows another server holds now."""
    adopted: int = 0
    """Adoptions of a copy that were begun."""


class EpochFile:
    """The first server's, which writes it before it does what is noted in it.

    Args:
        folder: one that outlives the servers; empty: nothing outlives them.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / NAME if folder else None

    @property
    def outlives(self) -> bool:
        """Return whether a first server that was restarted finds what this one wrote."""
        return self._path is not None

    def read(self) -> Epoch:
        """Return the epoch that was written last.

        Raises:
            OSError: it can't be read.
            ValueError: it isn't what was written.
        """
        if self._path is None:
            return Epoch()
        try:
            found = json.loads(self._path.read_text())
            superseded, ended = (tuple(map(str, found[one])) for one in ("superseded", "ended"))
            # A version before counted none: each life that ended may have been one.
            adopted = int(found.get("adopted", len(ended)))
            return Epoch(str(found["name"]), superseded, dict(found["servers"]), ended, adopted)
        except FileNotFoundError:
            return Epoch()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self._path} is damaged ({error!r}): expected what a first server wrote; remove "
                "it to begin with empty tables, and load the last commit"
            ) from error

    def write(self, epoch: Epoch) -> None:
        """Write it, whole or not at all. Raises OSError."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        try:
            with open(part, "w") as file:
                json.dump(asdict(epoch), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self._path)
        finally:
            part.unlink(missing_ok=True)
        sync_directory(self._path.parent)
