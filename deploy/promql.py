"""Expressions in PromQL that dashboards and alerts share.

Metrics of jobs carry the label `job`, so they must be scraped with honor_labels
(docs/monitoring.md).
"""

from __future__ import annotations

OPERATOR, TRAINER = "volcano_elastic_", "volcano_elastic_trainer_"
"""The first part of the names of the operator's metrics, and of training's."""


def p99(metric: str, by: str = "") -> str:
    """Return the time that 99 of 100 of the operator's took at most, from a histogram."""
    labels = "le" + (f", {by}" if by else "")
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({OPERATOR}{metric}_bucket[5m])))"


def per_job(expression: str) -> str:
    return f"max by (job) ({expression})"
