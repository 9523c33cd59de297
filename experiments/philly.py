"""A week of Philly, 5,347 jobs of eleven queues, on 512 and on 384 GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.source import Source
from experiments.table import HEAD, bound_row, markdown, percent, row, verdict
from experiments.trial import Result, Scheduling, Trial, run_all
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    Mode,
    QueuePolicy,
    Rebalance,
    Shrink,
)
from volcano_elastic.simulator.config import SimulationConfig

WEEK = 7 * 86_400.0
TARGETS = {512: 9000.0, 384: 13_100.0}


def base(source: Source, total: int) -> Trial:
    queues = source.philly_queues(total)
    policies = tuple(QueuePolicy(queue.name, name=queue.name) for queue in queues)
    config = SimulationConfig(total // 8, 8, queues=queues, policies=policies)
    return Trial(
        "elastic, by queue",
        source.philly(total),
        config,
        window=WEEK if source.real else None,
    )


def section(source: Source, processes: int, pictures: Path | None = None) -> str:
    text = ""
    for total in source.philly_sizes():
        whole = base(source, total)
        pool = replace(whole.config, queues=(), policies=())
        elastic, one_pool, rigid, static = run_all(
            [
                replace(whole, compared=True),
                replace(whole, label="elastic, one pool", config=pool),
                replace(whole, label="rigid, shared, with backfill", scheduling=Scheduling.RIGID),
                replace(whole, label="rigid, static shares", scheduling=Scheduling.STATIC),
            ],
            processes,
        )
        rows = [row(result) for result in (elastic, one_pool, rigid, static)]
        text += f"\n**{total} GPUs**\n\n" + markdown(HEAD, [*rows, bound_row(elastic)])
        text += "\n" + _worse(elastic) + "\n" + _verdicts(elastic, total)
        hours, spare = _surplus_while_waiting(elastic)
        text += (
            f"\nSome job waited to start in {hours:,.1f} h; meanwhile all others together held "
            f"{spare:,.1f} GPUs beyond their minimums.\n"
        )
        if pictures is not None:
            # Takes a second or more, and most runs draw nothing.
            from volcano_elastic.cli.simulation_page import held

            figure = held(elastic.first)
            figure.savefig(pictures / f"philly-{total}.png", dpi=90)
            text += f"\n![GPUs held by queue, {total} GPUs](pictures/philly-{total}.png)\n"
    return text


def _surplus_while_waiting(result: Result) -> tuple[float, float]:
    """(hours in which some job waited to start, mean of the GPUs that others held beyond their
    minimums meanwhile)."""
    changes: list[tuple[float, int, int]] = []
    for run in result.first.runs:
        if run.wait > 0:
            changes += [(run.job.submit, 1, 0), (run.start, -1, 0)]
        for part in run.segments:
            surplus = part.size - run.job.min
            changes += [(part.begin, 0, surplus), (part.end, 0, -surplus)]
    hours = spare = now = 0.0
    waiting = surplus = 0
    for time, waits, more in sorted(changes):
        if waiting:
            hours += (time - now) / 3600
            spare += surplus * (time - now) / 3600
        now, waiting, surplus = time, waiting + waits, surplus + more
    return hours, spare / hours if hours else 0.0


def _worse(result: Result) -> str:
    lines = []
    for name, several in (
        ("shared, rigid scheduling", result.than_rigid),
        ("its static share", result.than_static),
    ):
        for worse in several:
            queues = ", ".join(f"{q} × {ratio:.2f}" for q, ratio in worse.queues.items())
            lines.append(
                f"Against {name}: {worse.start_later} of {worse.jobs} jobs start over 60 s later, "
                f"{percent(worse.finish_later / worse.jobs)} take over 5 % longer (worst "
                f"× {worse.worst:.2f}); queues worse off: {queues or 'none'}.\n"
            )
    return "\n".join(lines)


def _verdicts(result: Result, total: int) -> str:
    held_hours = total * (result.trial.window or result.found.makespan) / 3600
    [than_rigid], [than_static] = result.than_rigid, result.than_static
    lines = ""
    if total in TARGETS:
        lines += verdict("mean completion", result.found.mean_completion, TARGETS[total])
    return (
        lines
        + verdict("99th percentile of wait to start", result.found.p99_wait, 60)
        + verdict("queues worse than their static share", len(than_static.queues), 0, "")
        + verdict("jobs that start later than rigid", than_rigid.start_later, 0, "")
        + verdict(
            "idle while wanted", 100 * result.found.idle_while_wanted_hours / held_hours, 0.1, "%"
        )
    )


def ablation(source: Source, processes: int) -> str:
    """The rules between queues, which the Pollux set has only one of."""
    total = source.philly_sizes()[0]
    whole = base(source, total)

    def other(label: str, **changes: object) -> Trial:
        policies = tuple(
            replace(policy, **changes)  # type: ignore[arg-type]
            for policy in whole.config.policies
        )
        return replace(whole, label=label, config=replace(whole.config, policies=policies))

    results = run_all(
        [
            whole,
            other("no rebalancing (gap 0)", rebalance=Rebalance(gap=0)),
            other(
                "claims may only take what is borrowed",
                shrink=replace(Shrink(), for_other_queues=ForOtherQueues.BORROWED),
            ),
            other("no growth (mode Hold)", mode=Mode.HOLD),
            replace(whole, label="grow only, nobody gives back", scheduling=Scheduling.GROW_ONLY),
            replace(
                whole,
                label="max as asked for (no growth beyond)",
                workloads=source.philly(total, "min=ceil(gpus/4),max=gpus"),
            ),
            replace(
                whole,
                label="min g/2, max 2g",
                workloads=source.philly(total, "min=ceil(gpus/2),max=min(2*gpus,64)"),
            ),
            replace(whole, label="pause 120 s", config=replace(whole.config, pause=120.0)),
            replace(whole, label="rigid, shared, with backfill", scheduling=Scheduling.RIGID),
        ],
        processes,
    )
    first = results[0].found.mean_completion
    rows = [[*row(r), f"{100 * (r.found.mean_completion / first - 1):+.1f} %"] for r in results]
    return markdown([*HEAD, "mean completion against the first"], rows)
