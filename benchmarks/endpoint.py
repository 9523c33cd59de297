"""Finds an endpoint that a coordinator may listen at."""

from __future__ import annotations

import contextlib
import secrets
import socket

PORTS = range(10_000, 30_000)
"""None that the kernel gives to connections: one of those may have it before it is listened at."""


def free_endpoint() -> int:
    """A port that is free, and whose next one is."""
    for _ in range(100):
        port = secrets.choice(PORTS)
        with (
            socket.socket() as first,
            socket.socket() as second,
            contextlib.suppress(OSError),
        ):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise SystemExit("error: no two neighbouring ports of 127.0.0.1 are free; end what holds them")
