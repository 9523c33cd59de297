"""`volcano-elastic eta`: when a job would start, and end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.dashboard import database_option, default_database
from volcano_elastic.cli.explain import find
from volcano_elastic.cli.observation import (
    Trouble,
    ask,
    complete_jobs,
    json_option,
    kubeconfig_option,
    objects,
    observe,
    plugin_option,
    print_json,
    snapshot_option,
)
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.history.records import Answer, Kept
from volcano_elastic.dashboard.model.gpu_use import resource_of
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.forecast.forecast import DRAWS, HORIZON, SHARE, Forecast, Interval, Scene
from volcano_elastic.forecast.forecast import forecast as foretell
from volcano_elastic.forecast.job_record import JobRecord, read_record
from volcano_elastic.forecast.past import Past

if TYPE_CHECKING:
    from volcano_elastic.kube.client import Client
    from volcano_elastic.kube.resource import Object
    from volcano_elastic.snapshot.codec import Observation

_WINDOW = timedelta(days=60)
"""Past that is looked at."""
_FEW = 12
_SHARE = f"{100 * SHARE:.0f} %"


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as it is printed."""

    time: datetime
    jobs: Mapping[str, Forecast]
    known: Mapping[str, bool]
    """True if a job's own training says what is left of it."""
    unknown: frozenset[str]
    """Jobs of whose ends nothing can be said yet."""
    past: int
    """Ended jobs that were learnt from."""
    kept: Kept | None
    """Record of how past answers held; None: nobody keeps it."""


