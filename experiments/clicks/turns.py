"""Decides which worker may push which lease's gradient; pure.

A lease is handed out twice where its worker, or the coordinator, was silent for so long that it
went back: after a second, on a busy machine. Servers apply whatever is pushed, so who pushes asks
first.
"""

from __future__ import annotations

from elastic_trainer.shards.ranges import Ranges


class Turns:
    """The samples that are being pushed."""

    def __init__(self) -> None:
        self._pushing = Ranges()

    def decide(self, samples: Ranges, consumed: Ranges, until: int) -> bool | None:
        """Return whether samples are to be pushed now; False: the model has them already; None:
        somebody else is pushing them, or they would be too many, so that is told later.

        Args:
            consumed: in the model.
            until: the most that it may have.
        """
        if consumed & samples:
            return False
        if self._pushing & samples:
            return None
        return True if len(consumed | self._pushing | samples) <= until else None

    def begin(self, samples: Ranges) -> None:
        self._pushing |= samples

    def end(self, samples: Ranges) -> None:
        """They are in the model, or their worker was killed."""
        self._pushing -= samples
