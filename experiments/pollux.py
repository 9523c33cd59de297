"""Pollux's eight workloads on 64 GPUs: beside published results, step by step, and how much hangs
on pauses, cooldowns, minimums and curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from experiments.source import Source
from experiments.table import HEAD, bound_row, markdown, row, verdict
from experiments.trial import Result, Scheduling, Trial, run_all
from volcano_elastic.api.queue_policy import (
    Grow,
    Mode,
    Order,
    QueuePolicy,
    Rebalance,
    Step,
    Surplus,
)
from volcano_elastic.simulator.config import SimulationConfig, Speeds

TARGETS = {30.0: 3260.0, 5.0: 3060.0}
"""Mean completion in seconds by pause."""
DEFAULT = QueuePolicy("default", name="default")

Rules = Callable[[QueuePolicy], QueuePolicy]
ABLATION: tuple[tuple[str, Rules], ...] = (
    ("no rebalancing (gap 0)", lambda p: replace(p, rebalance=Rebalance(gap=0))),
    ("no weight for the young", lambda p: _surplus(p, young_weight=1.0)),
    ("steps of any size", lambda p: _surplus(p, step=Step.ANY)),
    ("no least efficiency", lambda p: _surplus(p, min_efficiency=0.0)),
    ("order Equal", lambda p: _surplus(p, order=Order.EQUAL)),
    (
        "order Equal, no rebalancing, any step, no weight",
        lambda p: replace(
            _surplus(p, order=Order.EQUAL, step=Step.ANY, young_weight=1.0),
            rebalance=Rebalance(gap=0),
        ),
    ),
    ("no growth (mode Hold)", lambda p: replace(p, mode=Mode.HOLD)),
)


def _surplus(policy: QueuePolicy, **changes: object) -> QueuePolicy:
    surplus: Surplus = replace(policy.surplus, **changes)  # type: ignore[arg-type]
    return replace(policy, surplus=surplus)


def base(source: Source) -> Trial:
    nodes, per_node = source.pollux_nodes()
    config = SimulationConfig(nodes, per_node, policies=(DEFAULT,))
    return Trial("the whole policy", source.pollux(), config)


def section(source: Source, processes: int, pictures: Path | None = None) -> str:
    whole = base(source)
    thirty, five, redealt, fifo, rigid = run_all(
        [
            replace(whole, label="elastic, pause 30 s", compared=True),
            replace(whole, label="elastic, pause 5 s", config=replace(whole.config, pause=5.0)),
            replace(
                whole,
                label="all dealt anew each minute, pause 30 s",
                scheduling=Scheduling.REDEALT,
            ),
            replace(whole, label="rigid, in strict order", scheduling=Scheduling.FIFO),
            replace(whole, label="rigid, with backfill", scheduling=Scheduling.RIGID),
        ],
        processes,
    )
    rows = [row(result) for result in (thirty, five, redealt, rigid, fifo)] + [bound_row(thirty)]
    text = markdown(HEAD, rows)
    published = source.published()
    names = {
        "pollux": "Pollux (adapts batch sizes too)",
        "tiresias": "Tiresias",
        "optimus": "Optimus",
    }
    if published:
        text += "\nPublished for the same workloads: " + ", ".join(
            f"{names.get(policy, policy)} {value:,.0f} s" for policy, value in published.items()
        )
        text += " mean completion.\n\n" + _by_workload(thirty, rigid)
    text += "\n" + _verdicts(thirty, five)
    if pictures is not None:
        from experiments.picture import completions, save

        drawn = completions(
            {one.trial.label: one.found.mean_completion for one in (thirty, five)},
            {one.trial.label: one.found.mean_completion for one in (redealt, rigid, fifo)}
            | {f"{names.get(policy, policy)}, published": s for policy, s in published.items()},
            thirty.bound.mean_completion,
        )
        text += save(drawn, pictures, "pollux", "Mean completion, beside others' and the bound")
    return text


def _by_workload(elastic: Result, rigid: Result) -> str:
    rows = [
        [
            name,
            f"{found.mean_completion:,.0f}",
            f"{rigid.by_workload[name].mean_completion:,.0f}",
            f"{worse.start_later}",
            f"{worse.finish_later}",
            f"{worse.worst:.2f}",
        ]
        for (name, found), worse in zip(
            elastic.by_workload.items(), elastic.than_rigid, strict=True
        )
    ]
    head = ["workload", "elastic, s", "rigid + backfill, s", "start > 60 s later than rigid"]
    return markdown([*head, "finish > 5 % later", "worst ratio"], rows)


def _verdicts(thirty: Result, five: Result) -> str:
    total = thirty.trial.config.total
    held = total * thirty.found.makespan / 3600
    return (
        verdict("mean completion, pause 30 s", thirty.found.mean_completion, TARGETS[30.0])
        + verdict("mean completion, pause 5 s", five.found.mean_completion, TARGETS[5.0])
        + verdict("idle while wanted", 100 * thirty.found.idle_while_wanted_hours / held, 2.0, "%")
    )


def ablation(source: Source, processes: int) -> str:
    """Compare the planner with itself less one step at a time."""
    whole = base(source)
    trials = [whole]
    for label, rules in ABLATION:
        config = replace(whole.config, policies=(rules(DEFAULT),))
        trials.append(replace(whole, label=label, config=config))
    trials.append(
        replace(whole, label="grow only, nobody gives back", scheduling=Scheduling.GROW_ONLY)
    )
    trials.append(replace(whole, label="rigid, with backfill", scheduling=Scheduling.RIGID))
    return _against_first(run_all(trials, processes))


def sensitivity(source: Source, processes: int) -> str:
    """Vary the choices of users and admins, one at a time."""
    whole = base(source)
    trials = [whole]
    for pause in (0.0, 5.0, 60.0, 120.0):
        config = replace(whole.config, pause=pause)
        trials.append(replace(whole, label=f"pause {pause:g} s", config=config))
    for cooldown in (0, 30, 120, 300, 600):
        time = timedelta(seconds=cooldown)
        policy = replace(
            DEFAULT,
            grow=replace(Grow(), cooldown=time),
            rebalance=replace(Rebalance(), cooldown=time),
        )
        config = replace(whole.config, policies=(policy,))
        trials.append(replace(whole, label=f"cooldowns {cooldown} s", config=config))
    for gap in (1.2, 2.0, 3.0):
        policy = replace(DEFAULT, rebalance=replace(Rebalance(), gap=gap))
        config = replace(whole.config, policies=(policy,))
        trials.append(replace(whole, label=f"rebalance.gap {gap:g}", config=config))
    for speeds, label in (
        (Speeds.LEARNT, "curves learnt as jobs run"),
        (Speeds.NONE, "curves unknown: the prior"),
    ):
        config = replace(whole.config, speeds=speeds)
        trials.append(replace(whole, label=label, config=config))
    for least in ("ceil(gpus/4)", "ceil(gpus/2)", "gpus"):
        elastic = f"min={least},max=max({least},efficient(0.5))"
        label = f"min {least}"
        trials.append(replace(whole, label=label, workloads=source.pollux(elastic)))
    trials.append(
        replace(
            whole,
            label="max as asked for (no growth beyond)",
            workloads=source.pollux("min=1,max=gpus"),
        )
    )
    return _against_first(run_all(trials, processes))


def _against_first(results: list[Result]) -> str:
    base_line = results[0].found.mean_completion
    rows = [
        [*row(result), f"{100 * (result.found.mean_completion / base_line - 1):+.1f} %"]
        for result in results
    ]
    return markdown([*HEAD, "mean completion against the first"], rows)
