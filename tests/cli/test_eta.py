"""eta, on saved snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.world import FULL, WAITING, run, torch_job
from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.cli.eta import span
from volcano_elastic.dashboard.history.history import History


def test_eta_says_when_and_how_it_knows(saved: Any, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'page.db'}"
    asked = ("eta", "ns/b", "--snapshot", saved(WAITING), "--database", database)
    said = run(*asked)
    assert said.exit_code == 0, said.output
    assert "\n  starts  now\n" in said.output
    assert "no past jobs known: lengths are guessed" in said.output
    history = History(database)
    past = [past_job("ns", -40_000 + i, -40_000 + i + 600 + i) for i in range(30)]
    history.records.write(past, NOW)
    history.close()
    found = json.loads(run(*asked, "--json").output)
    assert found["basis"] == {"draws": 20, "share": 0.8, "pastJobs": 30, "saidByTraining": []}
    assert found["answers"] == {"counted": 0, "held": 0}
    (job,) = found["jobs"]
    assert job["job"] == "ns/b" and job["start"]["high"] == found["time"]
    assert found["time"] < job["end"]["low"] < job["end"]["middle"] < job["end"]["high"]


def test_eta_of_a_file_is_of_what_it_would_add(saved: Any, manifest: Any, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'page.db'}"
    asked = (manifest(torch_job("new", 1, 2)), "--snapshot", saved(FULL), "--database", database)
    found = json.loads(run("eta", *asked, "--json").output)
    assert [job["job"] for job in found["jobs"]] == ["ns/new"]
    again = (manifest(torch_job("a", 1, 4)), "--snapshot", saved(FULL), "--database", database)
    found = json.loads(run("eta", *again, "--json").output)
    assert [(job["job"], job["start"]) for job in found["jobs"]] == [("ns/a", None)]
    suspended = torch_job("new", 1, 2, runPolicy={"suspend": True})
    assert run("eta", manifest(suspended), *asked[1:]).exit_code == 2


def test_eta_goes_on_without_a_database_and_refuses_unknown_jobs(saved: Any) -> None:
    lost = ("--database", "sqlite:////nowhere/page.db", "--snapshot", saved(WAITING))
    said = run("eta", "b", *lost)
    assert said.exit_code == 0 and "Warning: without what the dashboard keeps" in said.stderr
    assert run("eta", "ghost", *lost).exit_code == 2


def test_times_are_said_in_their_two_largest_units() -> None:
    assert [span(s) for s in (0.2, 59, 61, 3600, 40_000, 90_000)] == [
        "now",
        "59 s",
        "1 min 1 s",
        "1 h",
        "11 h",
        "1 d 1 h",
    ]
