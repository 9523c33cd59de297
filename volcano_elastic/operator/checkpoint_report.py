"""Reads the size of a job's checkpoint from its coordinator and its servers; writes it for its
status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.checkpoint_size import SERVING
from volcano_elastic.api.role import elastic

_MUCH = 0.1
"""A change by this share of what is known is written."""
_MOST_BYTES = 1 << 60


def read(reported: object) -> Bytes | None:
    """Return the size of the newest commit; None where none is told, or it makes no sense.

    Args:
        told: bytes, or nothing.
    """
    return Bytes(reported) if type(reported) is int and 0 < reported <= _MOST_BYTES else None


def to_write(
    known: Mapping[str, Any], commit: Bytes | None, tables: Bytes | None
) -> dict[str, str] | None:
    """Return what changes the status' field; None: nothing is to be written.

    Args:
        known: the field that is there; empty: none is.
        commit: size of what Workers commit; None: not known.
        tables: size of the rows that servers hold, which is what a save of them takes.
    """
    found = {}
    for role, size in ((elastic().name, commit), (SERVING, tables)):
        if not size:
            continue
        before = Bytes.parse(known.get(role) or 0)
        if abs(size.count - before.count) > _MUCH * before.count:
            found[role] = str(size.whole_mebibytes())
    return found or None
