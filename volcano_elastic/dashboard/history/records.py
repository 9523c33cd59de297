"""Keeps what is known of each job, and what was said of its start and end, in the same database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from volcano_elastic.dashboard.history.schema import ANSWERS, RECORDS
from volcano_elastic.database.database import Database, in_hundreds, milliseconds, time_of
from volcano_elastic.forecast.job_record import JobRecord

_MOST_ANSWERS = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """A forecast of a job's start or end, as it was given."""

    uid: str
    asked: datetime
    what: str
    """start or end"""
    low: datetime | None
    middle: datetime | None
    high: datetime | None
    """None: later than was looked at."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Counts of the answers whose question is settled, and of those that held."""

    counted: int
    held: int


class Records:
    """Records and answers in a database that `History` has migrated. Not for several threads at
    once. All methods raise DatabaseError where the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, records: Iterable[JobRecord], now: datetime) -> None:
        """Keeps what is known of jobs now. The earliest start that was ever known stays."""
        new = {record.uid: record for record in records if record.uid}
        with self._database.transaction() as connection:
            for uids in in_hundreds(sorted(new)):
                known = connection.execute(sa.select(RECORDS).where(RECORDS.c.uid.in_(uids)))
                for row in known.mappings():
                    new[row["uid"]] = _joined(_record(row), new[row["uid"]])
                connection.execute(sa.delete(RECORDS).where(RECORDS.c.uid.in_(uids)))
            if new:
                connection.execute(sa.insert(RECORDS), [_row(one, now) for one in new.values()])

    def since(self, time: datetime) -> list[JobRecord]:
        """Return the jobs that were there at that time or came later, by creation."""
        there = sa.or_(RECORDS.c.ended.is_(None), RECORDS.c.ended >= milliseconds(time))
        asked = sa.select(RECORDS).where(there).order_by(RECORDS.c.created, RECORDS.c.uid)
        with self._database.transaction() as connection:
            return [_record(row) for row in connection.execute(asked).mappings()]

    def say(self, answers: Iterable[Answer]) -> None:
        """Keeps answers."""
        rows = [
            {
                "uid": one.uid,
                "asked": milliseconds(one.asked),
                "what": one.what,
                **{name: _kept(getattr(one, name)) for name in ("low", "middle", "high")},
            }
            for one in answers
        ]
        if rows:
            with self._database.transaction() as connection:
                connection.execute(sa.insert(ANSWERS), rows)

    def kept(self) -> Kept:
        """Return how the newest answers held whose job has started, or ended, since; or has not
        though it was to be over by then."""
        asked = (
            sa.select(
                ANSWERS, RECORDS.c.started, RECORDS.c.ended, RECORDS.c.outcome, RECORDS.c.seen
            )
            .join(RECORDS, RECORDS.c.uid == ANSWERS.c.uid)
            .order_by(ANSWERS.c.asked.desc())
            .limit(_MOST_ANSWERS)
        )
        with self._database.transaction() as connection:
            held = [_held(row) for row in connection.execute(asked).mappings()]
        settled = [one for one in held if one is not None]
        return Kept(len(settled), sum(settled))

    def forget(self, connection: Connection, before: int) -> None:
        """Removes what was last seen, or asked, before a time in milliseconds."""
        connection.execute(sa.delete(RECORDS).where(RECORDS.c.seen < before))
        connection.execute(sa.delete(ANSWERS).where(ANSWERS.c.asked < before))


def _held(row: Mapping[Any, Any]) -> bool | None:
    """Return whether an answer held; None while nobody can tell."""
    happened = row["started"] if row["what"] == "start" else row["ended"]
    late = row["high"]
    if happened is None:
        # It has not happened by the time at which the job was last seen.
        missed = late is not None and row["seen"] > late and not row["outcome"]
        return False if missed else None
    if row["outcome"] == "Deleted" and row["what"] == "end":
        return None
    return (row["low"] or 0) <= happened and (late is None or happened <= late)


def _joined(old: JobRecord, new: JobRecord) -> JobRecord:
    starts = [one for one in (old.started, new.started) if one is not None]
    return replace(
        new,
        started=min(starts, default=None),
        ended=new.ended or old.ended,
        outcome=new.outcome or old.outcome,
        hours=max(old.hours, new.hours),
        spent=max(old.spent, new.spent, key=lambda spent: sum(spent.values())),
    )


def _kept(time: datetime | None) -> int | None:
    return None if time is None else milliseconds(time)


def _row(record: JobRecord, now: datetime) -> dict[str, Any]:
    return {
        "uid": record.uid,
        "job": record.job,
        "queue": record.queue,
        "user_name": record.user,
        "each": record.each,
        "least": record.min,
        "most": record.max,
        "asked": record.asked,
        "created": milliseconds(record.created),
        "started": _kept(record.started),
        "ended": _kept(record.ended),
        "outcome": record.outcome,
        "hours": record.hours,
        "spent": json.dumps(dict(record.spent)),
        "seen": milliseconds(now),
    }


def _record(row: Mapping[Any, Any]) -> JobRecord:
    return JobRecord(
        uid=row["uid"],
        job=row["job"],
        queue=row["queue"],
        user=row["user_name"],
        each=row["each"],
        min=row["least"],
        max=row["most"],
        asked=row["asked"],
        created=time_of(row["created"]),
        started=None if row["started"] is None else time_of(row["started"]),
        ended=None if row["ended"] is None else time_of(row["ended"]),
        outcome=row["outcome"],
        hours=row["hours"],
        spent=json.loads(row["spent"]),
    )
