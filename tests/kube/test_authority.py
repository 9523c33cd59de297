"""Names in certificates are whole, or refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from volcano_elastic.kube.authority import Authority, subject_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_user_whose_name_is_too_long_for_a_certificate_is_refused() -> None:
    assert "team" in subject_of("u" * 64, ["team"]).rfc4514_string()
    with pytest.raises(ValueError, match="64"):
        subject_of("u" * 65)


def test_a_server_of_any_name_is_called_by_all_of_it() -> None:
    name = f"{'s' * 63}.{'n' * 63}.svc"
    certificate, _ = Authority.new(name, NOW, HOUR).server(name, [name], NOW, HOUR)
    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [name]
