"""`volcano-elastic report`: the last days in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from volcano_elastic.cli.dashboard import database_option, default_database
from volcano_elastic.cli.observation import Trouble, since_option
from volcano_elastic.dashboard.history.history import History, Span
from volcano_elastic.dashboard.model.change import Change
from volcano_elastic.dashboard.model.timeline import LEVELS
from volcano_elastic.dashboard.model.week import Week, week
from volcano_elastic.dashboard.report_page import report_page
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.forecast.job_record import JobRecord

_MOST_CHANGES = 100_000


@click.command()
@since_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="HTML to write.",
)
@database_option
def report(since: timedelta, out: Path, database: str | None) -> None:
    """Writes the last days as one HTML file: who held and used GPUs, waits, goodput, worst jobs.

    All of it is what a dashboard kept in its database; of time in which none looked nothing is
    known, and the report says so. The jobs that ran are simulated anew, elastic and as rigid gangs,
    to tell what elasticity saved. Exits 0, or 2 if there is nothing to report.

    \b
    Examples:
      volcano-elastic report --out week.html
      volcano-elastic report --since 36h --out today.html --database sqlite:///week.db
    """
    found = remembered(database, since)
    text = report_page(found, datetime.now(UTC))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Trouble(f"--out {out}: {error.strerror}; give a file to write") from error
    click.echo(f"written: {out}")


def remembered(database: str | None, since: timedelta) -> Week:
    """Return what the database has of the time since then.

    Raises:
        Trouble: it can't be read, or has nothing.
    """
    end = datetime.now(UTC)
    begin = end - since
    kept = read_history(database, begin, end)
    return week(begin, end, kept.buckets, kept.records, kept.changes)


@dataclass(frozen=True, slots=True)
class Remembered:
    """All that a dashboard kept of a span of time."""

    buckets: Sequence[Mapping[str, Any]]
    records: Sequence[JobRecord]
    changes: Sequence[Change]

    @property
    def capacity(self) -> int:
        """Return the most GPUs that there were, or what else the cluster counts in."""
        return round(max((bucket["capacity"] for bucket in self.buckets), default=0.0))


def read_history(database: str | None, begin: datetime, end: datetime) -> Remembered:
    """Return what the database has of a span of time.

    Raises:
        Trouble: it can't be read, or has nothing.
    """
    url = database or default_database()
    try:
        history = History(url)
        history.migrate()
        longest = LEVELS[-1].milliseconds
        buckets = [json.loads(content) for _, content in history.buckets(longest, begin)]
        records = history.records.since(begin)
        changes = history.changes(Span(begin, end), _MOST_CHANGES)
        history.close()
    except DatabaseError as error:
        raise Trouble(str(error)) from error
    if not buckets and not records:
        raise Trouble(
            f"{history.database.name} knows nothing since {begin:%Y-%m-%d %H:%M} UTC; run "
            "`volcano-elastic dashboard`, which keeps it, or give another --database"
        )
    return Remembered(buckets, records, changes)
