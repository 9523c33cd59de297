"""plan and replay, on saved snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.cli.world import FULL, WAITING, A, run
from tests.queue_policy.world import GPU, NOW, gpus, job
from volcano_elastic.snapshot.snapshot import Pod, Snapshot


def test_plan_shows_who_gives_what_to_whom(saved: Any) -> None:
    said = run("plan", "--snapshot", saved(WAITING))
    assert said.exit_code == 0
    (line,) = [line for line in said.output.splitlines() if line.startswith("ns/a")]
    assert "4 → 2  ShrunkForMinimum  b needs 2 GPUs to start" in line
    assert line.rstrip().endswith("leaving: a-worker-3, a-worker-2")
    assert "\x1b" not in said.output


def test_plan_json_has_the_documented_fields(saved: Any) -> None:
    said = run("plan", "--json", "--snapshot", "-", text=saved(WAITING).read_text())
    found = json.loads(said.output)
    (decision,) = found["decisions"]
    assert decision.pop("message").startswith("b needs 2 GPUs")
    assert decision == {
        "job": "ns/a",
        "from": 4,
        "to": 2,
        "reason": "ShrunkForMinimum",
        "pods": ["ns/a-worker-3", "ns/a-worker-2"],
        "protect": [],
        "dryRun": False,
    }
    assert (found["time"], found["blocked"]) == ("2026-01-01T12:00:00.000000Z", [])
    (figures,) = found["queues"]
    assert figures == {
        "queue": "default",
        "resource": GPU,
        "free": "0",
        "guaranteed": "1",
        "surplus": "3",
        "borrowed": "0",
        "owedToMinimums": "2",
        "jobs": 2,
        "problem": None,
    }


def test_a_pod_that_finds_no_room_is_shown_and_is_no_failure(saved: Any) -> None:
    web = Pod("shop/web-0", "w", gpus(1), created=NOW, unschedulable_since=NOW)
    file = saved(replace(FULL, jobs=(replace(A, priority=1),), pods=(*FULL.pods, web)))
    said = run("plan", "--snapshot", file)
    assert (said.exit_code, "pod shop/web-0" in said.output) == (0, True)
    found = json.loads(run("plan", "--json", "--snapshot", file).output)
    assert [entry["pod"] for entry in found["blockedPods"]] == ["shop/web-0"]
    assert "pod shop/web-0" in run("replay", file.parent).output


def test_plan_exits_with_1_when_a_minimum_cannot_start(saved: Any) -> None:
    file = saved(replace(FULL, jobs=(A, job("huge", 9, 9))))
    said = run("plan", "--snapshot", file)
    assert said.exit_code == 1
    assert "ns/huge" in said.output and "Blocked" in said.output
    found = json.loads(run("plan", "--json", "--snapshot", file).output)
    assert [entry["job"] for entry in found["blocked"]] == ["ns/huge"]
    assert [entry["job"] for entry in found["unchanged"]] == ["ns/a"]


def test_plan_of_nothing_says_so(saved: Any) -> None:
    assert "nothing to decide" in run("plan", "--snapshot", saved(Snapshot())).output


# replay


def test_replay_plans_each_snapshot_in_the_order_of_time(saved: Any, tmp_path: Path) -> None:
    saved(WAITING, "1.json", timedelta(hours=1))
    saved(FULL, "2.json")
    lines = run("replay", tmp_path).output.splitlines()[1:]
    assert lines[0].startswith("2026-01-01T12:00:00+00:00") and "no change" in lines[0]
    assert lines[1].startswith("2026-01-01T13:00:00+00:00") and "4 → 2" in lines[1]
    said = [json.loads(line) for line in run("replay", tmp_path, "--json").output.splitlines()]
    assert [(entry["file"], len(entry["decisions"])) for entry in said] == [
        ("2.json", 0),
        ("1.json", 1),
    ]
    (tmp_path / "3.json").write_text("{}")
    broken = run("replay", tmp_path)
    assert broken.exit_code == 2 and "3.json: expected a snapshot" in broken.stderr


def test_replay_of_no_snapshots_is_refused(tmp_path: Path) -> None:
    assert run("replay", tmp_path / "none").exit_code == 2
