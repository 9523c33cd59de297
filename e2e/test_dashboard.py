"""The page beside a real training: what is held over time, each change with its reason, rounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from e2e.stage import Stage
from volcano_elastic.cli.dashboard import describe
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.program import Options, dashboard
from volcano_elastic.dashboard.token_list import TokenList
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.forecast.job_record import JobRecord

pytestmark = pytest.mark.e2e


@dataclass
class Viewer:
    """Reads the page's lists as its scripts do."""

    address: str
    session: aiohttp.ClientSession

    async def get(self, path: str) -> Any:
        url, _, token = self.address.partition("#token=")
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(f"{url}api/{path}", headers=headers) as answer:
            return await answer.json() if answer.status == 200 else None


@pytest.fixture
async def viewer(stage: Stage) -> AsyncIterator[Viewer]:
    tokens = TokenList(lambda: datetime.now(UTC))
    options = Options(database=f"sqlite:///{stage.out / 'page.db'}")
    async with (
        stage.cluster.client() as client,
        dashboard(client, tokens, options, describe) as address,
        aiohttp.ClientSession() as session,
    ):
        yield Viewer(address, session)


async def test_the_page_shows_a_training_with_every_reason(stage: Stage, viewer: Viewer) -> None:
    job = DemoJob("job", min=1, max=4, epochs=50, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 4, "job grows to 4")
    found: dict[str, Any] = {}

    async def look(what: str, path: str, holds: Any) -> None:
        for _ in range(600):
            found.clear()
            found.update(await viewer.get(path) or {})
            if found and holds(found):
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"{what}: {found}")

    await look("all GPUs are held and run", "overview", lambda o: o["running"] == 4)
    assert (found["idle"], found["idleWanted"]) == (0, 0)
    await look(
        "the round of four is told",
        "job?job=default/job",
        lambda j: ((j["description"] or {}).get("coordinator") or {}).get("world") == 4,
    )
    assert found["description"]["rounds"] and found["description"]["failures"] == []
    grown = [c for c in found["changes"] if c["kind"] == "Resized" and c["to"] == 4]
    assert [c["reason"] for c in grown] == ["GrewIntoIdle"] and grown[0]["message"]
    await look(
        "the picture has what was held",
        "timeline?seconds=600",
        lambda t: any(b["queues"].get("default", [0])[0] == 4 for b in t["buckets"]),
    )
    history = History(f"sqlite:///{stage.out / 'page.db'}")
    kept: list[JobRecord] = []
    for _ in range(300):
        kept = history.records.since(datetime.now(UTC))
        if kept and kept[0].started is not None:
            break
        await asyncio.sleep(0.1)
    history.close()
    (record,) = kept
    assert (record.job, record.min, record.max, record.ended) == ("default/job", 1, 4, None)
    assert record.started is not None and record.started >= record.created
