"""The webhooks' certificates: an authority of our own, and what it signs for the server.

    nothing, or unreadable ─► authority and server certificate
    authority near its end ─► a new one beside it; it signs from then on, the old is still believed
    server's near its end, or for other names ─► signed anew by the newest authority

One step at a time, so that an authority is believed by the API server before it has signed what
is served.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from volcano_elastic.kube.authority import Authority, private_key

AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=90)
# Renewed with this part of their life left, so that a failure to renew has weeks to be noticed.
_REST = 1 / 3


@dataclass(frozen=True, slots=True)
class Certificates:
    """All PEM. The first authority is the newest, and the one whose key this is."""

    authorities: bytes
    authority_key: bytes
    server: bytes
    server_key: bytes

    @classmethod
    def of_secret(cls, data: Mapping[str, str]) -> Certificates | None:
        """From a Secret's data; None where it holds something else, or parts that don't fit."""
        try:
            found = cls(*(base64.b64decode(data[name]) for name in _SECRET_KEYS))
            authorities = _authorities(found)
            server = x509.load_pem_x509_certificate(found.server)
            (signer,) = [one for one in authorities if one.subject == server.issuer]
            server.verify_directly_issued_by(signer)
            pairs = ((authorities[0], found.authority_key), (server, found.server_key))
            fits = all(private_key(key).public_key() == c.public_key() for c, key in pairs)
        except (KeyError, TypeError, ValueError, InvalidSignature):
            return None
        return found if fits else None

    def secret_data(self) -> dict[str, str]:
        parts = (self.authorities, self.authority_key, self.server, self.server_key)
        named = zip(_SECRET_KEYS, parts, strict=True)
        return {name: base64.b64encode(part).decode() for name, part in named}


# As kubernetes.io/tls and cert-manager name them.
_SECRET_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def renewed(
    current: Certificates | None,
    names: Sequence[str],
    now: datetime,
    *,
    authority_life: timedelta = AUTHORITY_LIFE,
    server_life: timedelta = SERVER_LIFE,
) -> Certificates | None:
    """The next step; None if all is well.

    Args:
        names: DNS names and IP addresses that the server is called by.
    """
    if current is None:
        new = _new_authority(now, authority_life)
        return _signed(Certificates(new.certificate, new.key, b"", b""), names, now, server_life)
    authorities = _authorities(current)
    if _near_end(authorities[0], now):
        new = _new_authority(now, authority_life)
        believed = [
            one.public_bytes(serialization.Encoding.PEM)
            for one in authorities
            if one.not_valid_after_utc > now
        ]
        both = b"".join([new.certificate, *believed])
        return replace(current, authorities=both, authority_key=new.key)
    server = x509.load_pem_x509_certificate(current.server)
    if _near_end(server, now) or set(_names(server)) != set(names):
        return _signed(current, names, now, server_life)
    return None


def _new_authority(now: datetime, life: timedelta) -> Authority:
    # Each has a name of its own, so that verifiers pick the one that signed.
    name = f"volcano-elastic webhook authority {x509.random_serial_number():x}"
    return Authority.new(name, now, life)


def _signed(
    current: Certificates, names: Sequence[str], now: datetime, life: timedelta
) -> Certificates:
    # The newest, whose key this is, comes first.
    authority = Authority(current.authorities, current.authority_key)
    server, key = authority.server(names[0], names, now, life)
    return replace(current, server=server, server_key=key)


def _near_end(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return end - now <= (end - begin) * _REST


def _authorities(certificates: Certificates) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(certificates.authorities)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in extension.value]
