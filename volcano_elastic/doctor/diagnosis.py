"""A finding about one thing that elastic jobs need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from volcano_elastic.doctor.facts import Untold


class Status(StrEnum):
    """Gravest first."""

    ERROR = "Error"
    """Elastic jobs don't work, or a promise of theirs is broken."""
    WARNING = "Warning"
    """A promise doesn't hold in some situations."""
    UNKNOWN = "Unknown"
    """It could not be observed."""
    OK = "OK"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    code: str
    """Stable word to filter by."""
    status: Status
    found: str
    consequence: str = ""
    repair: str = ""
    """The step that repairs it; empty where all is well."""


def ok(code: str, found: str) -> Diagnosis:
    return Diagnosis(code, Status.OK, found)


def unknown(code: str, why: str, repair: str) -> Diagnosis:
    return Diagnosis(code, Status.UNKNOWN, why, "nobody can say whether it is well", repair)


def untold(code: str, fact: Untold, repair: str) -> Diagnosis:
    """Return that `fact` is not known, and what to do: `repair`, unless no right would help."""
    return unknown(code, fact.why, _UNSERVED if fact.unserved else repair)


_UNSERVED = (
    "nothing on `volcano-elastic local up`, which has no such thing; elsewhere look whether this "
    "KUBECONFIG is the cluster's"
)
