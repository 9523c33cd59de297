"""The planner's picture as a JSON file, so that a plan can be made, and made again, elsewhere.

Field by field it is `Snapshot`; amounts are thousandths of a unit, times RFC 3339, spans ISO 8601.
It holds what the planner looks at and nothing more: no pod's environment, command or image, and
nothing of any Secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from volcano_elastic.snapshot.snapshot import Instant, Snapshot

FORMAT = "volcano-elastic/snapshot"
VERSION = 1
"""Raised by whoever changes what a field means, or takes one away. A field added with a default
needs no new version."""


class SnapshotError(ValueError):
    """Not a snapshot that this version reads; says what was expected and found."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A picture and when it was taken; a plan of it is made as of then."""

    time: datetime
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class _Head:
    format: str = ""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    format: str
    version: int
    time: Instant
    snapshot: Snapshot


def encode(observed: Observation) -> bytes:
    """One JSON document, indented for diffs."""
    document = _Document(FORMAT, VERSION, observed.time, observed.snapshot)
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=1)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"expected a field of a snapshot, found {value!r}")


def decode(raw: bytes) -> Observation:
    """Return the snapshot in a text that `encode` wrote.

    Raises:
        SnapshotError: not JSON, of an unknown version, or a field is missing or of a wrong type;
            says which.
    """
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.MsgspecError as error:
        raise SnapshotError(
            f"expected a snapshot as `volcano-elastic snapshot` writes it: {error}"
        ) from error
    if head.format != FORMAT:
        raise SnapshotError(
            f'expected a snapshot ("format": "{FORMAT}"), found {head.format or "no format"!r}; '
            "take one with `volcano-elastic snapshot`"
        )
    if head.version != VERSION:
        raise SnapshotError(
            f"expected a snapshot of version {VERSION}, found version {head.version}; use the "
            "volcano-elastic that wrote it, or take a new one"
        )
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except msgspec.ValidationError as error:
        raise SnapshotError(f"a broken snapshot: {error}") from error
    return Observation(document.time, document.snapshot)
