"""eta, on saved snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.world import FULL, WAITING, run, torch_job
from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.cli.eta import Told, answer, as_values, lines, span
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.snapshot.codec import Observation


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


def test_an_end_is_not_known_until_training_or_the_past_says_something_of_it() -> None:
    def told(past: int, **elastic: Any) -> Told:
        obj = torch_job("a", 1, 4)
        obj["metadata"] |= {
            "namespace": "ns",
            "uid": "u",
            "creationTimestamp": "2026-01-01T11:59:00Z",
        }
        running = {
            "type": "Running",
            "status": "True",
            "lastTransitionTime": "2026-01-01T11:59:30Z",
        }
        obj["status"] = {"conditions": [running], "elastic": elastic}
        ended = []
        for i in range(past):
            other = torch_job(f"past-{i}", 1, 1)
            made = {"uid": f"p{i}", "creationTimestamp": "2026-01-01T09:00:00Z", "namespace": "ns"}
            other["metadata"] |= made
            done = {"type": "Succeeded", "status": "True"}
            begun = {**running, "status": "False", "lastTransitionTime": "2026-01-01T10:00:00Z"}
            other["status"] = {"conditions": [begun, done]}
            other["status"]["completionTime"] = "2026-01-01T10:10:00Z"
            ended.append(other)
        return answer(Observation(NOW, FULL), ["ns/a"], [obj, *ended], None)

    early = told(0)
    assert as_values(early)["jobs"] == [{"job": "ns/a", "start": None, "end": None}]
    assert lines(early)[1:] == [
        "  starts  it runs already",
        "  ends    not known yet: its training has not said how much is left (no past jobs known)",
    ]
    progress = {"progressPercentage": 20, "estimatedRemainingSeconds": 24}
    progress["lastUpdatedTime"] = "2026-01-01T12:00:00Z"
    assert not told(0, progress=progress).unknown
    assert not told(12).unknown and told(11).unknown == {"ns/a"}


def test_times_are_said_in_their_two_largest_units() -> None:
    assert [span(s) for s in (0.2, 59, 61, 3600, 40_000, 90_000)] == [
        "now",
        "59 s",
        "1 min 1 s",
        "1 h",
        "11 h",
        "1 d 1 h",
    ]
