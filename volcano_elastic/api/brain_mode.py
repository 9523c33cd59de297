"""Modes of a job with Brain: what becomes of its estimates of CPU and memory."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION


class BrainMode(StrEnum):
    OFF = "Off"
    """The job is recorded, no more."""
    RECOMMEND = "Recommend"
    """An event tells what its pods should ask for."""
    AT_START = "AtStart"
    """Its pods are made with what they should ask for."""
    LIVE = "Live"
    """That, and running pods are resized where they are as more is known."""

    @property
    def carried_out(self) -> bool:
        """Return whether the operator has its pods follow the estimates."""
        return self in (BrainMode.AT_START, BrainMode.LIVE)


def mode_of(annotations: Mapping[str, str], queues: BrainMode | None) -> BrainMode | None:
    """Return the mode that a job's annotation says, else its queue's policy; None: neither does."""
    said = annotations.get(BRAIN_ANNOTATION)
    return BrainMode(said) if said in set(BrainMode) else queues
