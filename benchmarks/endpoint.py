"""Finds an endpoint that a coordinator may listen at."""

from __future__ import annotations

import contextlib
import socket


def free_endpoint() -> int:
    """A port that is free, and whose next one is."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return int(port)
    raise SystemExit("error: no two neighbouring ports of 127.0.0.1 are free; end what holds them")
