"""`volcano-elastic history`: what is known of jobs that ran."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table

from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.history.run import Run, anonymous, as_json
from volcano_elastic.database.database import DatabaseError


@click.command()
@click.argument("job", required=False)
@click.option("--namespace", "-n", default="default", show_default=True, help="Of JOB.")
@click.option("--user", help="Runs by this user.")
@click.option("--queue", help="Runs in this queue.")
@click.option(
    "--database",
    envvar="VOLCANO_ELASTIC_HISTORY",
    required=True,
    help="URL, e.g. sqlite:////var/lib/volcano-elastic/history.db [env: VOLCANO_ELASTIC_HISTORY]",
)
@click.option("--most", default=100, show_default=True, help="How many, newest first.")
@click.option("--json", "as_list", is_flag=True, help="A list of runs, whole.")
@click.option(
    "--anonymous", "hidden", is_flag=True, help="With --json: nothing that names somebody."
)
def history(
    job: str | None,
    namespace: str,
    user: str | None,
    queue: str | None,
    database: str,
    most: int,
    as_list: bool,
    hidden: bool,
) -> None:
    """Runs of JOB, of a user or of a queue: what they asked for and used, and how they ended.

    \b
    Examples:
      volcano-elastic history resnet
      volcano-elastic history --user ann --queue vision --json
      volcano-elastic history --queue vision --json --anonymous > runs.json
    """
    if not (job or user or queue):
        raise click.UsageError("expected JOB, --user or --queue")
    if hidden and not as_list:
        raise click.UsageError("--anonymous needs --json")
    try:
        of = namespace if job else None
        runs = History(database).runs(namespace=of, name=job, user=user, queue=queue, most=most)
    except DatabaseError as error:
        raise click.ClickException(str(error)) from None
    if as_list:
        # Nobody can tell from two exports whether they name the same.
        salt = secrets.token_hex(16)
        shown = [anonymous(run, salt) for run in runs] if hidden else runs
        click.echo(json.dumps([as_json(run) for run in shown], indent=2))
        return
    if not runs:
        click.echo("no run is known")
        return
    Console().print(_table(runs))


def _table(runs: Sequence[Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("created", "job", "user", "queue", "outcome"):
        table.add_column(column, no_wrap=column == "outcome")
    table.add_column("used at most, of what was asked")
    for run in runs:
        asked = {load.role: load.requested for load in run.loads}
        used = [f"{role} {most}, of {asked[role]}" for role, most in run.busiest.items()]
        for role, (memory, busy) in run.busiest_gpus.items():
            computed = "" if busy is None else f", {busy} of the time"
            used.append(f"{role} {memory} of GPUs{computed}")
        table.add_row(
            f"{run.created:%m-%d %H:%M}",
            f"{run.namespace}/{run.name}",
            run.user,
            run.queue,
            run.outcome or "running",
            "\n".join(used) or "not measured",
        )
    return table
