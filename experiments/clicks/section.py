"""E7, asynchronous: DeepFM on parameter servers while their number and that of workers changes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from experiments.clicks.run import EXAMPLE, Outcome, Plan, arrows, run
from experiments.kept_runs import KeptRuns, tuples
from experiments.source import Source
from experiments.table import markdown, verdict

SEEDS = 3
GAP = 0.0005
"""Mean gap of ElasticDL's published curves, by their raw data."""
RUNS = Path("build/experiments/clicks")
PLANS = (
    Plan((2,), (2,)),
    Plan((2,), (2,), remark=", again"),
    Plan((1,), (2,)),
    Plan((4,), (2,)),
    Plan((8,), (2,)),
    Plan((2,), (2, 4, 3)),
    Plan((2, 4, 2), (2, 4, 3)),
)
"""The first one is that with which all others are compared."""


def section(source: Source) -> str:
    torch.set_num_threads(1)
    plans, seeds = PLANS, SEEDS
    if not source.real:
        plans = tuple(replace(one, samples=7_680, held_out=2_000, points=3) for one in PLANS)
        seeds = 2
    data = EXAMPLE.generate(plans[0].samples + plans[0].held_out)
    runs: KeptRuns[Plan, Outcome] = KeptRuns(
        RUNS, lambda told: Outcome(**{k: tuples(v) for k, v in told.items()})
    )
    found = [
        (one, runs.once(one, lambda of: run(of, *data)))
        for seed in range(seeds)
        for plan in plans
        for one in [replace(plan, seed=seed)]
    ]
    return report(found)


def settled(plan: Plan, curve: Sequence[float]) -> Sequence[float]:
    """The part of a curve that lies behind the rise of the learning rate."""
    return curve[plan.warm_up // plan.every :]


def gap(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean distance of two curves at the same numbers of samples."""
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def mean(found: Sequence[Outcome]) -> tuple[float, ...]:
    """The mean curve."""
    return tuple(map(statistics.fmean, zip(*(one.curve for one in found), strict=True)))


def noise(one: Outcome, other: Outcome) -> float:
    """Standard error of the difference of the last AUCs that comes of who is held out."""
    apart = [a - b for a, b in zip(one.parts, other.parts, strict=True)]
    return statistics.stdev(apart) / len(apart) ** 0.5


def report(found: Sequence[tuple[Plan, Outcome]]) -> str:
    """Compare each plan with the first, seed by seed and by the curves' means."""
    by_plan: dict[Plan, list[Outcome]] = {}
    for plan, outcome in found:
        by_plan.setdefault(replace(plan, seed=0), []).append(outcome)
    return "\n".join(_lines(by_plan))


def _settled_gap(plan: Plan, pairs: Sequence[tuple[Outcome, Outcome]]) -> float:
    return statistics.fmean(
        gap(settled(plan, one.curve), settled(plan, other.curve)) for one, other in pairs
    )


def _lines(by_plan: Mapping[Plan, Sequence[Outcome]]) -> Iterator[str]:
    (reference, first), *others = by_plan.items()
    spread = statistics.stdev(one.auc for one in first)
    rows = []
    for plan, several in by_plan.items():
        pairs = list(zip(several, first, strict=True))
        rows.append(
            [
                arrows(plan.workers) + plan.remark,
                arrows(plan.servers),
                f"{statistics.fmean(one.auc for one in several):.5f}",
                f"{statistics.fmean(one.auc - other.auc for one, other in pairs):+.5f}",
                f"{statistics.fmean(gap(one.curve, other.curve) for one, other in pairs):.5f}",
                f"{gap(mean(several), mean(first)):.5f}",
                f"{_settled_gap(plan, pairs):.5f}",
                f"{sum(one.wrong for one in several)}",
                f"{sum(one.twice for one in several)}",
            ]
        )
    head = ["workers", "servers", "AUC", "to the first", "mean gap, seed by seed"]
    head += [
        "of the means over seeds",
        "after the warm-up, seed by seed",
        "samples lost or repeated",
        "pushed twice",
    ]
    yield markdown(head, rows)
    least = min(statistics.fmean(one.auc for one in several) for several in by_plan.values())
    most = max(statistics.fmean(one.auc for one in several) for several in by_plan.values())
    what = "last AUCs of all of them lie within, the spread of seeds (standard deviation) asked"
    yield verdict(what, most - least, spread, "").rstrip()
    for plan, several in others:
        pairs = zip(several, first, strict=True)
        apart = statistics.fmean(gap(one.curve, other.curve) for one, other in pairs)
        yield verdict(f"mean gap of {plan.label}", apart, GAP, "").rstrip()
    errors = [noise(a, b) for _, several in others for a, b in zip(several, first, strict=True)]
    yield (
        f"- noise of a difference of two last AUCs, of which {reference.held_out:,} impressions "
        f"are held out (standard error over ten parts): {statistics.fmean(errors):.2g}"
    )
    minutes = sum(one.seconds for several in by_plan.values() for one in several) / 60
    number = sum(map(len, by_plan.values()))
    yield (
        f"- {number} runs of {reference.samples:,} samples, {minutes:.0f} minutes in all, kept in "
        f"{RUNS}\n"
    )
