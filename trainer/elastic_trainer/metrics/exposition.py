"""Metrics as text, in Prometheus' exposition format; training processes need no library for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIX = "volcano_elastic_trainer_"


@dataclass(frozen=True)
class Metric:
    """One sample. Its name ends in its unit, and in `_total` where it only grows."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    """Beside those of all; samples of one name follow one another."""

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def exposition(metrics: Iterable[Metric], labels: Mapping[str, str]) -> str:
    """All with these labels."""
    lines: list[str] = []
    before = ""
    for metric in metrics:
        name = PREFIX + metric.name
        if name != before:
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        before = name
        all_labels = (*labels.items(), *metric.labels)
        pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in all_labels)
        lines.append(f"{name}{{{pairs}}} {metric.value:.10g}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
