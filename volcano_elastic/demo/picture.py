"""The picture: GPUs by job over time."""

from __future__ import annotations

from pathlib import Path

from volcano_elastic.demo.timeline import Timeline, steps

_COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c")


def draw(timeline: Timeline, *, gpus: int, end: float, path: Path) -> None:
    """Writes a PNG: one band a job, its height the GPUs its running pods hold."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times = sorted(
        {0.0, end} | {t for pods in [timeline.pods.values()] for t, _ in steps(pods) if t <= end}
    )
    figure, axes = pyplot.subplots(figsize=(10, 4.2), layout="constrained")
    jobs = sorted(timeline.submitted, key=lambda job: timeline.submitted[job])
    bands = []
    for job in jobs:
        sizes = steps(timeline.of(job))
        bands.append([next((n for t, n in reversed(sizes) if t <= time), 0) for time in times])
    axes.stackplot(
        times, bands, labels=[f"job {job}" for job in jobs], colors=_COLOURS, step="post", alpha=0.9
    )
    axes.axhline(gpus, color="#555555", linewidth=1, linestyle="--")
    axes.text(
        end, gpus + 0.08, f"{gpus} GPUs", ha="right", va="bottom", fontsize=8, color="#555555"
    )
    for height, (time, text) in enumerate(timeline.marks):
        axes.axvline(time, color="#333333", linewidth=0.8, linestyle=":")
        y = gpus + 0.25 + 0.28 * (height % 3)
        axes.text(time, y, f" {text}", fontsize=7.5, va="bottom")
    axes.set(
        xlim=(0, end),
        ylim=(0, gpus + 1.25),
        xlabel="seconds",
        ylabel="GPUs held by running pods",
        title="Two elastic jobs share one queue",
    )
    axes.set_yticks(range(gpus + 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
