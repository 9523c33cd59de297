"""Finds ports for programs of this machine, and asks at /readyz whether those are ready."""

from __future__ import annotations

import http.client
import random
import socket
from contextlib import ExitStack, closing

HOST = "127.0.0.1"
# Below what the system hands out by itself (net.ipv4.ip_local_port_range), so that nobody's
# connection takes the port before the program does; and below those that documents and PyTorchJobs
# name.
_PORTS = range(10_000, 23_000)
_random = random.SystemRandom()
_claims: list[ExitStack] = []
"""What is closed as this process ends."""


def free_port(count: int = 1) -> int:
    """Return a port of 127.0.0.1 on which nobody listens, the first of `count` in a row.

    Until this process ends no other call returns it, whoever makes it: else a program that has
    yet to listen, or is away for a moment, would meet another one there.
    """
    while True:
        port = _random.choice(_PORTS)
        if _claim(range(port, port + count)):
            return port


def _claim(ports: range) -> bool:
    with ExitStack() as claims:
        for port in ports:
            claim = claims.enter_context(socket.socket(socket.AF_UNIX))
            try:
                # One of each name in a network namespace, and gone with the process.
                claim.bind(f"\0volcano-elastic-port-{port}")
            except OSError:
                return False
            if not is_free(port):
                return False
        _claims.append(claims.pop_all())
    return True


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
