"""Says what ranks tell one another first in a round of an ElasticLoop, all at once."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_trainer.checkpoint.recovery import Available


@dataclass(frozen=True, slots=True)
class Opening:
    """One rank's opening words."""

    stopping: bool
    """The loop is to end after the last step that this rank made."""
    trained: str
    """Digest of the names of the parameters that it trains."""
    shares: str
    """Its text for the division of samples, as it was told."""
    narrow: bool
    """Its node's memory is known to have room for one state."""
    available: Available | None
    """The states that it has, where it knows that already."""
