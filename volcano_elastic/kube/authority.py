"""A certificate authority: what it is made of, and what it signs. All PEM."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A clock that is a little behind must not find them "not yet valid".
_SLACK = timedelta(minutes=10)
# Characters of a common name (RFC 5280, ub-common-name-length).
_MOST_NAME = 64


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: bytes
    key: bytes

    @classmethod
    def new(cls, name: str, now: datetime, life: timedelta) -> Authority:
        key, subject = new_key(), subject_of(name[:_MOST_NAME])
        certificate = (
            _builder(subject, subject, key.public_key(), now, life)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(_pem(certificate), key_pem(key))

    def server(
        self, name: str, names: Sequence[str], now: datetime, life: timedelta
    ) -> tuple[bytes, bytes]:
        """Certificate and key of a server that is called by `names`: DNS names, IP addresses."""
        called = x509.SubjectAlternativeName([_general(one) for one in names])
        # Clients look at `names` alone.
        subject = subject_of(name[:_MOST_NAME])
        return self._sign(subject, ExtendedKeyUsageOID.SERVER_AUTH, called, now, life)

    def client(self, subject: x509.Name, now: datetime, life: timedelta) -> tuple[bytes, bytes]:
        """Certificate and key of who asks a server."""
        return self._sign(subject, ExtendedKeyUsageOID.CLIENT_AUTH, None, now, life)

    def _sign(
        self,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        now: datetime,
        life: timedelta,
    ) -> tuple[bytes, bytes]:
        issuer = x509.load_pem_x509_certificate(self.certificate).subject
        signer, key = private_key(self.key), new_key()
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = (
            _builder(subject, issuer, key.public_key(), now, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(by, critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return _pem(builder.sign(signer, hashes.SHA256())), key_pem(key)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The one form in which kube-apiserver also takes a key that tokens are signed with.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises ValueError for anything else."""
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"expected an elliptic-curve key, found {type(key).__name__}")
    return key


def subject_of(common: str, organizations: Sequence[str] = ()) -> x509.Name:
    """Return the subject of a certificate. Kubernetes takes a client's common name as the user, the
    organizations as its groups.

    Raises:
        ValueError: one is longer than the 64 characters that X.509 allows: cut short it would be
            another user's.
    """
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


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


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


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
