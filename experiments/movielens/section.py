"""E7: wide & deep while the number of workers changes, beside fixed ones."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.kept_runs import KeptRuns
from experiments.movielens.ratings import Features, generate, read, split
from experiments.movielens.run import Mode, Outcome, Plan, run
from experiments.source import Source
from experiments.table import markdown, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 5
TARGET = 0.0005
"""Mean gap of ElasticDL's published curves, by their raw data."""
RISES = 5
"""One of so many parts of a leased training: in its course the learning rate rises."""
RUNS = Path("build/experiments/movielens")
Run = Callable[[Plan], Outcome]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same training by few workers, by many, and by numbers that change between the two."""

    plan: Plan
    """The elastic one's."""
    few: Outcome
    many: Outcome
    elastic: Outcome
    again: Outcome | None = None
    """By few workers once more, where two runs of the same plan differ."""


def section(source: Source, pictures: Path | None = None) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if source.real:
            ratings = source.ratings()
            plan = Plan(ratings, Mode.IN_STEP, (2, 4, 2, 4, 2), epochs=5, batch=1024, every=5000)
        else:
            ratings = folder / "ratings"
            generate(ratings, 4000)
            plan = Plan(ratings, Mode.IN_STEP, (1, 2, 1), epochs=2, batch=64, every=800)
        features = read(ratings)
        runs = KeptRuns(RUNS if source.real else folder / "runs", Outcome.read)
        plans = [
            plan_of(plan, mode, seed, len(split(features)[0]))
            for seed in range(SEEDS if source.real else 2)
            for mode in Mode
        ]
        found = [
            compare(one, lambda of: runs.once(of, lambda of: outcome(of, features, folder)))
            for one in [*plans, replace(plan, double=True)]
        ]
    text = report(found)
    if pictures is not None:
        picture(found).savefig(pictures / "movielens.png", dpi=90)
        text += "\n![AUC over samples, and its gap](pictures/movielens.png)\n"
    return text


def plan_of(plan: Plan, mode: Mode, seed: int, samples: int) -> Plan:
    """Return the same training by another mode and seed. A leased gradient is of as many samples as
    one of the most workers has of a step in step.

    Args:
        samples: of an epoch.
    """
    if mode is Mode.IN_STEP:
        return replace(plan, mode=mode, seed=seed)
    batch, warm_up = plan.batch // max(plan.worlds), samples * plan.epochs // RISES
    return replace(plan, mode=mode, seed=seed, batch=batch, warm_up=warm_up)


