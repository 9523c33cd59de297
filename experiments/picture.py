"""Draws sections' pictures. Importing it takes a second; most runs draw nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from volcano_elastic.cli.simulation_page import at, pyplot
from volcano_elastic.simulator.figures import held_over_time
from volcano_elastic.simulator.outcome import Run

OURS, OTHERS, BOUND = "#4269d0", "#9aa0a6", "#3ca951"
SECOND = "#ff725c"
THIRD = "#a463f2"


def save(figure: Figure, folder: Path, name: str, words: str) -> str:
    """Write it, and say where it is in the document's words."""
    figure.savefig(folder / f"{name}.png", dpi=90)
    pyplot.close(figure)
    return f"\n![{words}](pictures/{name}.png)\n"


def bands(
    axes: Axes, runs: Mapping[str, Sequence[Run]], end: float, total: int, unit: float
) -> None:
    """Draw what each holds over time, one upon the other, up to `end` seconds, below the line of
    what there is.

    Args:
        unit: seconds that the axis counts as one.
    """
    times = [end * i / 1440 for i in range(1441)]
    axes.stackplot(
        [time / unit for time in times],
        [at(held_over_time(some), times) for some in runs.values()],
        labels=list(runs),
        colors=[OURS, SECOND],
        step="post",
        alpha=0.85,
        linewidth=0,
    )
    axes.axhline(total, color="#555555", linewidth=1, linestyle="--")
    axes.set(xlim=(0, end / unit), ylim=(0, 1.05 * total))
    axes.spines[["top", "right"]].set_visible(False)


def two_jobs(cases: Mapping[str, Sequence[Run]], total: int) -> Figure:
    """Draw what the older and the newer job hold in each case."""
    end = max(run.finish for runs in cases.values() for run in runs)
    figure, several = pyplot.subplots(
        len(cases), figsize=(10, 1.7 * len(cases)), sharex=True, layout="constrained"
    )
    for axes, (title, (older, newer)) in zip(several, cases.items(), strict=True):
        bands(axes, {"older": [older], "newer": [newer]}, end, total, 1.0)
        finish = max(older.finish, newer.finish)
        axes.set_title(f"{title}: all done after {finish:,.0f} s", fontsize=10, loc="left")
        axes.set(ylabel="CPUs", xlim=(0, 1.02 * end))
    several[0].legend(loc="upper right", frameon=False, fontsize=8)
    several[-1].set(xlabel="seconds")
    return figure


def day(service: Sequence[Run], training: Run, end: float, total: int) -> Figure:
    """A service's pods, and the elastic job that takes the rest, up to `end` seconds."""
    figure, axes = pyplot.subplots(figsize=(10, 3.2), layout="constrained")
    bands(axes, {"service": service, "elastic job": [training]}, end, total, 3600.0)
    axes.set(xlabel="hours", ylabel="GPUs", ylim=(0, 1.25 * total))
    axes.legend(loc="upper right", frameon=False, fontsize=8, ncols=2)
    return figure


def completions(ours: Mapping[str, float], others: Mapping[str, float], bound: float) -> Figure:
    """Mean completion in seconds, the shortest on top, beside what no scheduling can beat."""
    colours = dict.fromkeys(ours, OURS) | dict.fromkeys(others, OTHERS)
    listed = sorted({**ours, **others}.items(), key=lambda pair: -pair[1])
    figure, axes = pyplot.subplots(figsize=(10, 0.34 * len(listed) + 0.9), layout="constrained")
    bars = axes.barh(
        [name for name, _ in listed],
        [value for _, value in listed],
        color=[colours[name] for name, _ in listed],
    )
    axes.bar_label(bars, [f"{value:,.0f}" for _, value in listed], padding=3, fontsize=8)
    axes.axvline(bound, color=BOUND, linewidth=1.5)
    axes.text(bound, len(listed) - 0.4, " bound", color=BOUND, fontsize=8, va="bottom")
    axes.set(xlabel="mean completion, s", ylim=(-0.6, len(listed) + 0.1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def year(found: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> Figure:
    """Draw by week the share of memory that was asked for and not needed, and how many jobs had
    run out of memory until then, under each way."""
    figure, (above, below) = pyplot.subplots(
        2, figsize=(10, 4.6), sharex=True, layout="constrained"
    )
    for (name, (slack, hit)), colour in zip(
        found.items(), (OTHERS, SECOND, OURS, THIRD, BOUND), strict=True
    ):
        weeks = range(1, len(slack) + 1)
        above.plot(weeks, [100 * one for one in slack], color=colour, label=name)
        below.plot(weeks, hit, color=colour)
    above.set(ylabel="memory slack, %", ylim=(0, 100))
    below.set(xlabel="weeks", ylabel="jobs out of memory")
    above.legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
