"""Finds an endpoint that a coordinator may listen at."""

from __future__ import annotations

from embedded_cluster.readiness import free_port

PORTS = 3
"""The coordinator's own, then that of its status, then that of who would succeed it."""


def free_endpoint() -> int:
    """Return a port that is this process's until it ends, as the next two are."""
    return free_port(PORTS)
