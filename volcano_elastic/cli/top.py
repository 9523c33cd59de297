"""`volcano-elastic top`."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.cli.observation import (
    ask,
    json_option,
    kubeconfig_option,
    observation,
    observe,
    plugin_option,
    print_json,
)
from volcano_elastic.cli.plan import console, queues_json
from volcano_elastic.cli.workers_at_work import Workers, workers
from volcano_elastic.cluster_state.job_state import cooldown_left
from volcano_elastic.cluster_state.reason import WORDS
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Job

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.snapshot.codec import Observation

_SHARE_OF_TIME = 0.2
"""The most of its time that it keeps the API server busy."""


@click.command()
@kubeconfig_option
@plugin_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks; longer by itself where a look takes long.",
)
@click.option("--once", is_flag=True, help="One look, as when the output is no terminal.")
@json_option
def top(
    kubeconfig: str | None, plugin: str | None, interval: float, once: bool, as_json: bool
) -> None:
    """Queues and jobs: sizes, speeds, cooldowns, what was decided last and what comes next.

    Ctrl-C ends it. Exits 0, or 2 if the cluster could not be read.

    \b
    JSON (one look): time; queues as in plan;
    jobs [{job, queue, min, max, size, running, halted {why: workers that are started and don't
    run}, samplesPerSecond, cooldownSeconds, lastChange, lastReason, next}]. next is what the
    planner would do now: a size, or a reason.

    \b
    Examples:
      volcano-elastic top
      volcano-elastic top --once
      volcano-elastic top --json | jq '.jobs[] | select(.size > .min)'
    """
    if as_json:
        observed = observation(kubeconfig, plugin)
        print_json(top_json(observed, plan(observed.snapshot, observed.time)))
        return
    screen = console()
    if once or not screen.is_terminal:
        screen.print(view(observation(kubeconfig, plugin)))
        return
    try:
        ask(kubeconfig, partial(_follow, screen, interval, plugin), seconds=None)
    except KeyboardInterrupt:
        click.echo()


async def _follow(screen: Console, interval: float, plugin: str | None, client: Client) -> None:
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            live.update(view(await observe(client, plugin=plugin)), refresh=True)
            took = time.monotonic() - began
            await asyncio.sleep(max(interval - took, took / _SHARE_OF_TIME))


def view(observed: Observation) -> Group:
    """The whole screen."""
    made = plan(observed.snapshot, observed.time)
    header = Text(f"{observed.time.astimezone():%H:%M:%S}", style="dim")
    problems = [
        Text(f"queue {name}: {figures.problem}", style="yellow")
        for name, figures in sorted(made.queues.items())
        if figures.problem
    ]
    return Group(header, _queues(made), *problems, Text(), _jobs(observed, made))


def _queues(made: Plan) -> Table:
    table = _table("QUEUE", "FREE", "MINIMUMS", "SURPLUS", "BORROWED", "OWED", "JOBS", "OF")
    for row in queues_json(made):
        owed = row["owedToMinimums"]
        table.add_row(
            row["queue"],
            row["free"],
            row["guaranteed"],
            row["surplus"],
            row["borrowed"],
            owed if owed == "0" else f"[red]{owed}",
            str(row["jobs"]),
            f"[dim]{row['resource']}",
        )
    return table


def _jobs(observed: Observation, made: Plan) -> Table:
    table = _table("JOB", "QUEUE", "SIZE", "MIN", "MAX", "SPEED", "COOLDOWN", "LAST CHANGE", "NEXT")
    for row, job in zip(top_json(observed, made)["jobs"], _ordered(observed), strict=True):
        size = f"{row['running']}/{row['size']}"
        halted = Workers(0, row["halted"]).words
        table.add_row(
            row["job"],
            row["queue"],
            (f"[green]{size}[/]" if row["size"] > row["min"] else size)
            + (f" [red]{escape(halted)}[/]" if halted else ""),
            str(row["min"]),
            str(row["max"]),
            "" if row["samplesPerSecond"] is None else f"{row['samplesPerSecond']:.4g}/s",
            f"{row['cooldownSeconds']:.0f} s" if row["cooldownSeconds"] else "",
            last_change(job, observed.time),
            escape(_next(job, made)),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    right = {"FREE", "MINIMUMS", "SURPLUS", "BORROWED", "OWED", "JOBS", "MIN", "MAX"}
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _ordered(observed: Observation) -> list[Job]:
    return sorted(observed.snapshot.jobs, key=lambda job: (job.queue, job.key))


def top_json(observed: Observation, made: Plan) -> dict[str, Any]:
    """The documented form of `top --json`."""
    from volcano_elastic.api import moment

    at_work = workers(observed.snapshot)
    sizes = {decision.job: decision.new for decision in made.decisions}
    policies = effective(observed.snapshot.policies)
    return {
        "time": moment.micro_timestamp(observed.time),
        "queues": queues_json(made),
        "jobs": [
            {
                "job": job.key,
                "queue": job.queue,
                "min": job.min,
                "max": job.max,
                "size": job.desired,
                "running": at_work.get(job.key, Workers()).running,
                "halted": dict(at_work.get(job.key, Workers()).halted),
                "samplesPerSecond": job.speeds.get(job.desired),
                "cooldownSeconds": cooldown_left(
                    job,
                    policies.get(job.queue) or QueuePolicy(job.queue),
                    observed.time,
                    made.resting.get(job.key),
                ).total_seconds(),
                "lastChange": job.last_scale and moment.micro_timestamp(job.last_scale),
                "lastReason": job.last_reason,
                "next": sizes.get(job.key) or _why(job, made),
            }
            for job in _ordered(observed)
        ],
    }


def last_change(job: Job, now: datetime) -> str:
    """`GrewIntoIdle 3 min ago`, or nothing."""
    if job.last_scale is None:
        return ""
    ago = int((now - job.last_scale).total_seconds())
    return f"{job.last_reason or 'changed'} {_span(ago)} ago"


def _span(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _why(job: Job, made: Plan) -> str:
    """A code: why its size stays."""
    if job.key in made.blocked:
        return "Blocked"
    stay = made.unchanged.get(job.key)
    return "Rigid" if stay is None else str(stay.why_not_more)


def _next(job: Job, made: Plan) -> str:
    for decision in made.decisions:
        if decision.job == job.key:
            dry = " (dry run: not carried out)" if decision.dry_run else ""
            return f"→ {decision.new}: {decision.message}{dry}"
    if job.key in made.blocked:
        return f"cannot start: {made.blocked[job.key]}"
    stay = made.unchanged.get(job.key)
    return "" if stay is None else WORDS[stay.why_not_more]
