"""Finds ports for programs of this machine, and asks at /readyz whether those are ready."""

from __future__ import annotations

import errno
import http.client
import random
import socket
from contextlib import closing

HOST = "127.0.0.1"
# Below what the system hands out by itself (net.ipv4.ip_local_port_range), so that nobody's
# connection takes the port before the program does; and below those that documents and PyTorchJobs
# name. In steps: a coordinator listens at the next two, too.
_PORTS = range(10_000, 23_000, 3)
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens, nor on the next two.

    Until this process ends no other call returns it, whoever makes it: else a program that has
    yet to listen, or is away for a moment, would meet another one there.

    Raises:
        OSError: hardly any is free, or none can be claimed here.
    """
    for _ in range(10 * len(_PORTS)):
        port = _random.choice(_PORTS)
        if _claim(port) and all(is_free(one) for one in range(port, port + _PORTS.step)):
            return port
    found = f"ports {_PORTS.start} to {_PORTS.stop} of {HOST}: expected {_PORTS.step} free ones"
    raise OSError(errno.EADDRINUSE, f"{found} in a row, found none; end what holds them")


def _claim(port: int) -> bool:
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            # One of each name in a network namespace, and gone with the process.
            claim.bind(f"\0volcano-elastic-port-{port}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        claim.detach()  # which leaves it open
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
