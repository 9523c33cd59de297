"""Certificates of the end-to-end control plane, made anew for each one and kept in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from embedded_cluster.kubeconfig_file import write_private
from volcano_elastic.kube import authority

_LIFE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Paths of a certificate and its key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority of our own: what it signs, and nothing else, is believed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = authority.Authority.new("volcano-elastic-e2e", datetime.now(UTC), _LIFE)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._made.certificate)

    def server(self, name: str) -> KeyPair:
        """For a server on loopback."""
        names = ("localhost", "127.0.0.1")
        return self._keep(name, self._made.server(name, names, datetime.now(UTC), _LIFE))

    def client(self, file: str, user: str, groups: tuple[str, ...] = ()) -> KeyPair:
        subject = authority.subject_of(user, groups)
        return self._keep(file, self._made.client(subject, datetime.now(UTC), _LIFE))

    def _keep(self, file: str, made: tuple[bytes, bytes]) -> KeyPair:
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.certificate.write_bytes(made[0])
        write_private(pair.key, made[1].decode())
        return pair


def signing_key(path: Path) -> Path:
    """A key that service-account tokens are signed with."""
    write_private(path, authority.key_pem(authority.new_key()).decode())
    return path
