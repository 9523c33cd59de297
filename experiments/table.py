"""Tables as Markdown, and the document they are written into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.trial import Result


class MissingMarkers(ValueError):
    """The document has no place for a section."""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("| --- |" + " ---: |" * (len(head) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def seconds(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


HEAD = (
    "",
    "mean completion, s",
    "median",
    "p99",
    "mean wait, s",
    "p99 wait",
    "makespan, h",
    "useful",
    "held",
    "idle while wanted, h",
    "resizes a job",
)


def row(result: Result, label: str | None = None) -> list[str]:
    """The cells of `HEAD`."""
    found = result.found
    return [
        label or result.trial.label,
        seconds(found.mean_completion),
        seconds(found.median_completion),
        seconds(found.p99_completion),
        f"{found.mean_wait:,.1f}",
        seconds(found.p99_wait),
        f"{found.makespan / 3600:.1f}",
        percent(found.useful_utilisation),
        percent(found.allocated_utilisation),
        f"{found.idle_while_wanted_hours:,.1f}",
        f"{found.resizes_per_job:.2f}",
    ]


def bound_row(result: Result) -> list[str]:
    """Return the row of bounds that no scheduling can beat, under the same head."""
    bound = result.bound
    return [
        "*bound*",
        seconds(bound.mean_completion),
        seconds(bound.median_completion),
        seconds(bound.p99_completion),
        "0",
        "0",
        f"{bound.makespan / 3600:.1f}",
        percent(bound.useful_utilisation),
        "–",
        "0",
        "0",
    ]


def verdict(what: str, found: float, target: float, unit: str = "s") -> str:
    """One line: a target, and whether it is met."""
    word = "met" if found <= target else "**missed**"
    unit = f" {unit}" if unit else ""
    if target < 0.01:
        return f"- {what}: {found:.2g}{unit}; target {target:.2g}{unit}: {word}\n"
    spelt = f"{found:,.0f}" if found >= 100 or found == int(found) else f"{found:,.2f}"
    return f"- {what}: {spelt}{unit}; target {target:,g}{unit}: {word}\n"


def write_section(document: Path, name: str, text: str) -> None:
    """Replace what stands between the section's markers.

    Raises:
        MissingMarkers: names those that the document should have.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = document.read_text(encoding="utf-8")
    if begin not in old or end not in old.split(begin, 1)[1]:
        raise MissingMarkers(f"{document}: expected {begin} and {end}; add them where it belongs")
    before, rest = old.split(begin, 1)
    after = rest.split(end, 1)[1]
    document.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
