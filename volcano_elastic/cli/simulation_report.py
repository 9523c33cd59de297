"""A simulation's figures as plain data, as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from volcano_elastic.simulator.comparison import Comparison, mean
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.simulator.worse_off import LATER_FINISH, LATER_START, WorseOff

_WORDS: Mapping[str, tuple[str, str]] = {
    "mean_completion": ("mean completion", "s"),
    "median_completion": ("median completion", "s"),
    "p99_completion": ("99th percentile of completion", "s"),
    "mean_wait": ("mean wait to start", "s"),
    "median_wait": ("median wait to start", "s"),
    "p99_wait": ("99th percentile of wait to start", "s"),
    "makespan": ("makespan", "s"),
    "useful_utilisation": ("useful utilisation", "%"),
    "allocated_utilisation": ("allocated utilisation", "%"),
    "idle_while_wanted_hours": ("idle while wanted", "h"),
    "standstill_hours": ("standstill at resizes", "h"),
    "resizes_per_job": ("resizes a job", ""),
}

_COLUMNS = [
    "workload",
    "job",
    "queue",
    "gpus",
    "min",
    "max",
    "submit_s",
    "start_s",
    "finish_s",
    "resizes",
    "rigid_start_s",
    "rigid_finish_s",
]


def report(
    workloads: Mapping[str, Sequence[TraceJob]],
    comparisons: Mapping[str, Comparison],
    config: SimulationConfig,
    elastic: str,
    seconds: float,
) -> dict[str, Any]:
    """Everything printed, as plain data."""
    columns = [
        column
        for column in ("elastic", "rigid", "static", "bound")
        if all(getattr(made, column) is not None for made in comparisons.values())
    ]
    jobs = sum(map(len, workloads.values()))
    result: dict[str, Any] = {
        "jobs": jobs,
        "workloads": len(workloads),
        "nodes": config.nodes,
        "gpus": config.total,
        "elastic": elastic if "elastic" in columns else None,
        "pauseSeconds": config.pause,
        "graceSeconds": config.grace,
        "curves": str(config.speeds),
        "seconds": round(seconds, 2),
        "figures": {
            column: asdict(mean(getattr(made, column) for made in comparisons.values()))
            for column in columns
        },
    }
    if len(comparisons) > 1:
        result["byWorkload"] = {
            name: {column: asdict(getattr(made, column)) for column in columns}
            for name, made in comparisons.items()
        }
    if "elastic" in columns:
        outcomes = [made.outcome for made in comparisons.values() if made.outcome is not None]
        result["plans"] = sum(outcome.plans for outcome in outcomes)
        reasons: dict[str, int] = {}
        for outcome in outcomes:
            for reason, times in outcome.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + times
        result["decisions"] = reasons
        result["worseOff"] = {
            than: _together([getattr(made, f"than_{than}") for made in comparisons.values()])
            for than in ("rigid", "static")
            if than in columns
        }
    return result


def _together(several: Sequence[WorseOff]) -> dict[str, Any]:
    return {
        "startLater": sum(one.start_later for one in several),
        "finishLater": sum(one.finish_later for one in several),
        "worstRatio": max(one.worst for one in several),
        "queues": {queue: ratio for one in several for queue, ratio in one.queues.items()},
    }


def show(console: Console, result: Mapping[str, Any]) -> None:
    of = f" of {result['workloads']} workloads (means)" if result["workloads"] > 1 else ""
    title = (
        f"{result['jobs']} jobs{of} on {result['gpus']} GPUs, pause {result['pauseSeconds']:g} s"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("")
    names = {"rigid": "rigid + backfill", "static": "static shares", "bound": "bound"}
    for column in result["figures"]:
        table.add_column(names.get(column, column), justify="right")
    for field, (words, unit) in _WORDS.items():
        cells = [spelt(figures[field], unit) for figures in result["figures"].values()]
        table.add_row(f"{words}, {unit}" if unit in ("s", "h") else words, *cells)
    console.print(table)
    for than, worse in result.get("worseOff", {}).items():
        queues = ", ".join(f"{queue} x{ratio:.2f}" for queue, ratio in worse["queues"].items())
        console.print(
            f"than {names[than]}: {worse['startLater']} jobs start over {LATER_START:g} s later, "
            f"{worse['finishLater']} take over {LATER_FINISH:g} times as long (worst "
            f"x{worse['worstRatio']:.2f}); queues worse off: {queues or 'none'}",
            soft_wrap=True,
        )
    if "plans" in result:
        decisions = ", ".join(f"{n} {reason}" for reason, n in result["decisions"].items())
        console.print(
            f"{result['plans']} plans in {result['seconds']:.1f} s; {decisions}", soft_wrap=True
        )


def spelt(value: float | None, unit: str) -> str:
    """A figure as people read it; `-` where there is none."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "s":
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def rows(result: Mapping[str, Any]) -> list[list[str]]:
    head = ["", *result["figures"]]
    return [head] + [
        [f"{words}, {unit}" if unit in ("s", "h") else words]
        + [spelt(figures[field], unit) for figures in result["figures"].values()]
        for field, (words, unit) in _WORDS.items()
    ]


def jobs_csv(comparisons: Mapping[str, Comparison]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for name, made in comparisons.items():
        for run, rigid in zip(
            (made.outcome or made.rigid_outcome).runs, made.rigid_outcome.runs, strict=True
        ):
            job = run.job
            writer.writerow(
                [name, job.name, job.queue, job.gpus, job.min, job.max, job.submit]
                + [round(t, 1) for t in (run.start, run.finish)]
                + [run.resizes]
                + [round(t, 1) for t in (rigid.start, rigid.finish)]
            )
    return text.getvalue()
