"""`volcano-elastic plan`, and `replay` for a folder of snapshots."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from volcano_elastic.cli.observation import (
    FOUND,
    Trouble,
    json_option,
    kubeconfig_option,
    observation,
    plugin_option,
    print_json,
    saved,
    snapshot_option,
)

if TYPE_CHECKING:
    from volcano_elastic.queue_policy.decision import Decision, Plan
    from volcano_elastic.snapshot.codec import Observation

_PIPE_COLUMNS = 160


@click.command()
@kubeconfig_option
@plugin_option
@snapshot_option
@click.option(
    "--what-if",
    "what_if",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Plan as if this YAML file's PyTorchJobs, Queues, QueuePolicies, Nodes and "
    "PriorityClasses were added or changed. A suspended job leaves with its pods.",
)
@json_option
def plan(
    kubeconfig: str | None,
    plugin: str | None,
    file: Path | None,
    what_if: Path | None,
    as_json: bool,
) -> None:
    """Show the planner's decisions as of now, with reasons; nothing is changed.

    The next plan only: pods that leave first have to go before others come. What the running
    operator remembers of its last plans (claims set aside, surplus that found no place) is not
    in it.

    Exits 0; 1 if some minimum cannot start even if all surplus left; 2 if there is no plan.

    \b
    JSON: time; decisions [{job, from, to, reason, message, pods, protect, dryRun}];
    unchanged [{job, whyNotMore, whyNotLess}]; blocked [{job, message}];
    blockedPods [{pod, message}], pods outside jobs and gangs;
    queues [{queue, resource, free, guaranteed, surplus, borrowed, owedToMinimums, jobs,
    problem}]; starts, the keys of FILE's new jobs that have room, or will when pods have left.
    pods are those that leave; amounts are Kubernetes quantities; problem is a sentence about the
    Queue's parents, or null.

    \b
    Examples:
      volcano-elastic plan
      volcano-elastic plan --what-if job.yaml
      volcano-elastic plan --snapshot yesterday.json --what-if policy.yaml
      volcano-elastic plan --json | jq '.decisions[].reason'
    """
    from volcano_elastic.queue_policy.plan import plan as make

    observed = observation(kubeconfig, plugin, file)
    known = {job.key for job in observed.snapshot.jobs}
    if what_if is not None:
        from volcano_elastic.cli.manifest_changes import apply

        after = apply(what_if, observed, lambda line: click.echo(f"Warning: {line}", err=True))
        observed = replace(observed, snapshot=after)
    made = make(observed.snapshot, observed.time)
    new = {job.key: job.desired for job in observed.snapshot.jobs if job.key not in known}
    starts = {key: size for key, size in sorted(new.items()) if key not in made.blocked}
    if as_json:
        print_json({**plan_json(observed, made), "starts": list(starts)})
    else:
        _show(made, starts)
    sys.exit(FOUND if made.blocked else 0)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def replay(folder: Path, as_json: bool) -> None:
    """Plans each snapshot (*.json) of a folder anew, in the order of their times.

    To see what another version would have decided, or when a decision came about. Each plan is of
    its own snapshot: decisions of earlier ones are not carried into later ones.

    Exits 0, or 2 if a file is no snapshot. With --json one document a line, as `plan --json`
    writes it, with the file's name as `file`.

    \b
    Example:
      while sleep 60; do volcano-elastic snapshot > day/$(date +%s).json; done
      volcano-elastic replay day
    """
    import json

    from volcano_elastic.queue_policy.plan import plan as make

    files = sorted(folder.glob("*.json"))
    if not files:
        raise Trouble(f"{folder}: expected a folder with files of `volcano-elastic snapshot`")
    taken = sorted(((saved(file), file) for file in files), key=lambda pair: pair[0].time)
    table = _table("TIME", "JOB", "SIZE", "REASON", "WHY")
    for observed, file in taken:
        made = make(observed.snapshot, observed.time)
        if as_json:
            click.echo(json.dumps({"file": file.name, **plan_json(observed, made)}))
        time = observed.time.isoformat(timespec="seconds")
        for decision in made.decisions:
            table.add_row(time, *_row(decision))
        for job, why in sorted(made.blocked.items()):
            table.add_row(time, job, "", "[red]Blocked", escape(why))
        for pod, why in sorted(made.blocked_pods.items()):
            table.add_row(time, f"pod {pod}", "", "[yellow]Blocked", escape(why))
        if not (made.decisions or made.blocked or made.blocked_pods):
            table.add_row(time, "", "", "", "[dim]no change")
    if not as_json:
        console().print(table)


def plan_json(observed: Observation, made: Plan) -> dict[str, Any]:
    """The documented form of `plan --json`."""
    from volcano_elastic.api import moment

    return {
        "time": moment.micro_timestamp(observed.time),
        "decisions": [decision_json(decision) for decision in made.decisions],
        "unchanged": [
            {"job": job, "whyNotMore": str(stay.why_not_more), "whyNotLess": str(stay.why_not_less)}
            for job, stay in sorted(made.unchanged.items())
        ],
        "blocked": [{"job": job, "message": why} for job, why in sorted(made.blocked.items())],
        "blockedPods": [
            {"pod": pod, "message": why} for pod, why in sorted(made.blocked_pods.items())
        ],
        "queues": queues_json(made),
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "job": decision.job,
        "from": decision.old,
        "to": decision.new,
        "reason": str(decision.reason),
        "message": decision.message,
        "pods": list(decision.remove),
        "protect": list(decision.protect),
        "dryRun": decision.dry_run,
    }


def queues_json(made: Plan) -> list[dict[str, Any]]:
    return [
        {
            "queue": name,
            "resource": figures.resource,
            **figures.shown(),
            "problem": figures.problem or None,
        }
        for name, figures in sorted(made.queues.items())
    ]


def console() -> Console:
    """Colour only on terminals, and nothing cut off in a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("TIME", "SIZE", "REASON"))
    return table


