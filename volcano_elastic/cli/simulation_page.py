"""A simulation as pictures, and as one HTML page that holds them."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from volcano_elastic.simulator.comparison import Comparison
from volcano_elastic.simulator.figures import held_over_time, wanted_over_time
from volcano_elastic.simulator.outcome import Outcome

_COLOURS = {"elastic": "#4269d0", "rigid": "#ff725c", "bound": "#3ca951"}
_BANDS = 8
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right }
td:first-child { text-align: left } tr:nth-child(even) { background: #f3f4f6 }
img { width: 100%; margin: 1rem 0 } code { background: #f3f4f6; padding: .1rem .3rem }
"""


def page(
    out: Path, comparisons: Mapping[str, Comparison], rows: Sequence[Sequence[str]], command: str
) -> None:
    """Write `index.html`, and beside it the pictures that it also holds, into `out`.

    Raises:
        OSError: the folder cannot be written to.
    """
    parts: list[str] = []
    for name, made in comparisons.items():
        if name:
            parts.append(f"<h2>Workload {html.escape(name)}</h2>")
        prefix = f"{_safe(name)}-" if name else ""
        for title, figure in (
            ("gpus", held(made.outcome or made.rigid_outcome, rigid=made.outcome is None)),
            ("completions", distributions(made)),
        ):
            path = out / f"{prefix}{title}.png"
            figure.savefig(path, dpi=110)
            pyplot.close(figure)
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(f'<img alt="{title}" src="data:image/png;base64,{data}">')
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    table = "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"
    for row in body:
        table += "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    (out / "index.html").write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Simulation</title>"
        f"<style>{_STYLE}</style><h1>Simulation</h1>"
        f"<p><code>volcano-elastic {html.escape(command)}</code></p>{table}</table>"
        f"{''.join(parts)}</html>\n",
        encoding="utf-8",
    )


def held(outcome: Outcome, *, rigid: bool = False) -> Figure:
    """GPUs held over time, by queue, below the line of GPUs wanted."""
    runs, total = outcome.runs, outcome.config.total
    zero, end = min(run.job.submit for run in runs), max(run.finish for run in runs)
    area: dict[str, float] = {}
    for run in runs:
        area[run.job.queue] = area.get(run.job.queue, 0.0) + run.job.area
    largest = sorted(area, key=lambda queue: -area[queue])[:_BANDS]
    times = [zero + (end - zero) * i / 1000 for i in range(1001)]
    bands = [
        at(held_over_time([run for run in runs if run.job.queue == queue]), times)
        for queue in largest
    ]
    rest = [run for run in runs if run.job.queue not in largest]
    if rest:
        bands.append(at(held_over_time(rest), times))
    hours = [(t - zero) / 3600 for t in times]
    figure, axes = pyplot.subplots(figsize=(10, 3.8), layout="constrained")
    axes.stackplot(
        hours, bands, labels=[*largest, *(["others"] if rest else [])], step="post", alpha=0.85
    )
    wanted = [min(level, 2 * total) for level in at(wanted_over_time(outcome, rigid=rigid), times)]
    axes.step(hours, wanted, where="post", color="#333333", linewidth=0.8, label="wanted")
    axes.axhline(total, color="#555555", linewidth=1, linestyle="--")
    axes.set(xlim=(0, hours[-1]), ylim=(0, 1.25 * total), xlabel="hours", ylabel="workers")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", frameon=False, ncols=5, fontsize=8)
    return figure


def distributions(made: Comparison) -> Figure:
    """Draw how many jobs have started, and how many have finished, within a time."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    lines = {"rigid": made.rigid_outcome.runs}
    if made.outcome is not None:
        lines["elastic"] = made.outcome.runs
    for name, runs in lines.items():
        part = [(i + 1) / len(runs) for i in range(len(runs))]
        for axes, values in (
            (left, sorted(run.completion for run in runs)),
            (right, sorted(run.wait for run in runs)),
        ):
            # A wait of nothing has no place on a logarithmic axis.
            shown = [max(value, 1.0) for value in values]
            axes.step(shown, part, where="post", color=_COLOURS[name], label=name)
    lengths = sorted(run.job.length for run in made.rigid_outcome.runs)
    part = [(i + 1) / len(lengths) for i in range(len(lengths))]
    left.step(lengths, part, where="post", color=_COLOURS["bound"], label="alone on the cluster")
    for axes, title in ((left, "completed within"), (right, "started within")):
        axes.set(xscale="log", ylim=(0, 1.02), xlabel="seconds", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return figure


def at(changes: list[tuple[float, int]], times: Sequence[float]) -> list[int]:
    """The level at each of the times, both in order."""
    found: list[int] = []
    i = level = 0
    for time in times:
        while i < len(changes) and changes[i][0] <= time:
            level = changes[i][1]
            i += 1
        found.append(level)
    return found


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
