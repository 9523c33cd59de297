"""A finding about a scheduler configuration: where, its consequence, and the repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Path = tuple[str | int, ...]
"""Keys and list indexes from the document's root, e.g. ("tiers", 0, "plugins", 2)."""


class Severity(StrEnum):
    ERROR = "Error"
    """A promise of elastic training is broken, or Volcano ignores the file."""
    WARNING = "Warning"
    """A promise does not hold in some situations."""
    INFO = "Info"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    """Stable word to filter by."""
    severity: Severity
    path: Path
    finding: str
    consequence: str
    repair: str
    source: str = ""
    """The file, and the object in it where there are several."""
    line: int | None = None
    """Counted from 1 in the file; None where it could not be told."""

    @property
    def where(self) -> str:
        """`tiers[0].plugins[2].name`"""
        text = ""
        for key in self.path:
            text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
        return text
