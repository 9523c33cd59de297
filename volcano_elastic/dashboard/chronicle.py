"""Writes the past down: buckets of GPU use and changes of jobs, to memory at once and to the
database a little later; goes on without it when it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import orjson

from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.model.change import Change
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.timeline import LEVELS, Averages, Bucket, Moment, level_for
from volcano_elastic.database.database import DatabaseError, milliseconds
from volcano_elastic.forecast.job_record import JobRecord

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_WRITE_SECONDS = 5.0
_FORGET = timedelta(minutes=10)
_MOST_UNWRITTEN = 50_000
"""Changes that wait for a database that fails; the oldest are lost first."""


class Chronicle:
    """Takes each page and change; tells what there was.

    Args:
        keep: for how long.
    """

    def __init__(self, history: History, clock: Callable[[], datetime], keep: timedelta) -> None:
        self._history, self._clock, self._keep = history, clock, keep
        self._averages = [Averages(level) for level in LEVELS]
        self._encoded: list[dict[int, bytes]] = [{} for _ in LEVELS]
        """By level and begin, the buckets in memory as JSON, oldest first."""
        self._buckets: list[tuple[int, dict[str, Any]]] = []
        self._changes: list[Change] = []
        self._records: dict[str, JobRecord] = {}
        self._turn = asyncio.Lock()
        self._ready, self._told = False, ""
        self._forgotten: datetime | None = None

    def page(self, page: Page) -> None:
        """Note the use of a moment."""
        moment = Moment(milliseconds(page.time), page.use, page.deserved(), page.guarantee())
        for i, averages in enumerate(self._averages):
            for bucket in averages.note(moment):
                self._full(i, bucket)

    def _full(self, i: int, bucket: Bucket) -> None:
        shown, level = bucket.shown(), LEVELS[i]
        self._encoded[i][bucket.begin] = orjson.dumps(shown)
        self._buckets.append((level.milliseconds, shown))
        oldest = bucket.begin - min(level.keep, self._keep) // timedelta(milliseconds=1)
        held = self._encoded[i]
        while held and next(iter(held)) < oldest:
            del held[next(iter(held))]

    def changed(self, change: Change) -> None:
        """Note a change; one that is known already is kept once."""
        self._changes.append(change)
        if len(self._changes) > _MOST_UNWRITTEN:
            del self._changes[: len(self._changes) - _MOST_UNWRITTEN]

    def recorded(self, record: JobRecord) -> None:
        """Note what is known of a job now."""
        self._records[record.uid] = record

    def timeline(self, span: timedelta) -> bytes:
        """Return the buckets of the span up to now, as a JSON object."""
        i = level_for(span)
        since = milliseconds(self._clock() - min(span, self._keep))
        found = [b for begin, b in self._encoded[i].items() if begin >= since]
        so_far = self._averages[i].so_far()
        if so_far is not None:
            found.append(orjson.dumps(so_far.shown()))
        head = orjson.dumps({"bucketMs": LEVELS[i].milliseconds, "since": since})
        return head[:-1] + b',"buckets":[' + b",".join(found) + b"]}"

    async def ask(self, question: Callable[[History], _T], otherwise: _T) -> _T:
        """Return the database's answer, with what is known by now; `otherwise` while it fails."""
        await self._flush()
        return await self._in_turn(lambda: question(self._history), otherwise)

    async def run(self) -> None:
        """Until cancelled; then writes what is left."""
        await self._load()
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)
                await self._flush()
                await self._forget_old()
        finally:
            for level, averages in zip(LEVELS, self._averages, strict=True):
                if (bucket := averages.so_far()) is not None:
                    self._buckets.append((level.milliseconds, bucket.shown()))
            await self._flush()

    async def _forget_old(self) -> None:
        now = self._clock()
        if self._forgotten is None or now - self._forgotten >= _FORGET:
            self._forgotten = now
            await self._in_turn(lambda: self._history.forget(now, self._keep), None)

    async def _load(self) -> None:
        nothing: list[tuple[int, str]] = []
        for i, level in enumerate(LEVELS):
            since = self._clock() - min(level.keep, self._keep)
            asked = partial(History.buckets, self._history, level.milliseconds, since)
            old = await self._in_turn(asked, nothing)
            noted = self._encoded[i]
            self._encoded[i] = {begin: content.encode() for begin, content in old} | noted

    async def _flush(self) -> None:
        if not (self._buckets or self._changes or self._records):
            return
        buckets, self._buckets = self._buckets, []
        changes, self._changes = self._changes, []
        records, self._records = self._records, {}
        written = await self._in_turn(lambda: self._written(buckets, changes, records), False)
        if not written:
            # Buckets are in memory and are shown; after a restart they are missing.
            self._changes = [*changes, *self._changes][-_MOST_UNWRITTEN:]
            self._records = records | self._records

    def _written(
        self,
        buckets: list[tuple[int, dict[str, Any]]],
        changes: list[Change],
        records: dict[str, JobRecord],
    ) -> bool:
        self._history.write(buckets, changes)
        self._history.records.write(records.values(), self._clock())
        return True

    async def _in_turn(self, question: Callable[[], _T], otherwise: _T) -> _T:
        """Return the answer, in a thread and one at a time; a failure is logged once a reason."""
        async with self._turn:
            try:
                if not self._ready:
                    await asyncio.to_thread(self._history.migrate)
                    self._ready = True
                answer = await asyncio.to_thread(question)
            except DatabaseError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    _log.warning("what happens is not kept: %s", error)
                return otherwise
            if self._told:
                self._told = ""
                _log.warning("what happens is kept again: %s", self._history.database.name)
            return answer
