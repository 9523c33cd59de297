"""Keeps what the page shows of the past in a database: SQLite in a file by default."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from volcano_elastic.dashboard.history.records import Records
from volcano_elastic.dashboard.history.schema import BUCKETS, CHANGES
from volcano_elastic.dashboard.model.change import Change, Kind
from volcano_elastic.dashboard.model.timeline import LEVELS, merged
from volcano_elastic.database.database import Database, in_hundreds, milliseconds, time_of

_MIGRATIONS = "volcano_elastic.dashboard.history:migrations"
_MOST_CHANGES = 500
SLOTS = 120
"""Parts of a span of time in which changes are counted."""


@dataclass(frozen=True, slots=True)
class Span:
    """Changes that are asked for: of a time, and of some queues or a job if they are given."""

    begin: datetime
    end: datetime
    queues: frozenset[str] | None = None
    job: str | None = None


class History:
    """Buckets of GPU use and changes of jobs, in the database at `url`, as `Database` takes it. Not
    for several threads at once.

    Raises:
        DatabaseError: the URL makes no sense. All methods raise it where the database fails.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url, _MIGRATIONS)
        self.records = Records(self.database)

    def migrate(self) -> None:
        """Makes the tables, or brings them to this version; keeps what is in them."""
        self.database.migrate()

    def close(self) -> None:
        self.database.close()

    def write(
        self, buckets: Iterable[tuple[int, dict[str, Any]]], changes: Iterable[Change]
    ) -> list[Change]:
        """Keeps buckets, each with the length of its level in milliseconds, and changes that are
        not there yet; return those changes. A bucket that is there already, cut short by a restart,
        is joined with the rest of it."""
        with self.database.transaction() as connection:
            for length, bucket in buckets:
                _upsert(connection, length, bucket)
            return _add(connection, list(changes))

    def buckets(self, length: int, since: datetime) -> list[tuple[int, str]]:
        """Return begin and content of the buckets of one length, in order."""
        wanted = sa.and_(BUCKETS.c.level == length, BUCKETS.c.begin >= milliseconds(since))
        asked = sa.select(BUCKETS.c.begin, BUCKETS.c.content).where(wanted)
        with self.database.transaction() as connection:
            rows = connection.execute(asked.order_by(BUCKETS.c.begin))
            return [(int(begin), str(content)) for begin, content in rows]

    def changes(self, span: Span, most: int = _MOST_CHANGES) -> list[Change]:
        """Return the newest changes of the span, newest first."""
        asked = sa.select(CHANGES).where(_within(span))
        newest = asked.order_by(CHANGES.c.time.desc(), CHANGES.c.uid, CHANGES.c.kind)
        with self.database.transaction() as connection:
            rows = connection.execute(newest.limit(most)).mappings()
            return [_change(row) for row in rows]

    def counts(self, span: Span) -> list[tuple[int, Kind, int, int]]:
        """Return how many changes of a kind there were in each of `SLOTS` parts of the span that
        has any: (part, kind, direction: -1, 0 or 1, how many)."""
        begin, end = milliseconds(span.begin), milliseconds(span.end)
        length = max(1, -(-(end - begin) // SLOTS))
        part = ((CHANGES.c.time - begin) // length).label("part")
        direction = sa.case(
            (CHANGES.c.new_size > CHANGES.c.old_size, 1),
            (CHANGES.c.new_size < CHANGES.c.old_size, -1),
            else_=0,
        ).label("direction")
        asked = sa.select(part, CHANGES.c.kind, direction, sa.func.count()).where(_within(span))
        grouped = asked.group_by(part, CHANGES.c.kind, direction).order_by(part, CHANGES.c.kind)
        with self.database.transaction() as connection:
            return [
                (int(where), Kind(kind), int(way), int(count))
                for where, kind, way, count in connection.execute(grouped)
            ]

    def forget(self, now: datetime, keep: timedelta) -> None:
        """Removes what is older than `keep`, and of the short buckets what is older than theirs."""
        with self.database.transaction() as connection:
            for level in LEVELS:
                old = BUCKETS.c.begin < milliseconds(now - min(level.keep, keep))
                mine = sa.and_(BUCKETS.c.level == level.milliseconds, old)
                connection.execute(sa.delete(BUCKETS).where(mine))
            before = milliseconds(now - keep)
            connection.execute(sa.delete(CHANGES).where(CHANGES.c.time < before))
            self.records.forget(connection, before)


def _upsert(connection: Connection, length: int, bucket: dict[str, Any]) -> None:
    here = sa.and_(BUCKETS.c.level == length, BUCKETS.c.begin == bucket["t"])
    before = connection.scalar(sa.select(BUCKETS.c.content).where(here))
    if before is not None:
        bucket = merged(json.loads(before), bucket)
        connection.execute(sa.delete(BUCKETS).where(here))
    content = json.dumps(bucket, separators=(",", ":"))
    row = {"level": length, "begin": bucket["t"], "content": content}
    connection.execute(sa.insert(BUCKETS), row)


def _within(span: Span) -> Any:
    found = [CHANGES.c.time >= milliseconds(span.begin), CHANGES.c.time < milliseconds(span.end)]
    if span.queues is not None:
        found.append(CHANGES.c.queue.in_(sorted(span.queues)))
    if span.job is not None:
        found.append(CHANGES.c.job == span.job)
    return sa.and_(*found)


def _add(connection: Connection, changes: Sequence[Change]) -> list[Change]:
    known: set[tuple[str, str, int]] = set()
    for uids in in_hundreds(sorted({change.uid for change in changes})):
        asked = sa.select(CHANGES.c.uid, CHANGES.c.kind, CHANGES.c.time)
        known |= {
            (str(uid), str(kind), int(time))
            for uid, kind, time in connection.execute(asked.where(CHANGES.c.uid.in_(uids)))
        }
    new: dict[tuple[str, str, int], Change] = {}
    for change in changes:
        key = (change.uid, str(change.kind), milliseconds(change.time))
        if key not in known:
            new.setdefault(key, change)
    if new:
        connection.execute(sa.insert(CHANGES), [_row(change) for change in new.values()])
    return list(new.values())


def _row(change: Change) -> dict[str, Any]:
    return {
        "uid": change.uid,
        "kind": str(change.kind),
        "time": milliseconds(change.time),
        "job": change.job,
        "queue": change.queue,
        "old_size": change.old,
        "new_size": change.new,
        "reason": change.reason,
        "message": change.message,
    }


def _change(row: Mapping[Any, Any]) -> Change:
    return Change(
        time=time_of(row["time"]),
        kind=Kind(row["kind"]),
        uid=row["uid"],
        job=row["job"],
        queue=row["queue"],
        old=row["old_size"],
        new=row["new_size"],
        reason=row["reason"],
        message=row["message"],
    )
