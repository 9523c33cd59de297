"""KeptRuns: runs that have ended, which another call of an experiment doesn't repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

Plan = TypeVar("Plan")
Outcome = TypeVar("Outcome")


class KeptRuns(Generic[Plan, Outcome]):
    """Files of outcomes, by what their plans look like.

    Args:
        folder: of the files; made when the first run has ended.
        read: makes an outcome, which is a dataclass, of its fields as JSON has them.
    """

    def __init__(self, folder: Path, read: Callable[[dict[str, Any]], Outcome]) -> None:
        self.folder = folder
        self._read = read

    def once(self, plan: Plan, run: Callable[[Plan], Outcome]) -> Outcome:
        """Return how a run of this plan ended; it is made where none has."""
        place = self.folder / f"{sha256(repr(plan).encode()).hexdigest()[:16]}.json"
        if place.exists():
            return self._read(json.loads(place.read_text()))
        found: Any = run(plan)
        self.folder.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(asdict(found)))
        return self._read(json.loads(place.read_text()))


def tuples(told: Any) -> Any:
    """Return JSON's lists, and those in them, as tuples."""
    return tuple(map(tuples, told)) if isinstance(told, list) else told
