"""A commit's marker: the step that it is of, and the digests of its files. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from elastic_trainer.store.errors import DamagedError
from elastic_trainer.store.folder import FileRecord

STEP = re.compile(r"step-(\d+)(?:-(\d+)-[0-9a-f]{32})?")
"""A commit's directory: its step and, where there was one already, its run."""


@dataclass(frozen=True, slots=True)
class Commit:
    step: int
    run: int
    """The run that wrote it. A later run knows better than a higher step of an earlier one."""
    cursor: Mapping[str, int]
    files: Mapping[str, FileRecord]
    round: int = 0
    """Rendezvous round that made it; 0 without an agent. Later rounds have higher numbers."""
    place: str = field(default="", compare=False)
    """The name of its directory."""

    @property
    def identity(self) -> tuple[int, int]:
        return (self.run, self.step)

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(record.size for record in self.files.values())


def encode(commit: Commit) -> bytes:
    body = asdict(commit)
    del body["place"]
    return json.dumps({**body, "xxh3": _digest(body)}, indent=1).encode()


def decode(content: bytes, name: str, marker: str) -> Commit:
    """Return the commit of which `content` is the marker.

    Args:
        name: of its directory.
        marker: path or URL of the marker, for who reads an error.

    Raises:
        DamagedError: it isn't what was written there.
    """
    try:
        body = json.loads(content)
        digest = body.pop("xxh3")
        if digest != _digest(body):
            raise DamagedError(f"{marker} is damaged: its digest doesn't match its content")
        files = {name: FileRecord(**record) for name, record in body["files"].items()}
        commit = Commit(
            body["step"], body["run"], body["cursor"], files, body.get("round", 0), name
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{marker} is damaged: {error}") from error
    if (shown := STEP.fullmatch(name)) is None or int(shown[1]) != commit.step:
        raise DamagedError(f"{marker} is for step {commit.step}: was the directory renamed?")
    return commit


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
