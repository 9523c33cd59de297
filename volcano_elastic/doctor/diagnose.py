"""All that is judged, gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from volcano_elastic.doctor import installation, surroundings
from volcano_elastic.doctor.diagnosis import Diagnosis, Status
from volcano_elastic.doctor.facts import Facts

JUDGEMENTS: tuple[Callable[[Facts], Iterator[Diagnosis]], ...] = (
    installation.crds,
    installation.volcano,
    installation.operator,
    installation.webhooks,
    installation.rights,
    surroundings.clocks,
    surroundings.neighbours,
    surroundings.storage,
)


def diagnose(facts: Facts) -> list[Diagnosis]:
    """Return every diagnosis, gravest first, else in the order of what depends on what."""
    ranks = {status: rank for rank, status in enumerate(Status)}
    found = [one for judge in JUDGEMENTS for one in judge(facts)]
    return sorted(found, key=lambda one: ranks[one.status])
