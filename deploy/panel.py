"""A dashboard of Grafana's, and a panel of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    title: str
    help: str
    queries: Mapping[str, str]
    """Expressions by legend."""
    unit: str = "short"
    stacked: bool = False


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    panels: Sequence[Panel]
    variable: str = ""
    """A label to choose by, and all by default; empty: none."""
    values: str = ""
    """The metrics whose labels are offered, with | between them."""