def _row(decision: Decision) -> tuple[str, str, str, str]:
    colour = "green" if decision.new > decision.old else "yellow"
    reason = f"{decision.reason}{' (dry run)' if decision.dry_run else ''}"
    why = decision.message
    if decision.remove:
        why += "; leaving: " + ", ".join(pod.rpartition("/")[2] for pod in decision.remove)
    return (
        decision.job,
        f"[{colour}]{decision.old} → {decision.new}",
        f"[{colour}]{reason}",
        escape(why),
    )


def _show(made: Plan, starts: Mapping[str, int]) -> None:
    """`starts`: jobs that are added, with their sizes."""
    from volcano_elastic.cluster_state.reason import WORDS

    for queue, figures in sorted(made.queues.items()):
        if figures.problem:
            click.echo(f"Warning: queue {queue}: {figures.problem}", err=True)
    table = _table("JOB", "SIZE", "REASON", "WHY")
    for decision in made.decisions:
        table.add_row(*_row(decision))
    for job, why in sorted(made.blocked.items()):
        table.add_row(job, "", "[red]Blocked", escape(f"it cannot start: {why}"))
    for pod, why in sorted(made.blocked_pods.items()):
        table.add_row(f"pod {pod}", "", "[yellow]Blocked", escape(f"it cannot start: {why}"))
    decided = {decision.job for decision in made.decisions}
    leavers = any(decision.remove for decision in made.decisions)
    for job, size in starts.items():
        if job not in decided:
            after = ", once those that are asked to have left" if leavers else ""
            table.add_row(job, str(size), "[green]Starts", f"it has room{after}")
    for job, stay in sorted(made.unchanged.items()):
        if job not in made.blocked and job not in starts:
            more, less = WORDS[stay.why_not_more], WORDS[stay.why_not_less]
            table.add_row(
                job, "=", f"[dim]{stay.why_not_more}", f"[dim]no more: {more}; no less: {less}"
            )
    if table.row_count:
        console().print(table)
    else:
        click.echo("nothing to decide: there is no elastic job, and nobody waits")
