"""Ends the stream of a peer that is silent for too long, by gRPC's options."""

from __future__ import annotations

from collections.abc import Mapping

HEARTBEAT_TIMEOUT_VARIABLE = "VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT"
"""Seconds of silence after which a peer is taken for lost; the same for all processes of a job."""
HEARTBEAT_TIMEOUT = 1.0
"""Where it isn't set."""


def heartbeat_timeout(environment: Mapping[str, str]) -> float:
    """Seconds. Raises ValueError for what is no time."""
    text = environment.get(HEARTBEAT_TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else HEARTBEAT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"{HEARTBEAT_TIMEOUT_VARIABLE}: expected seconds above 0, found {text!r}; fix or unset "
            "it"
        )
    return seconds


SERVER_SECONDS = 8.0
"""A coordinator's patience with connections: after a pause of its own, all its clients' answers
seem late. Those who heard nothing from it for 3 s connect anew by themselves; the others stay."""


def options(seconds: float) -> list[tuple[str, int]]:
    """Return options for a server or client that notices a silent peer within so long.

    gRPC's own threads answer a ping, so a long computation is no silence.
    """
    half = max(1, int(seconds * 500))
    return [
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.http2.ping_timeout_ms", half),  # else a minute, whatever the line above says
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The server takes no number of pings for an attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
    ]
