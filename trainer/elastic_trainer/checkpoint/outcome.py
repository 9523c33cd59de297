"""The end of one rank's loading, as all ranks are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_trainer.checkpoint.recovery import Available


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one rank's loading."""

    available: Available
    """The states that it has now."""
    damaged: str | None = None
    """How its source was not what it should be."""
    refusal: str | None = None
    """Why no source would help."""
    unavailable: bool = False
    """The refusal is the storage's, which can't be read."""
    parts_left: bool = False
    """There may be enough parts of that state without those that are damaged."""
