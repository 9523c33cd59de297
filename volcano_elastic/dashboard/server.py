"""Serves the page over HTTP: its files, the lists that it asks for, and a stream of news."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from volcano_elastic.dashboard import access
from volcano_elastic.dashboard.answer_cache import AnswerCache
from volcano_elastic.dashboard.chronicle import Chronicle
from volcano_elastic.dashboard.history.history import SLOTS, Span
from volcano_elastic.dashboard.model.change import Change, shown
from volcano_elastic.dashboard.model.job_page import job_page
from volcano_elastic.dashboard.model.job_row import Choice, Sort, State, chosen, paged
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.queue_row import family
from volcano_elastic.dashboard.model.replay import Past, replay
from volcano_elastic.dashboard.model.what_if import NoAnswer, Question, answer
from volcano_elastic.dashboard.page_feed import PageFeed
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.kube.http_log import http_log
from volcano_elastic.kube.resource import Object

_log = logging.getLogger(__name__)
FILES = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_MOST_VIEWERS = 200
_BEAT_SECONDS = 15.0
"""After so long without news a stream says that it lives, and its token is looked at again."""
_SEND_SECONDS = 20.0
"""A viewer who takes nothing for so long is sent away."""
_BETWEEN_FRAMES_SECONDS = 1.0
_GOOD_SECONDS = 2.0
_AT_ONCE = 4
_SPANS = (timedelta(minutes=1), timedelta(days=366))
_MOST_CHANGES = 200
_REPLAY_SECONDS = 60.0
"""Longest that a replay of the past may take."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JobDetails = Callable[[str], Awaitable[tuple[Mapping[str, Any] | None, Sequence[Object]]]]
"""By key: its description, and the Events about it."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Parts of the program that answers come from."""

    feed: PageFeed
    chronicle: Chronicle
    accepts: Callable[[str], bool]
    job: Callable[[str], Object | None]
    details: JobDetails
    waits_for: Callable[[], str]
    clock: Callable[[], datetime]


class _BadQuestion(Exception):
    """A query makes no sense; says what was expected."""


