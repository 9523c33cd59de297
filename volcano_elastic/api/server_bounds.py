"""Annotations by which a job has its parameter servers scaled by their loads. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from volcano_elastic.api.problem import Problem, invalid
from volcano_elastic.api.pytorchjob_shape import ANNOTATION_PREFIX
from volcano_elastic.api.server_count import MOST

BOUNDS_ANNOTATION = ANNOTATION_PREFIX + "parameter-servers"
"""LEAST-MOST, such as 2-8."""
_BOUNDS = re.compile(r"([1-9][0-9]{0,3})-([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class ServerBounds:
    least: int
    most: int

    def within(self, number: int) -> int:
        return min(max(number, self.least), self.most)


def read(annotations: Mapping[str, str]) -> ServerBounds | None:
    """Return the bounds; None: nothing is scaled by loads. Of annotations that are valid."""
    found = _BOUNDS.fullmatch(annotations.get(BOUNDS_ANNOTATION, ""))
    return None if found is None else ServerBounds(int(found[1]), int(found[2]))


def problems(annotations: Mapping[str, object]) -> Iterator[Problem]:
    """Yield why the annotations can't be so."""
    given = annotations.get(BOUNDS_ANNOTATION)
    if given is None:
        return
    found = _BOUNDS.fullmatch(given) if isinstance(given, str) else None
    if found is None or not int(found[1]) <= int(found[2]) <= MOST:
        where = f"metadata.annotations[{BOUNDS_ANNOTATION}]"
        yield invalid(where, given, f"must be LEAST-MOST, 1 to {MOST}, such as 2-8")
