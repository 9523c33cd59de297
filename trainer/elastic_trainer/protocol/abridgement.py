"""Names what thousands of agents tell alike by its digest.

All members of a round tell a coordinator that was started anew of the round and of its electors,
hundreds of kilobytes each in a large job. A Hello that would be large so names both by digests,
and the coordinator asks one agent for what it doesn't know.
"""

from __future__ import annotations

import hashlib
from typing import Any

from elastic_trainer.protocol.message import ABRIDGED_VERSION, Whole

WHOLE_BYTES = 4096
"""Up to here a Hello says all by itself: some 30 members."""
_FIELDS = ("round", "electorate")


def digest_of(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).digest()


def abridge(envelope: Any) -> Whole | None:
    """Puts digests in the place of what is large in a Hello; returns what was taken out.

    Args:
        envelope: the wire's AgentMessage. Anything but a large Hello stays as it is.
    """
    hello = envelope.hello
    told = {name: bytes(getattr(hello, name)) for name in _FIELDS if hello.HasField(name)}
    if sum(map(len, told.values())) <= WHOLE_BYTES:
        return None
    hello.version = ABRIDGED_VERSION
    for name, encoded in told.items():
        setattr(hello, f"{name}_digest", digest_of(encoded))
        hello.ClearField(name)
    return Whole(**{f"encoded_{name}": encoded for name, encoded in told.items()})