class Server:
    """Answers requests; `hosts` is filled in once the port is known."""

    def __init__(self, sources: Sources, *, beat: float = _BEAT_SECONDS) -> None:
        self._sources, self._beat = sources, beat
        self.hosts: frozenset[str] = frozenset()
        self._viewers = 0
        self._cache = AnswerCache(_GOOD_SECONDS, _AT_ONCE, time.monotonic)
        # A plan each, one at a time: they cost most by far.
        self._plans = AnswerCache(_GOOD_SECONDS, 1, time.monotonic)
        self._closing = threading.Event()
        self._files = {
            f"/page/{file.name}": (file.read_bytes(), _TYPES[file.suffix])
            for file in sorted(FILES.iterdir())
            if file.suffix in _TYPES
        }
        self._files["/"] = self._files["/page/index.html"]

    def application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._guarded],
            # None is read.
            client_max_size=1,
            handler_args={"max_line_size": 4096, "max_field_size": 8190, "lingering_time": 1.0},
        )
        app.on_cleanup.append(self._close)
        app.router.add_get(access.PROBE, self._healthz)
        app.router.add_get("/api/stream", self._stream, allow_head=False)
        app.router.add_get("/api/what-if", self._what_if)
        for name in ("overview", "timeline", "changes", "jobs", "job", "nodes"):
            app.router.add_get(f"/api/{name}", getattr(self, f"_{name}"))
        # A table of names: no path leads to a file.
        for path in self._files:
            app.router.add_get(path, self._file)
        return app

    async def _close(self, _app: web.Application) -> None:
        # A replay's thread would keep the process.
        self._closing.set()
        await self._cache.close()
        await self._plans.close()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = access.Asked(
            method=request.method,
            path=request.path,
            query=request.query_string,
            host=request.headers.get("Host"),
            origin=request.headers.get("Origin"),
            fetch_site=request.headers.get("Sec-Fetch-Site"),
            authorization=request.headers.get("Authorization"),
            has_body=request.body_exists,
        )
        refused = access.refusal(asked, self.hosts, self._sources.accepts)
        if refused is not None:
            return _refused(refused.status, refused.why)
        try:
            answered = await handler(request)
        except web.HTTPException as error:
            return _refused(error.status, error.reason)
        except (_BadQuestion, NoAnswer) as error:
            return _refused(400, str(error))
        if not answered.prepared:
            answered.headers.update(access.HEADERS)
        return answered

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        waits = self._sources.waits_for()
        return web.Response(
            status=503 if waits else 200, text=f"waiting for {waits}" if waits else "ok"
        )

    async def _file(self, request: web.Request) -> web.StreamResponse:
        content, kind = self._files[request.path]
        headers = {"Cache-Control": "no-cache"}
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    def _page(self) -> Page:
        page = self._sources.feed.page
        if page is None:
            raise web.HTTPServiceUnavailable(
                reason=f"waiting for {self._sources.waits_for()}".replace("\n", " ")
            )
        return page

    def _queues(self, name: str | None) -> frozenset[str] | None:
        """Return the queue and all below it; None where none is asked for."""
        return None if name is None else family(self._page().snapshot.queues, name)

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        self._page()
        return _json(self._sources.feed.frame)

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        span = _span(request)

        async def work() -> bytes:
            return self._sources.chronicle.timeline(span)

        return _json(await self._cache.get(("timeline", span), work))

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        query, span = request.query, _span(request)
        queues, job = self._queues(query.get("queue")), query.get("job")
        end = _time(query.get("end"))
        at = _whole(query.get("part"), -1, SLOTS - 1) if "part" in query else None
        asked = ("changes", span, queues, job, end, at)

        async def work() -> bytes:
            until = end or self._sources.clock() + timedelta(seconds=1)
            whole = Span(until - span, until, queues, job)
            part = whole
            if at is not None and at >= 0:
                length = span / SLOTS
                begin = whole.begin + at * length
                part = Span(begin, begin + length, queues, job)
            chronicle, nothing = self._sources.chronicle, list[Change]()
            newest = await chronicle.ask(lambda h: h.changes(part, _MOST_CHANGES), nothing)
            none = list[Any]()
            counts = await chronicle.ask(lambda h: h.counts(whole), none) if at is None else none
            return orjson.dumps(
                {
                    "begin": _ms(whole.begin),
                    "end": _ms(whole.end),
                    "parts": SLOTS,
                    "changes": [shown(change) for change in newest],
                    "counts": [[p, str(kind), way, n] for p, kind, way, n in counts],
                }
            )

        return _json(await self._cache.get(asked, work))

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        page, query = self._page(), request.query
        choice = Choice(
            queues=self._queues(query.get("queue")),
            state=_word(State, query.get("state")),
            text=query.get("text", ""),
            sort=_word(Sort, query.get("sort")) or Sort.WAITING,
            page=_whole(query.get("page"), 1, 10**6),
        )

        async def work() -> bytes:
            return orjson.dumps(chosen(page.jobs, choice))

        return _json(await self._cache.get(("jobs", choice), work))

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        page, query = self._page(), request.query
        text, number = query.get("text", "").lower(), _whole(query.get("page"), 1, 10**6)
        found = [row for row in page.nodes if text in row.name.lower()]
        return _json(orjson.dumps(paged(found, number)))

    async def _job(self, request: web.Request) -> web.StreamResponse:
        page, key = self._page(), request.query.get("job", "")
        if key.count("/") not in (1, 2):
            raise _BadQuestion(
                f"expected job=NAMESPACE/NAME or NAMESPACE/KIND/NAME, found {key[:100]!r}"
            )

        async def work() -> bytes:
            obj = self._sources.job(key)
            description, events = await self._sources.details(key) if obj else (None, ())
            now = self._sources.clock()
            span = Span(now - _SPANS[1], now + timedelta(seconds=1), job=key)
            nothing = list[Change]()
            chronicle = self._sources.chronicle
            known = await chronicle.ask(lambda h: h.changes(span, _MOST_CHANGES), nothing)
            return orjson.dumps(job_page(page, key, obj, description, known, events))

        found = await self._cache.get(("job", key), work)
        if found == b"null":
            return _refused(404, f"nothing is known of a job {key}")
        return _json(found)

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        page, query = self._page(), request.query
        question = Question(
            queue=query.get("queue"),
            capability=_whole(query["capability"], 0, 10**6) if "capability" in query else None,
            nodes=_whole(query.get("nodes"), 0, 10**6),
            into=query.get("into"),
            least=_whole(query.get("min"), 1, 10**6),
            most=_whole(query.get("max"), 1, 10**6),
            each=_whole(query.get("each"), 1, 10**6),
            hours=_whole(query.get("hours"), 1, 10**4),
        )
        since = timedelta(seconds=_whole(query.get("since"), 0, 10**9))

        async def work() -> bytes:
            if not since:
                return orjson.dumps(await asyncio.to_thread(answer, page, question))
            past, late = await self._past(page, since), time.monotonic() + _REPLAY_SECONDS

            def go_on() -> None:
                if self._closing.is_set() or time.monotonic() > late:
                    raise NoAnswer(
                        f"expected a replay of at most {_REPLAY_SECONDS:g} s, found a longer one: "
                        "volcano-elastic simulate --history takes any time"
                    )

            return orjson.dumps(await asyncio.to_thread(replay, page, past, question, go_on))

        return _json(await self._plans.get((question, since), work))

    async def _past(self, page: Page, since: timedelta) -> Past:
        """Return what is on record of the time from then until now; where nothing is of the
        cluster's size, it had the present one."""
        end, chronicle = self._sources.clock(), self._sources.chronicle
        since = min(max(since, _SPANS[0]), _SPANS[1])
        nothing = list[JobRecord]()
        records = await chronicle.ask(lambda h: h.records.since(end - since), nothing)
        buckets = orjson.loads(chronicle.timeline(since))["buckets"]
        return Past(
            begin=end - since,
            end=end,
            records=records,
            capacity=round(max((b["capacity"] for b in buckets), default=page.use.capacity / 1000)),
            observed=sum(bucket["ms"] for bucket in buckets) / (since / timedelta(milliseconds=1)),
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the overview, at once and whenever it has changed."""
        if self._viewers >= _MOST_VIEWERS:
            return _refused(503, f"{_MOST_VIEWERS} streams are open already")
        given = access.token(request.headers.get("Authorization")) or ""
        stream = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                **access.HEADERS,
            }
        )
        self._viewers += 1
        try:
            await stream.prepare(request)
            await self._send_all(stream, given)
        except (ConnectionError, TimeoutError):
            # Gone, or asleep: it comes back when it wants.
            pass
        finally:
            self._viewers -= 1
        return stream

    async def _send_all(self, stream: web.StreamResponse, given: str) -> None:
        feed, version = self._sources.feed, 0
        while True:
            news = await feed.after(version, self._beat)
            if not self._sources.accepts(given):
                await _send(stream, b"event: expired\ndata: {}\n\n")
                return
            if news:
                # Whatever came meanwhile, only the newest is sent.
                version = feed.version
                await _send(stream, b"id: %d\ndata: %s\n\n" % (version, feed.frame))
                await asyncio.sleep(min(_BETWEEN_FRAMES_SECONDS, self._beat))
            else:
                await _send(stream, b": alive\n\n")


async def _send(stream: web.StreamResponse, frame: bytes) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await stream.write(frame)


def _json(content: bytes) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=content, content_type="application/json", headers=headers)


def _refused(status: int, why: str) -> web.Response:
    headers = {"Cache-Control": "no-store", **access.HEADERS}
    if status == 405:
        headers["Allow"] = "GET, HEAD"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=status, text=why, headers=headers)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _span(request: web.Request) -> timedelta:
    raw = request.query.get("seconds", "3600")
    if not raw.isdecimal() or len(raw) > 9:
        raise _BadQuestion(f"expected seconds=NUMBER, found {raw[:50]!r}")
    return min(max(timedelta(seconds=int(raw)), _SPANS[0]), _SPANS[1])


def _time(raw: str | None) -> datetime | None:
    """Return a time that is given in milliseconds since 1970."""
    if raw is None:
        return None
    if not raw.isdecimal() or len(raw) > 14:
        raise _BadQuestion(f"expected end=MILLISECONDS, found {raw[:50]!r}")
    return datetime.fromtimestamp(int(raw) / 1000, UTC)


def _whole(raw: str | None, least: int, most: int) -> int:
    if raw is None:
        return least
    if not raw.isdecimal() or len(raw) > 9:
        raise _BadQuestion(f"expected a whole number, found {raw[:50]!r}")
    return min(max(least, int(raw)), most)


def _word(words: Any, raw: str | None) -> Any:
    if not raw:
        return None
    try:
        return words(raw)
    except ValueError:
        there_are = ", ".join(words)
        raise _BadQuestion(f"expected one of {there_are}, found {raw[:50]!r}") from None


@asynccontextmanager
async def serving(
    server: Server, host: str, port: int, names: tuple[str, ...]
) -> AsyncIterator[int]:
    """Yields the port that it listens on.

    Args:
        port: 0 for any free one.
        names: host names under which it is served beside the address itself.

    Raises:
        OSError: the address can't be listened on.
    """
    runner = web.AppRunner(
        server.application(), access_log=None, logger=http_log(__name__), shutdown_timeout=0.5
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        port = int(runner.addresses[0][1])
        server.hosts = access.hosts(host, port, names)
        yield port
    finally:
        await runner.cleanup()