def outcome(plan: Plan, features: Features, folder: Path) -> Outcome:
    """Run it in a new folder within `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as into:
        found = run(plan, features, Path(into))
    print(f"{plan.label}: AUC {found.auc:.6f}, {found.seconds:.0f} s", file=sys.stderr, flush=True)
    return found


def compare(plan: Plan, run: Run) -> Comparison:
    few = replace(plan, worlds=(min(plan.worlds),))
    again = replace(few, remark=", again")
    return Comparison(
        plan,
        run(few),
        run(replace(plan, worlds=(max(plan.worlds),))),
        run(plan),
        run(again) if plan.mode is Mode.LEASED else None,
    )


def gap(one: Outcome, other: Outcome) -> float:
    """Mean distance of two curves of one training: the same points, in number of samples."""
    return statistics.fmean(
        abs(a - b) for (_, a), (_, b) in zip(one.curve, other.curve, strict=True)
    )


def report(found: Sequence[Comparison]) -> str:
    lines = [part for mode in Mode for part in _of_mode(mode, found)]
    runs = [run for one in found for run in (one.few, *_others(one)) if run is not None]
    minutes = sum(run.seconds for run in runs) / 60
    return "\n".join([*lines, f"{len(runs)} runs, {minutes:.0f} minutes in all, kept in {RUNS}\n"])


def _of_mode(mode: Mode, found: Sequence[Comparison]) -> Iterator[str]:
    several = [one for one in found if one.plan.mode is mode and not one.plan.double]
    exact = [one for one in found if one.plan.mode is mode and one.plan.double]
    first = several[0].plan
    few, many = min(first.worlds), max(first.worlds)
    yield f"**{mode}**\n"
    rows = [
        [
            f"{one.plan.seed}{' (float64)' if one.plan.double else ''}",
            *(f"{outcome.auc:.6f}" for outcome in (one.few, one.many, one.elastic)),
            *("–" if other is None else f"{gap(other, one.few):.2g}" for other in _others(one)),
            f"{len(one.elastic.pauses)}",
            f"{sum(one.elastic.pauses):.2f}",
        ]
        for one in [*several, *exact]
    ]
    head = ["seed", f"AUC, {few} workers", f"{many} workers", "→".join(map(str, first.worlds))]
    head += [f"mean gap to {few}", f"of {many} to {few}", f"of {few} again", "changes", "pauses, s"]
    yield markdown(head, rows)
    mean = statistics.fmean(gap(one.elastic, one.few) for one in several)
    spread = statistics.stdev(one.few.auc for one in several)
    ends = statistics.fmean(one.elastic.auc - one.few.auc for one in several)
    yield verdict("mean gap over curves and seeds", mean, TARGET, "").rstrip()
    what = "the same, against the spread of seeds (standard deviation)"
    yield verdict(what, mean, spread, "").rstrip()
    yield f"- mean difference of the last AUC: {ends:+.2g}"
    again = [gap(one.again, one.few) for one in several if one.again is not None]
    if again:
        yield f"- mean gap of {few} workers again: {statistics.fmean(again):.2g}"
    audits = [outcome.audit for one in several for outcome in (one.few, *_others(one)) if outcome]
    wrong = sum(audit.lost + audit.repeated + audit.unexpected for audit in audits)
    seen = sum(audit.seen for audit in audits)
    yield f"- samples audited: {seen:,} in {len(audits)} runs; lost or repeated: {wrong}\n"


def _others(one: Comparison) -> tuple[Outcome | None, ...]:
    return one.elastic, one.many, one.again


def picture(found: Sequence[Comparison]) -> Figure:
    """Above the curves, below what the elastic ones are off; shaded where many took part."""
    from matplotlib import pyplot  # takes a second, and most runs draw nothing

    figure, axes = pyplot.subplots(
        2, 2, figsize=(10, 5.4), sharex=True, sharey="row", layout="constrained"
    )
    for mode, (above, below) in zip(Mode, axes.T, strict=True):
        several = [one for one in found if one.plan.mode is mode and not one.plan.double]
        for one in several:
            samples = [at / 1000 for at, _ in one.few.curve]
            above.plot(samples, [a for _, a in one.few.curve], color="#222222", linewidth=0.8)
            above.plot(samples, [a for _, a in one.elastic.curve], "--", linewidth=1.2)
            pairs = zip(one.elastic.curve, one.few.curve, strict=True)
            below.plot(samples, [a - b for (_, a), (_, b) in pairs], linewidth=0.9)
        first = several[0]
        bounds = [*first.elastic.worlds, (first.elastic.curve[-1][0], 0)]
        for (begin, world), (end, _) in pairwise(bounds):
            if world == max(first.plan.worlds):
                for one_axes in (above, below):
                    one_axes.axvspan(begin / 1000, end / 1000, color="#dddddd", linewidth=0)
        for level in (-TARGET, TARGET):
            below.axhline(level, color="#aa3333", linewidth=0.7, linestyle=":")
        above.set_title(f"{mode}: {'→'.join(map(str, first.plan.worlds))} workers")
        below.set_xlabel("thousand samples")
        for one_axes in (above, below):
            one_axes.spines[["top", "right"]].set_visible(False)
    low = min(auc for one in found for _, auc in one.few.curve[1:])
    high = max(auc for one in found for _, auc in one.elastic.curve)
    axes[0, 0].set_ylim(low, high + (high - low) / 10)
    axes[1, 0].set_ylim(-4 * TARGET, 4 * TARGET)  # the first points, on the steep part, lie outside
    axes[0, 0].set_ylabel("AUC (black: fixed)")
    axes[1, 0].set_ylabel("AUC, elastic − fixed")
    return figure
