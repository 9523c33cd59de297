"""Each pod's own loopback address, which follows from its name and its cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from ipaddress import IPv4Address

# 127.16.0.0 and above: the machine's own services keep the low addresses.
_FIRST = int(IPv4Address("127.16.0.0"))
_COUNT = int(IPv4Address("127.255.255.255")) - _FIRST


class AddressBook:
    """Hands out addresses: the same one for the same pod name, whether the pod runs or not, but for
    pods in whose place another comes while they run on behind a partition.

    An address is a hash of the name, so it outlives the kubelet; the second of two names with one
    hash gets the next free address.

    Args:
        cluster: what tells this cluster from others on the machine, which may have a pod of the
            same name: their pods would take each other's ports.
    """

    def __init__(self, cluster: str = "") -> None:
        self._cluster = cluster
        self._by_pod: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, namespace: str, name: str) -> str:
        known = self._by_pod.get((namespace, name))
        if known is not None:
            return known
        unique = f"{self._cluster}/{namespace}/{name}"
        digest = hashlib.blake2b(unique.encode(), digest_size=8).digest()
        offset = int.from_bytes(digest, "big")
        while True:
            address = IPv4Address(_FIRST + offset % _COUNT)
            last = int(address) & 0xFF
            if str(address) not in self._taken and 0 < last < 255:
                break
            offset += 1
        self._by_pod[namespace, name] = str(address)
        self._taken.add(str(address))
        return str(address)

    def renew(self, namespace: str, name: str) -> None:
        """Gives the next pod of this name another address: the one before it still has this."""
        self._by_pod.pop((namespace, name), None)


# A host name as written in an environment variable, to the address it stands for, or None.
Resolve = Callable[[str], str | None]


def resolve_value(value: str, resolve: Resolve) -> str:
    """`value` with the hosts in it replaced: each that is NAME or NAME:port, of one or several with
    commas between them, where NAME is known."""
    return ",".join(_resolve_one(one, resolve) for one in value.split(","))


def _resolve_one(value: str, resolve: Resolve) -> str:
    host, colon, port = value.partition(":")
    if not host or (colon and not port.isdigit()):
        return value
    address = resolve(host)
    return value if address is None else address + colon + port
