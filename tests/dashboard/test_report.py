"""The report of the past adds up what was kept, says why jobs lost, and needs no network."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.cli.main import main
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.model.change import Change, Kind
from volcano_elastic.dashboard.model.timeline import LEVELS
from volcano_elastic.dashboard.model.week import week
from volcano_elastic.dashboard.report_page import report_page
from volcano_elastic.database.database import milliseconds
from volcano_elastic.forecast.job_record import JobRecord

HOUR = timedelta(hours=1)
BEGIN = NOW - 10 * HOUR


def bucket(begin: datetime, held: float, idle_wanted: float = 0.0) -> dict[str, Any]:
    return {
        "t": milliseconds(begin),
        "ms": 3_600_000,
        "capacity": 4.0,
        "idle": 4.0 - held,
        "keptOut": 0.0,
        "idleWanted": idle_wanted,
        "queues": {"vision": [held, held / 2, 0, idle_wanted, None, None]},
    }


def vision(seconds: float, end: float | None, *, wait: float = 0.0, **more: Any) -> JobRecord:
    found = past_job("ann", seconds + wait, end, queue="vision")
    return replace(found, created=found.created - timedelta(seconds=wait), **more)


def test_hours_waits_and_goodput_are_added_up_by_queue() -> None:
    records = [
        vision(-7200, -3600, wait=60, spent={"productive_training": 90, "hang": 10}),
        vision(-7000, -3000, wait=600),
        vision(-6000, None, wait=1200),
    ]
    buckets = [bucket(BEGIN, 4, 0), bucket(BEGIN + HOUR, 2, 1)]
    found = week(BEGIN, NOW, buckets, records, [])
    (queue,) = found.queues
    assert (queue.held, queue.running, queue.idle_wanted, queue.jobs) == (6, 3, 1, 3)
    assert (queue.wait, queue.wait_p90, queue.goodput) == (600, 1200, 0.9)
    assert (found.capacity, found.idle_wanted, found.observed) == (8, 1, pytest.approx(0.2))
    assert found.all.held == 6 and found.replay is not None


def test_worst_jobs_say_why_they_lost() -> None:
    slow = vision(-7200, -3600, wait=7200, min=4, max=4)
    ms = 3_600_000
    hung = vision(-7100, -100, spent={"productive_training": ms, "hang": 3 * ms})
    failed = vision(-7000, -50, hours=30.0, outcome="Failed")
    waiting = replace(vision(-3600, None), started=None)
    change = Change(NOW, Kind.FAILED, failed.uid, failed.job, "vision", message="no <space> left")
    found = week(BEGIN, NOW, [], [slow, hung, failed, waiting, vision(-9, None)], [change])
    assert [(round(one.lost, 2), one.why) for one in found.worst] == [
        (30.0, ("failed after 30.00 GPU-hours: no <space> left",)),
        (8.0, ("waited 2.00 h for its minimum of 4",)),
        (3.0, ("of its time: hanging 75 %",)),
        (1.0, ("waited 1.00 h for its minimum of 1; it has not started",)),
    ]
    text = report_page(found, NOW)
    assert "no &lt;space&gt; left" in text and "<space>" not in text


def test_rigid_gangs_leave_idle_what_the_planner_gives() -> None:
    # A gang of three leaves a GPU idle that the other, which asked for two, can't start on.
    first = vision(-36_000, -32_400, min=1, max=4, asked=3)
    second = vision(-36_000, -32_000, min=1, max=4, asked=2, uid="second")
    found = week(BEGIN, NOW, [bucket(BEGIN, 4)], [first, second], [])
    assert found.saved is not None and found.saved > 0.2


def test_without_anything_the_report_says_so() -> None:
    found = week(BEGIN, NOW, [], [], [])
    text = report_page(found, NOW)
    assert "not replayed: no job is known to have run" in text
    assert "No job lost anything" in text and found.saved is None


def test_the_commands_read_what_a_dashboard_kept(tmp_path: Path) -> None:
    url, out = f"sqlite:///{tmp_path / 'page.db'}", tmp_path / "week.html"

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, [*arguments, "--database", url])

    empty = run("report", "--out", str(out))
    assert empty.exit_code == 2 and "run `volcano-elastic dashboard`" in empty.output
    assert run("report", "--since", "7w", "--out", str(out)).exit_code == 2
    now = datetime.now(UTC)
    shift = now - NOW
    history = History(url)
    begin = now - 5 * HOUR
    history.write([(LEVELS[-1].milliseconds, bucket(begin, 4))], [])
    ran = vision(-7200, -3600)
    moved = {name: getattr(ran, name) + shift for name in ("created", "started", "ended")}
    history.records.write([replace(ran, **moved)], now)
    history.close()
    said = run("report", "--since", "6h", "--out", str(out))
    assert (said.exit_code, said.output) == (0, f"written: {out}\n")
    text = out.read_text()
    assert "vision" in text and "http" not in text and "<script" not in text
    simulated = run("simulate", "--history", "--since", "6h", "--json")
    found = json.loads(simulated.output)
    assert (found["jobs"], found["gpus"], found["elastic"]) == (1, 4, "as each job says")
    assert found["figures"]["rigid"]["mean_completion"] == pytest.approx(3600, abs=1)
    wide = json.loads(run("simulate", "--history", "--nodes", "3", "--json").output)
    assert wide["gpus"] == 6, "three nodes for four GPUs"
    for wrong in (("--elastic", "min=1,max=2"), ("--trace", __file__)):
        assert run("simulate", "--history", *wrong).exit_code == 2
    assert run("simulate", "--nodes", "1", "--gpus-per-node", "1").exit_code == 2
