"""The page as its server gives it: lists, streams, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.dashboard.opened import TOKEN, opened
from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.dashboard.access import HEADERS
from volcano_elastic.dashboard.answer_cache import AnswerCache
from volcano_elastic.dashboard.model.change import Change, Kind
from volcano_elastic.dashboard.server import FILES


async def test_lists_are_answered_with_what_the_model_says(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        assert (await page.get("/api/jobs"))[0] == 503, "nothing has been seen yet"
        assert (await page.get("/healthz"))[:2] == (503, b"waiting for pods")
        page.show(0, 1)
        page.show(4, 2)
        page.chronicle.changed(
            Change(NOW, Kind.RESIZED, "u", "ns/a", "default", 1, 2, "GrewIntoIdle", "idle")
        )
        assert (await page.get("/healthz"))[:2] == (200, b"ok")
        overview = await page.json("/api/overview")
        assert (overview["held"], overview["waitingJobs"]) == (2, 1)
        listed = await page.json("/api/jobs?state=Waiting")
        assert [row["job"] for row in listed["rows"]] == ["ns/huge"]
        assert (await page.json("/api/nodes?text=N"))["total"] == 1
        timeline = await page.json("/api/timeline?seconds=600")
        assert [b["queues"]["default"][0] for b in timeline["buckets"]] == [1, 1]
        found = await page.json("/api/changes?seconds=600&queue=default")
        assert [(c["job"], c["from"], c["to"], c["message"]) for c in found["changes"]] == [
            ("ns/a", 1, 2, "idle")
        ]
        ((part, kind, direction, count),) = found["counts"]
        assert (kind, direction, count) == ("Resized", 1, 1)
        asked = f"/api/changes?seconds=600&end={found['end']}&part={part}"
        assert len((await page.json(asked))["changes"]) == 1
        assert (await page.json(f"{asked[:-2]}1"))["changes"] == []
        shown = await page.json("/api/job?job=ns/a")
        assert shown["events"][0]["reason"] == "NodeLost" and len(shown["changes"]) == 1
        assert (await page.get("/api/job?job=ns/ghost"))[0] == 404
        asked = "/api/what-if?into=default&min=2&max=2&each=1"
        assert (await page.json(asked))["newcomer"]["starts"]


async def test_what_if_is_asked_of_what_the_database_has_of_the_past(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        page.show(0, 1)
        status, body, _ = await page.get("/api/what-if?since=86400&nodes=1")
        assert status == 400 and b"found none on record" in body
        page.chronicle.recorded(past_job("a", -7200, -3600, least=2, most=4))
        page.chronicle.recorded(past_job("b", -7000, None, least=3, most=3))
        # The same question within two seconds has the same answer.
        found = await page.json("/api/what-if?since=86400&queue=default&capability=4")
        assert (found["jobs"], found["capacity"]) == (2, [4, 4])
        assert found["end"] - found["begin"] == 86_400_000
        assert [one["name"] for one in found["queues"]] == ["default"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/timeline?seconds=-1",
        "/api/timeline?seconds=9999999999",
        "/api/jobs?state=Sad",
        "/api/jobs?page=x",
        "/api/job",
        "/api/changes?end=tomorrow",
        "/api/what-if?into=ghost",
        "/api/what-if?nodes=many",
    ],
)
async def test_a_question_that_makes_no_sense_says_what_was_expected(
    tmp_path: Path, path: str
) -> None:
    async with opened(tmp_path) as page:
        page.show(0, 1)
        status, body, _ = await page.get(path)
        assert (status, body[:9]) == (400, b"expected ")


async def test_files_are_those_of_the_page_and_no_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        for file in FILES.iterdir():
            status, body, headers = await page.get(f"/page/{file.name}", Authorization="")
            assert (status, body) == (200, file.read_bytes())
            assert {name: headers[name] for name in HEADERS} == HEADERS
        assert (await page.get("/", Authorization=""))[1] == (FILES / "index.html").read_bytes()
        host = page.url.partition("//")[2]
        for path in (
            "/page/../server.py",
            "/page/%2e%2e/server.py",
            "/page/..%2fserver.py",
            "//etc/passwd",
            "/page/",
            "/page/app.js/",
            "/page/app.js%00.html",
            "//api/jobs",
            "/page/%2e%2e/api/jobs",
        ):
            # As it stands: clients would tidy it up.
            reader, writer = await asyncio.open_connection(*host.split(":"))
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
            assert answer.split(maxsplit=2)[1] in (b"404", b"400"), (path, answer)


async def test_strangers_and_oversized_requests_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as page:
        page.show(0, 1)
        for expected, headers in (
            (401, {"Authorization": "Bearer wrong"}),
            (403, {"Origin": "https://evil.example"}),
            (403, {"Sec-Fetch-Site": "cross-site"}),
            (421, {"Host": "evil.example"}),
        ):
            status, body, answered = await page.get("/api/overview", **headers)
            assert status == expected and b"held" not in body
            assert "Access-Control-Allow-Origin" not in answered
            assert answered["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
        authorized = {"Authorization": f"Bearer {TOKEN}"}
        for method, body, expected in (("POST", b"", 405), ("GET", b"x" * 100_000, 413)):
            async with page.session.request(
                method, f"{page.url}/api/jobs", data=body, headers=authorized
            ) as answer:
                assert answer.status == expected
        assert (await page.get("/api/jobs?text=" + "x" * 2000))[0] == 414
        assert (await page.get("/api/%6aobs", Authorization=""))[0] == 401
        assert (await page.get("/api/jobs", **{"X-Large": "x" * 20_000}))[0] == 400
        assert caplog.records == [], "nobody fills the log"


async def frames(stream: aiohttp.ClientResponse) -> AsyncIterator[str]:
    rest = ""
    async for chunk in stream.content.iter_any():
        *whole, rest = (rest + chunk.decode()).split("\n\n")
        for frame in whole:
            yield frame


async def test_a_stream_brings_the_newest_page_and_ends_with_its_token(tmp_path: Path) -> None:
    async with opened(tmp_path, beat=0.05) as page:
        page.show(0, 1)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with page.session.get(f"{page.url}/api/stream", headers=headers) as stream:
            assert stream.status == 200 and stream.content_type == "text/event-stream"
            told = frames(stream)
            first = await anext(told)
            assert json.loads(first.partition("data: ")[2])["held"] == 1
            for held in (2, 3, 4):
                page.show(held, held)
            seen = []
            async for frame in told:
                if "data: " in frame:
                    seen.append(json.loads(frame.partition("data: ")[2])["held"])
                if seen and seen[-1] == 4:
                    break
            assert seen == [4], "what came meanwhile is not sent"
            page.tokens.clear()
            rest = [frame async for frame in told]
            assert rest[-1].startswith("event: expired")
            assert all(frame.startswith(":") for frame in rest[:-1])
        assert (await page.get("/api/stream"))[0] == 401


async def test_many_viewers_of_a_job_cost_as_much_as_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        page.show(0, 1)
        await asyncio.gather(*(page.json("/api/job?job=ns/a") for _ in range(20)))
        assert page.asked == ["ns/a"]


async def test_an_answer_that_failed_is_asked_for_again() -> None:
    tries, cache = [0], AnswerCache(60.0, 1, lambda: 0.0)

    async def work() -> bytes:
        tries[0] += 1
        if tries[0] == 1:
            raise ValueError("once")
        return b"well"

    with pytest.raises(ValueError, match="once"):
        await cache.get("key", work)
    assert await cache.get("key", work) == b"well" == await cache.get("key", work)
    assert tries == [2]
    await cache.close()


async def test_what_was_seen_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as page:
        running = asyncio.create_task(page.chronicle.run())
        await asyncio.sleep(0)
        page.show(0, 1)
        page.show(4, 2)
        page.chronicle.changed(Change(NOW, Kind.ARRIVED, "u", "ns/a", "default"))
        page.chronicle.recorded(past_job("ann", -60, None))
        await page.json("/api/changes")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    async with opened(tmp_path) as page:
        running = asyncio.create_task(page.chronicle.run())
        page.show(8, 3)
        page.show(10, 3)
        # The database is asked in turn: what was there is loaded by then.
        assert len((await page.json("/api/changes"))["changes"]) == 1
        found = await page.json("/api/timeline?seconds=601")
        assert [b["queues"]["default"][0] for b in found["buckets"]] == [1, 1, 3]
        known = await page.chronicle.ask(lambda history: history.records.since(NOW), [])
        assert known == [past_job("ann", -60, None)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_without_its_database_the_page_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "nowhere") as page:
        page.show(0, 1)
        page.show(4, 2)
        page.chronicle.changed(Change(NOW, Kind.ARRIVED, "u", "ns/a", "default"))
        assert (await page.json("/api/changes"))["changes"] == []
        assert len((await page.json("/api/timeline"))["buckets"]) == 2
        (tmp_path / "nowhere").mkdir()
        assert len((await page.json("/api/changes?seconds=601"))["changes"]) == 1
