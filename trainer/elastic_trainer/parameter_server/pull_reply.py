"""PullReply: what a pull is answered with, written and read without protobuf's copies of its rows.

The bytes are those of the message PullReply, so that either end may be any protobuf: a field
verdict, whose number is one byte, and a field rows, whose length is written in five (more than it
needs, which the format allows). So rows begin at the eighth byte, where numbers of 64 bits may lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.proto import parameter_server_pb2 as messages

SERVICE = messages.DESCRIPTOR.services_by_name["ParameterServer"].full_name
_VERDICT, _ROWS = b"\x08", b"\x12"
_HEADER = 8
_NOTHING = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class PullReply:
    verdict: int
    """A messages.Verdict."""
    rows: NDArray[Any] | memoryview | bytes = b""
    """Numbers, without a gap between them."""

    def write(self) -> bytes:
        rows = np.frombuffer(self.rows, dtype=np.uint8) if len(self.rows) else _NOTHING
        return b"".join((_header(self.verdict, len(rows)), rows.data))


def read_reply(content: bytes) -> PullReply:
    """Return what is told there; its rows are the same memory."""
    verdict = content[1] if len(content) >= _HEADER else 0
    if content[:_HEADER] == _header(verdict, len(content) - _HEADER):
        return PullReply(verdict, memoryview(content)[_HEADER:])
    found = messages.PullReply.FromString(content)
    return PullReply(found.verdict, found.rows)


def _header(verdict: int, size: int) -> bytes:
    length = bytes(size >> shift & 0x7F | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    return _VERDICT + bytes([verdict]) + _ROWS + length