@click.command()
@click.argument("job", metavar="[NAMESPACE/]JOB|FILE", shell_complete=complete_jobs)
@kubeconfig_option
@plugin_option
@snapshot_option
@database_option
@json_option
def eta(
    job: str,
    kubeconfig: str | None,
    plugin: str | None,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """When a job will start and end, or would if FILE (YAML) were applied now; with an interval.

    The planner is simulated twenty times from the cluster as it is now. How long jobs still take is
    drawn from how long jobs of the same user and queue took that had run as long; what a job's
    training itself says of its rest is believed. Others arrive as on a past day at this time. The
    past is what the dashboard keeps in its database, and the finished jobs that are still there;
    without any, lengths are guessed, widely.

    The interval is to hold four of five times. Answers about jobs that are there are kept in the
    database, and how many of them held is said. Exits 0; 2 if there is no such job.

    \b
    JSON: time; jobs [{job, start, end: {low, middle, high}}]: times, null where that is later than
    30 days from now, start null: it runs already, end null: not known yet, as of a job that runs
    whose training hasn't said how much is left while fewer than twelve past jobs are known; basis
    {draws, share, pastJobs, saidByTraining: the keys of those jobs}; answers {counted, held} or
    null.

    \b
    Examples:
      volcano-elastic eta train/bert
      volcano-elastic eta job.yaml --json
      volcano-elastic eta bert --snapshot now.json
    """
    from volcano_elastic.cli.observation import observation

    jobs: Sequence[Object] = ()
    if file is None:
        observed, jobs = ask(kubeconfig, lambda client: _look(client, plugin))
    else:
        observed = observation(kubeconfig, plugin, file)
    if Path(job).suffix in (".yaml", ".yml"):
        from volcano_elastic.cli.manifest_changes import apply, jobs_of

        after = apply(Path(job), observed, lambda line: click.echo(f"Warning: {line}", err=True))
        observed = replace(observed, snapshot=after)
        wanted = jobs_of(Path(job))
        asked = [one.key for one in after.jobs if one.key in wanted]
        if not asked:
            raise Trouble(f"{job}: expected a PyTorchJob that wants pods from Volcano, found none")
    else:
        asked = [find(job, observed.snapshot).key]
    history = _opened(database)
    told = answer(observed, asked, jobs, history)
    if history is not None:
        history.close()
    if as_json:
        print_json(as_values(told))
    else:
        click.echo("\n".join(lines(told)))


async def _look(client: Client, plugin: str | None) -> tuple[Observation, Sequence[Object]]:
    from volcano_elastic.kube.resource import PYTORCHJOBS

    return await asyncio.gather(observe(client, plugin=plugin), objects(client, PYTORCHJOBS))


def _opened(database: str | None) -> History | None:
    """Return the history, migrated; None with a warning where it can't be used."""
    try:
        found = History(database or default_database())
        found.migrate()
    except DatabaseError as error:
        click.echo(f"Warning: without what the dashboard keeps: {error}", err=True)
        return None
    return found


def answer(
    observed: Observation, asked: Sequence[str], jobs: Sequence[Object], history: History | None
) -> Told:
    """Return the answer, and keep it; `jobs`: the PyTorchJobs that are there, finished ones too."""
    now = observed.time
    resource = resource_of(observed.snapshot.nodes)
    read = [read_record(obj, resource) for obj in jobs]
    known = {record.uid: record for record in read if record is not None}
    if history is not None:
        try:
            history.records.write(known.values(), now)
            stored = {one.uid: one for one in history.records.since(now - _WINDOW)}
            known = {
                uid: replace(one, remaining=known[uid].remaining, said=known[uid].said)
                if uid in known
                else one
                for uid, one in stored.items()
            }
        except DatabaseError as error:
            click.echo(f"Warning: without what the dashboard keeps: {error}", err=True)
            history = None
    there = {one.job: one for one in known.values() if one.ended is None}
    # Who left no record of its end has ended all the same, nobody knows when.
    wanted = {job.key for job in observed.snapshot.jobs}
    past = [one for one in known.values() if one.ended is not None or one.job in wanted]
    scene = Scene(observed.snapshot, now, resource, there, Past(past, now))
    # Asked twice about one cluster it says the same.
    chance = random.Random(f"{now.isoformat()} {sorted(asked)}")
    found = foretell(scene, asked, chance.random)
    ended = sum(one.ended is not None for one in past)
    unknown = frozenset(
        key
        for key, one in found.items()
        if key in there and one.start is None and not end_is_known(there[key], ended)
    )
    kept = None if history is None else _keep(history, now, found, there, unknown)
    said = {key: key in there and there[key].remaining is not None for key in asked}
    return Told(now, found, said, unknown, ended, kept)


def end_is_known(record: JobRecord, past: int) -> bool:
    """Tell whether anything can be said of when a job that runs will end. By a guess of all jobs'
    lengths alone, one of a minute would be said to end in an hour.

    Args:
        past: ended jobs that lengths can be drawn from.
    """
    return record.remaining is not None or past >= _FEW


def _keep(
    history: History,
    now: datetime,
    found: Mapping[str, Forecast],
    there: Mapping[str, JobRecord],
    unknown: frozenset[str],
) -> Kept | None:
    answers = []
    for key, one in found.items():
        if key not in there:
            continue
        for what, interval in (("start", one.start), ("end", one.end)):
            if interval is not None and not (what == "end" and key in unknown):
                answers.append(Answer(there[key].uid, now, what, *_times(now, interval)))
    try:
        history.records.say(answers)
        return history.records.kept()
    except DatabaseError as error:
        click.echo(f"Warning: the answer is not kept: {error}", err=True)
        return None


def _times(now: datetime, interval: Interval) -> tuple[datetime | None, ...]:
    return tuple(
        None if seconds is None else now + timedelta(seconds=seconds)
        for seconds in (interval.low, interval.middle, interval.high)
    )


def as_values(told: Told) -> dict[str, Any]:
    """The documented form of `eta --json`."""
    from volcano_elastic.api import moment

    def shown(interval: Interval | None) -> dict[str, str | None] | None:
        if interval is None:
            return None
        low, middle, high = (
            None if time is None else moment.timestamp(time) for time in _times(told.time, interval)
        )
        return {"low": low, "middle": middle, "high": high}

    return {
        "time": moment.timestamp(told.time),
        "jobs": [
            {
                "job": key,
                "start": shown(one.start),
                "end": None if key in told.unknown else shown(one.end),
            }
            for key, one in told.jobs.items()
        ],
        "basis": {
            "draws": DRAWS,
            "share": SHARE,
            "pastJobs": told.past,
            "saidByTraining": [key for key, known in told.known.items() if known],
        },
        "answers": None
        if told.kept is None
        else {"counted": told.kept.counted, "held": told.kept.held},
    }


def lines(told: Told) -> list[str]:
    """Return the answer for people."""
    said = []
    for key, one in told.jobs.items():
        said.append(key)
        if one.start is None:
            said.append("  starts  it runs already")
        else:
            said.append(f"  starts  {_words(told.time, one.start)}")
        if key in told.unknown:
            said.append(
                "  ends    not known yet: its training has not said how much is left "
                f"({_count(told.past, 'past job')} known)"
            )
        else:
            said.append(f"  ends    {_words(told.time, one.end)}")
    if told.unknown.issuperset(told.jobs):
        return said
    if told.past < _FEW:
        said.append(
            f"{_count(told.past, 'past job')} known: lengths are guessed, half of all jobs below "
            "an hour, one in ten above nine"
        )
    else:
        said.append(f"lengths are drawn from {told.past} past jobs")
    for key, known in told.known.items():
        if known:
            said.append(f"the training of {key} itself says what is left of it")
    if told.kept is not None and told.kept.counted:
        said.append(
            f"of {_count(told.kept.counted, 'past answer')} {told.kept.held} held; "
            f"{_SHARE} are to hold"
        )
    return said


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _words(now: datetime, interval: Interval) -> str:
    low, middle, high = (interval.low, interval.middle, interval.high)
    if low is None:
        return f"not within {HORIZON.days} days"
    if high is not None and high < 1:
        return "now"
    late = f"later than {HORIZON.days} days" if high is None else span(high)
    if middle is None:
        return f"after {span(low)} at the earliest ({_SHARE}: up to {late})"
    when = (now + timedelta(seconds=middle)).astimezone()
    return f"in {span(middle)}, {when:%a %d %b %H:%M} ({_SHARE}: {span(low)} to {late})"


def span(seconds: float) -> str:
    """Return a time as people say it, in its two largest units."""
    if seconds < 1:
        return "now"
    left = round(seconds)
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for i, (name, length) in enumerate(units):
        if left >= length:
            whole, rest = divmod(left, length)
            smaller = units[i + 1] if i + 1 < len(units) else None
            if smaller is None or whole >= 10 or rest < smaller[1]:
                return f"{whole} {name}"
            return f"{whole} {name} {rest // smaller[1]} {smaller[0]}"
    raise AssertionError(seconds)
