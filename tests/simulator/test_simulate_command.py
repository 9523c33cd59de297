"""`volcano-elastic simulate`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from volcano_elastic.cli.main import main

TRACE = "job,submit_s,queue,gpus,duration_s\n" + "".join(
    f"{i},{60 * i},{'qr'[i % 2]},{1 + i % 4},{300 + 50 * i}\n" for i in range(12)
)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["simulate", "--nodes", "2", "--gpus-per-node", "4", *args])
    return result.exit_code, result.output


@pytest.mark.parametrize("harm", [lambda raw: raw[:40], lambda raw: raw[:20] + b"\xff" * 20])
def test_a_damaged_file_is_named(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    trace = tmp_path / "t.csv.gz"
    trace.write_bytes(harm(gzip.compress(TRACE.encode())))
    code, text = run("--trace", str(trace))
    assert code == 2
    assert f"{trace}: " in text and "give a readable file" in text


def test_the_command_prints_every_figure_beside_its_bound(tmp_path: Path) -> None:
    trace, queues, policy = tmp_path / "t.csv.gz", tmp_path / "q.csv", tmp_path / "p.yaml"
    trace.write_bytes(gzip.compress(TRACE.encode()))
    queues.write_text("queue,deserved\nq,4\nr,4\n")
    policy.write_text("spec: {grow: {cooldownSeconds: 30}}\n---\nspec: {queue: q, mode: Hold}\n")
    args = ["--trace", str(trace), "--queues", str(queues), "--policy", str(policy)]
    args += ["--elastic", "min=ceil(gpus/4),max=8"]
    code, text = run(*args, "--out", str(tmp_path / "out"))
    assert code == 0, text
    for word in ("mean completion", "99th", "makespan", "useful", "idle while wanted", "resizes"):
        assert word in text
    assert "than rigid + backfill" in text and "than static shares" in text
    page = (tmp_path / "out" / "index.html").read_text()
    assert "data:image/png;base64," in page and 'src="http' not in page
    assert len((tmp_path / "out" / "jobs.csv").read_text().splitlines()) == 13
    code, text = run(*args, "--json")
    found = json.loads(text)
    assert set(found["figures"]) == {"elastic", "rigid", "static", "bound"}
    assert (
        found["figures"]["bound"]["mean_completion"]
        <= (found["figures"]["elastic"]["mean_completion"])
    )


def test_the_command_simulates_rigid_scheduling_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    code, text = run("--trace", str(tmp_path / "t.csv"), "--rigid", "--json")
    found = json.loads(text)
    assert code == 0 and set(found["figures"]) == {"rigid", "bound"} and "plans" not in found


def test_the_command_runs_each_workload_by_itself(tmp_path: Path) -> None:
    rows = TRACE.splitlines()
    text = "workload," + rows[0] + "\n"
    text += "".join(f"{w},{row}\n" for w in (1, 2) for row in rows[1:5])
    (tmp_path / "t.csv").write_text(text)
    code, out = run("--trace", str(tmp_path / "t.csv"), "--elastic", "min=1,max=4", "--json")
    found = json.loads(out)
    assert code == 0 and found["jobs"] == 8 and set(found["byWorkload"]) == {"1", "2"}
    code, out = run("--trace", str(tmp_path / "t.csv"), "--workload", "3")
    assert code == 2 and "expected one of 1, 2, found 3" in out


@pytest.mark.parametrize(
    ("file", "text", "args", "complaint"),
    [
        ("t.csv", "submit_s,gpus,duration_s\n1,1,x\n", [], "line 2: expected duration_s"),
        ("t.csv", TRACE, ["--elastic", "min=1"], "expected min=EXPRESSION"),
        ("t.csv", TRACE, ["--speed-model", "x"], "expected amdahl:S"),
        ("t.csv", "\x1f\x8b", [], "give a readable file"),
    ],
)
def test_what_cannot_be_used_is_said_with_exit_code_2(
    tmp_path: Path, file: str, text: str, args: list[str], complaint: str
) -> None:
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    code, out = run("--trace", str(tmp_path / file), *args)
    assert code == 2 and complaint in out, out


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    monkeypatch.setattr("volcano_elastic.cli.simulate.compare", None)
    code, out = run("--trace", str(tmp_path / "t.csv"), "--out", str(tmp_path / "t.csv" / "x"))
    assert code == 2 and "Not a directory; give a folder to write to" in out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("spec: {mode: Sometimes}", "document 1: spec.mode: must be one of"),
        ("---\n---\nspec: {growth: {maxStep: 1}}", "document 2: spec.growth: is not a field"),
        ("grow: {maxStep: 1}", "document 1: expected a QueuePolicy with a spec, found \"{'grow'"),
        ("kind: Queue\nspec: {weight: 1}", "document 1: kind: expected QueuePolicy, found 'Queue'"),
        ("speck: 1\nspec: {}", "document 1: speck is not a field; there are apiVersion, kind"),
        ("spec: {queue: q}\n---\nspec: {queue: q}", "document 2: spec.queue: q has a policy in"),
        ("spec: {}\n---\nspec: {}", "document 2: spec.queue: expected a queue, since"),
        ("spec: [", "p.yaml is not YAML: "),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_place(
    text: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    (tmp_path / "p.yaml").write_text(text)
    code, out = run("--trace", str(tmp_path / "t.csv"), "--policy", str(tmp_path / "p.yaml"))
    assert code == 2 and complaint in out


def test_queues_that_are_not_in_both_files_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    (tmp_path / "p.yaml").write_text("spec: {queue: elsewhere}\n")
    code, out = run("--trace", str(tmp_path / "t.csv"), "--policy", str(tmp_path / "p.yaml"))
    assert code == 0 and "p.yaml, document 1: no job of the trace is in queue elsewhere" in out
    (tmp_path / "q.csv").write_text("queue,deserved\nq,8\n")
    code, out = run("--trace", str(tmp_path / "t.csv"), "--queues", str(tmp_path / "q.csv"))
    assert code == 2 and "found no r" in out
