"""Where agents of a job are asked which of them hosts the coordinator; pure.

An agent that is new knows nobody. It is told names of the pods that leave last, those of the lowest
indexes: services have them before there are pods, and they need no change when a host does.
"""

from __future__ import annotations

PEERS_VARIABLE = "VOLCANO_ELASTIC_PEERS"
"""HOST or HOST:PORT of some of the job's pods, comma-separated, with the rendezvous port where they
have another than the endpoint's."""
PORT_OFFSET = 2
"""From the rendezvous port to the succession service's, where it is free."""

Place = tuple[str, int]
"""Host and port."""


def read_peers(text: str, port: int) -> tuple[Place, ...]:
    """Return the places of succession services. Raises ValueError for what is no list of hosts.

    Args:
        port: the rendezvous port of those that name none.
    """
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        host, colon, own = one.rpartition(":")
        if not colon or "]" in own or (":" in host and not host.endswith("]")):
            host, own = one, str(port)  # an address of IP version 6 without port, or a name
        if not host or not own.isdecimal() or not 0 < int(own) < 65536 - PORT_OFFSET:
            raise ValueError(
                f"{PEERS_VARIABLE}: expected HOST or HOST:PORT, comma-separated, found {one!r} in "
                f"{text!r}; fix or unset it"
            )
        found.append((host.strip("[]"), int(own) + PORT_OFFSET))
    return tuple(dict.fromkeys(found))
