"""The differences that embedded_cluster/README.md lists, and how they fit with those found."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path

from embedded_cluster.conformance.difference import Difference

DOCUMENT = Path(__file__).parents[1] / "README.md"
_ROW = re.compile(r"\| `(?P<pattern>[^`]+)` \| (?P<why>.{10,}) \|")


def patterns(text: str) -> list[str]:
    """The first column of the table after the mark, in order.

    Raises:
        ValueError: a row without a pattern or without a reason.
    """
    table = text.partition("<!-- differences -->")[2].strip().partition("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"{DOCUMENT.name}: expected | `PATTERN` | REASON |, found {line}")
        found.append(row["pattern"])
    return found


def unlisted(found: Iterable[Difference], listed: Iterable[str]) -> list[Difference]:
    known = [_compiled(pattern) for pattern in listed]
    return [one for one in found if not any(pattern.fullmatch(one.where) for pattern in known)]


def stale(found: Iterable[Difference], listed: Iterable[str]) -> list[str]:
    """Patterns that no difference needs: none fits, or others cover all of it."""
    places = [one.where for one in found]
    fitting = {pattern: set(filter(_compiled(pattern).fullmatch, places)) for pattern in listed}
    return [
        pattern
        for pattern, fits in fitting.items()
        if not fits - set().union(*(others for one, others in fitting.items() if one != pattern))
    ]


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))
