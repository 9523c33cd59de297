"""The webhooks' certificates: an authority of our own, and what it signs for the server.

    nothing, or unreadable ─► authority and server certificate
    authority near its end ─► a new one beside it; it signs from then on, the old is still believed
    server's near its end, or for other names ─► signed anew by the newest authority

One step at a time, so that an authority is believed by the API server before it has signed what
is served.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=90)
# Renewed with this part of their life left, so that a failure to renew has weeks to be noticed.
_REST = 1 / 3
# A clock that is a little behind must not find them "not yet valid".
_SLACK = timedelta(minutes=10)


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
            fits = all(_private_key(key).public_key() == c.public_key() for c, key in pairs)
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
        authority, key = _authority(now, authority_life)
        return _signed(Certificates(authority, key, b"", b""), names, now, server_life)
    authorities = _authorities(current)
    if _near_end(authorities[0], now):
        authority, key = _authority(now, authority_life)
        believed = [_pem(a) for a in authorities if a.not_valid_after_utc > now]
        return replace(current, authorities=b"".join([authority, *believed]), authority_key=key)
    server = x509.load_pem_x509_certificate(current.server)
    if _near_end(server, now) or set(_names(server)) != set(names):
        return _signed(current, names, now, server_life)
    return None


def _authority(now: datetime, life: timedelta) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Each has a name of its own, so that verifiers pick the one that signed.
    name = _common_name(f"volcano-elastic webhook authority {x509.random_serial_number():x}"[:64])
    certificate = (
        _builder(name, name, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _signed(
    current: Certificates, names: Sequence[str], now: datetime, life: timedelta
) -> Certificates:
    authority, authority_key = _authorities(current)[0], _private_key(current.authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_common_name(names[0][:64]), authority.subject, key.public_key(), now, life)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return replace(current, server=_pem(certificate), server_key=_key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + life)
    )


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


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"expected an elliptic-curve key, found {type(key).__name__}")
    return key
