"""Finds an endpoint that a coordinator may listen at."""

from __future__ import annotations

from embedded_cluster.readiness import free_port


def free_endpoint() -> int:
    """Return a port that is this process's until it ends, as the next two are: those of the
    coordinator's status and of who would succeed it."""
    return free_port()
