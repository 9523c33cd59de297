"""Certificates of the webhooks: made, renewed, and believed in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from volcano_elastic.operator.certificate import Certificates, renewed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("w.team.svc", "localhost", "127.0.0.1")


def test_nothing_leads_to_an_authority_and_a_certificate_for_every_name() -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    server = x509.load_pem_x509_certificate(made.server)
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(made.authorities))
    assert Certificates.of_secret(made.secret_data()) == made
    assert renewed(made, NAMES, NOW) is None


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_a_secret_that_somebody_broke_is_nothing(key: str) -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    data = made.secret_data()
    assert Certificates.of_secret(data | {key: "bm9uc2Vuc2U="}) is None
    assert Certificates.of_secret(data | {key: "?"}) is None
    assert Certificates.of_secret({k: v for k, v in data.items() if k != key}) is None
    other = renewed(None, NAMES, NOW)
    assert other is not None
    assert Certificates.of_secret(data | {key: other.secret_data()[key]}) is None


def test_other_names_are_signed_for_by_the_same_authority() -> None:
    made = renewed(None, NAMES, NOW)
    assert made is not None
    again = renewed(made, ("other.svc",), NOW)
    assert again is not None
    assert again.authorities == made.authorities and again.server != made.server


def test_through_twenty_years_what_is_served_was_always_believed_a_step_before() -> None:
    current, now, steps = renewed(None, NAMES, NOW), NOW, 0
    assert current is not None
    while now < NOW + timedelta(days=7300):
        now += timedelta(days=7)
        new = renewed(current, NAMES, now)
        if new is not None:
            steps += 1
        latest = new or current
        # API server and replicas may each be a step behind the other.
        for believed, served in ((latest, latest), (current, latest), (latest, current)):
            server = x509.load_pem_x509_certificate(served.server)
            authorities = x509.load_pem_x509_certificates(believed.authorities)
            (signer,) = [a for a in authorities if a.subject == server.issuer]
            server.verify_directly_issued_by(signer)
            assert signer.not_valid_after_utc > now < server.not_valid_after_utc
        assert len(x509.load_pem_x509_certificates(latest.authorities)) <= 2
        current = latest
    assert steps > 100
