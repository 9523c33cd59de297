"""Points in time as Kubernetes spells them."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """RFC 3339 in microseconds, as metav1.MicroTime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> datetime:
    """Either spelling; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_optional(text: object) -> datetime | None:
    """None where there is no text, or text that somebody else broke."""
    try:
        return parse(text) if isinstance(text, str) else None
    except ValueError:
        return None
