"""The page in headless Chromium: by keyboard, on narrow and dark screens, without an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.dashboard.browser import NotInstalled, Tab, chromium
from tests.dashboard.opened import TOKEN, Opened, opened
from tests.forecast.world import past_job
from volcano_elastic.cli.describe import description
from volcano_elastic.dashboard.model.change import Change, Kind

pytestmark = pytest.mark.process
GREW = "2 GPUs are idle and nobody waits for them"
OBJECT = {"metadata": {"name": "a", "namespace": "ns"}, "status": {}}
TOLD = {
    "round": 3,
    "phase": "running",
    "world": 2,
    "step": 70,
    "steps_per_second": 5.0,
    "committed_step": 60,
    "metrics": {"loss": "0.31"},
    "tables": {
        "items": {
            "rows": 1234,
            "bytes": 2_000_000,
            "admitted": 1300,
            "evicted": 66,
            "updated": 9000,
            "updated_per_second": 450.0,
            "hot_ids": [-(2**63), 7],
            "hot_share": [0.25, 0.125],
            "holders": 2,
            "skew": 1.5,
        }
    },
    "rounds": [
        {
            "round": 3,
            "world": 2,
            "time": 1_700_000_000.0,
            "reason": "a worker joined",
            "pause_seconds": 0.125,
            "first_step": 61,
            "last_step": 70,
        }
    ],
    "hangs": [
        {
            "round": 2,
            "step": 50,
            "time": 1_700_000_000.0,
            "seconds": 60.0,
            "broken": True,
            "behind": [1],
            "words": "rank 1 is behind",
            "stacks": [{"ranks": [1], "stack": "in read"}],
            "flights": [{"rank": 1, "record": "x"}],
        }
    ],
    "failures": [
        {
            "round": 2,
            "worker": 1,
            "rank": 1,
            "localRank": 0,
            "pid": 7,
            "exitCode": 1,
            "signal": None,
            "message": "<img src=x onerror=alert(1)>",
            "stack": "Traceback",
            "time": 1_700_000_000.0,
            "log": None,
        }
    ],
}


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    try:
        async with chromium() as found:
            yield found
    except NotInstalled as reason:
        pytest.skip(f"the page is not looked at in a browser: {reason}")


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(tmp_path, clock=now) as found:
        began = now() - timedelta(seconds=30)
        for seconds, held in ((0, 1), (10, 2), (30, 2)):
            found.show(seconds, held, began)
        for seconds, new in ((10, 2), (20, 4)):
            time = began + timedelta(seconds=seconds)
            why = GREW if new == 2 else "for another reason"
            grew = Change(time, Kind.RESIZED, "u", "ns/a", "default", 1, new, "GrewIntoIdle", why)
            found.chronicle.changed(grew)
        found.description.update(description(OBJECT, [], TOLD, None))
        yield found


async def test_each_change_leads_to_its_reason_by_keyboard(tab: Tab, page: Opened) -> None:
    await tab.look(1280, 900)
    await tab.open(f"{page.url}/#token={TOKEN}")
    await tab.until("document.querySelectorAll('.part').length === 2", "both changes are marked")
    assert TOKEN not in await tab.evaluate("location.href")
    await tab.evaluate("document.querySelector('.part[tabindex=\"0\"]').focus()")
    await tab.press("Home", 36)
    await tab.press("Enter", 13)
    reasons = "[...document.querySelectorAll('section .why')].map((one) => one.textContent)"
    only = f"{reasons}.length === 1 && {reasons}[0].includes('{GREW}')"
    await tab.until(only, "the first one's reason, and no other")
    page.show(0, 3, now())
    held = "[...document.querySelectorAll('.tile')].some((one) => one.innerText === '3\\nheld')"
    await tab.until(held, "news are shown as they come")
    focus = "document.activeElement.classList.contains('part')"
    assert await tab.evaluate(focus), "the focus stays where it is"
    assert tab.errors == []


async def test_all_views_fit_narrow_and_dark_screens(tab: Tab, page: Opened) -> None:
    await tab.look(390, 800, dark=True)
    await tab.open(f"{page.url}/#token={TOKEN}")
    await tab.until("document.querySelector('.chart path')", "the picture")
    dark = "getComputedStyle(document.body).backgroundColor"
    assert await tab.evaluate(dark) == "rgb(20, 23, 28)"
    for view, shown in (
        ("", "Who waits"),
        ("queue/default", "ns/huge"),
        ("jobs", "ns/huge"),
        ("nodes", "1 node"),
        ("job/ns/a", "a worker joined"),
        ("job/ns/a", "loss 0.31"),
        ("job/ns/a", "-9223372036854775808 25 %"),
        ("job/ns/a", "Goodput 90 %"),
        ("job/ns/a", "rank 1 is behind"),
    ):
        await tab.evaluate(f"location.hash = '#/{view}'")
        await tab.until(f"document.body.innerText.includes('{shown}')", f"view {view}: {shown}")
        wide = await tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"view {view} is wider than the screen"
    assert await tab.evaluate("document.querySelector('main img') === null"), "text stays text"
    assert tab.errors == []


async def test_the_form_says_what_the_planner_would_do(tab: Tab, page: Opened) -> None:
    await tab.look(390, 800)
    await tab.open(f"{page.url}/#token={TOKEN}")
    await tab.until("document.querySelector('.chart path')", "the picture")
    await tab.evaluate("location.hash = '#/what-if'")
    await tab.until("document.querySelector('input[name=min]')", "the form")
    await tab.evaluate("document.querySelector('input[name=min]').value = 2")
    await tab.evaluate("document.querySelector('form button').click()")
    starts = "document.body.innerText.includes('The job would start with 2 workers')"
    await tab.until(starts, "the planner's answer")
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.errors == []


async def test_the_form_says_what_yesterday_would_have_brought(tab: Tab, page: Opened) -> None:
    for user, start in (("a", -7200), ("b", -7100)):
        began = now() + timedelta(seconds=start)
        one = past_job(user, 0, None, least=3, most=3)
        ended = began + timedelta(seconds=3000)
        page.chronicle.recorded(replace(one, created=began, started=began, ended=ended))
    await tab.look(390, 800)
    await tab.open(f"{page.url}/#token={TOKEN}")
    await tab.until("document.querySelector('.chart path')", "the picture")
    await tab.evaluate("location.hash = '#/what-if'")
    await tab.until("document.querySelector('select[name=since]')", "the form")
    await tab.evaluate("document.querySelector('select[name=since]').focus()")
    await tab.press("ArrowDown", 40)
    await tab.until("document.querySelector('input[name=hours]')", "how long the newcomer lasts")
    await tab.evaluate("document.querySelector('input[name=nodes]').value = 1")
    await tab.evaluate("document.querySelector('form button').click()")
    answered = "document.body.innerText.includes('on 4 → 8 GPUs')"
    await tab.until(answered, "the replay's answer")
    moved = "document.body.innerText.includes('b/job waits 48 min → ')"
    assert await tab.evaluate(moved), await tab.evaluate("document.body.innerText")
    assert await tab.evaluate("document.querySelector('select[name=since]').value === '86400'")
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.errors == []


async def test_without_its_token_the_page_asks_for_one(tab: Tab, page: Opened) -> None:
    await tab.open(page.url)
    await tab.until("document.querySelector('input[name=token]')", "a field for the token")
    set_token = f"document.querySelector('input[name=token]').value = '{TOKEN}'"
    await tab.evaluate(f"{set_token}; document.querySelector('form button').click()")
    await tab.until("document.querySelector('.tile')", "the page")
    page.tokens.clear()
    await tab.evaluate("location.hash = '#/jobs'")
    await tab.until("document.querySelector('input[name=token]')", "its token has ended")
