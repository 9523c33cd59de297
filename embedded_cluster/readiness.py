"""Asks programs of this machine at /readyz whether they are ready, on ports given to them."""

from __future__ import annotations

import http.client
import random
import socket
from contextlib import closing

HOST = "127.0.0.1"
# Below what the system hands out by itself (net.ipv4.ip_local_port_range), so that nobody's
# connection takes the port before the program does.
_PORTS = range(20_000, 32_000)
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    while True:
        port = _random.choice(_PORTS)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_ready(port: int) -> bool:
    """Ask the program that listens on `port` of 127.0.0.1; False where none answers in a second."""
    try:
        with closing(http.client.HTTPConnection(HOST, port, timeout=1)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
