"""A note in shared memory: which training a node's workers went on with, and from which step.

Until their first save it is all that tells a folder that vanished from a new job's.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_PREFIX = "origin-"


@dataclass(frozen=True, slots=True)
class Origin:
    """The state that a run began with."""

    training: str
    run: int
    step: int


def write_origin(folder: Path, place: str, origin: Origin) -> None:
    """Note it for the node's next workers; without room for it, it is left out.

    Args:
        folder: the agent's.
        place: where the training's commits are, see `slot.digest_of_location`.
    """
    path = folder / f"{_PREFIX}{place}"
    new = folder / f"{_PREFIX}{place}.new-{os.getpid()}"
    with contextlib.suppress(OSError):
        new.write_text(json.dumps(asdict(origin)), encoding="utf-8")
        new.replace(path)


def read_origin(folder: Path, place: str) -> Origin | None:
    """Return what was noted last for `place`; None where nothing was, or another version did."""
    try:
        found = json.loads((folder / f"{_PREFIX}{place}").read_text(encoding="utf-8"))
        return Origin(**found)
    except (OSError, ValueError, TypeError):
        return None
