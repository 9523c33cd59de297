"""Number of parameter servers that a job has instead of what its spec says, as
`status.elastic.servers` keeps it.

It stands for the spec's number that it was decided for: whoever edits that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "servers"
"""Key in status.elastic."""
MEASURED = "speedServers"
"""Key in status.elastic of the number of servers with which `speeds` were measured."""
MOST = 1024
"""Each has a bucket at least."""
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerCount:
    replicas: int
    instead_of: int
    """The spec's number when it was decided."""
    message: str = ""
    """Why just so many."""

    def as_status(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "insteadOf": self.instead_of,
            "message": self.message,
        }


def read(status: Object) -> ServerCount | None:
    """Return the field of a job's status; None where there is none, or no sense in it."""
    found = (status.get("elastic") or {}).get(FIELD)
    if not isinstance(found, Mapping):
        return None
    replicas, instead_of = found.get("replicas"), found.get("insteadOf")
    if type(replicas) is not int or type(instead_of) is not int or not 1 <= replicas <= MOST:
        return None
    return ServerCount(replicas, instead_of, str(found.get("message") or ""))


def in_force(status: Object, asked: int) -> ServerCount | None:
    """Return what counts instead of the spec's number; None: that does."""
    found = read(status)
    return found if found is not None and found.instead_of == asked else None
