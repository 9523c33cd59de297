"""The experiments in a quick form: small generated workloads, the same code."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from elastic_trainer.data.audit import Report

from experiments import philly, pollux, seed, service
from experiments.__main__ import SECTIONS, main
from experiments.kept_runs import KeptRuns
from experiments.movielens import run as movielens
from experiments.source import MissingTraces, Source
from experiments.table import MissingMarkers, write_section
from experiments.trial import Scheduling, run

QUICK = Source(None)


def test_the_seed_experiment_meets_its_target_with_every_minimum_and_pause() -> None:
    text = seed.section(QUICK, processes=1)
    assert "| rigid gangs | 1,300 | 825 |" in text
    assert text.count(": met") == 5 and "missed" not in text


def test_the_service_never_waits_longer_than_the_grace_and_little_idles() -> None:
    text = service.section(QUICK, processes=1)
    assert text.count(": met") == 4 and "missed" not in text


def test_the_service_is_as_large_as_its_curve_says() -> None:
    pods = [job for job in service.jobs(7200) if job.queue == "service"]
    for minute, size in enumerate(service.sizes(length=7200)):
        at = 60 * minute
        assert sum(p.submit <= at < p.submit + p.work for p in pods) == size


def test_elastic_beats_rigid_and_no_bound_is_beaten() -> None:
    whole = pollux.base(QUICK)
    elastic = run(whole)
    rigid = run(replace(whole, scheduling=Scheduling.RIGID))
    assert elastic.bound.mean_completion < elastic.found.mean_completion
    assert elastic.found.mean_completion < rigid.found.mean_completion
    assert elastic.found.p99_wait <= 1 < rigid.found.p99_wait


def test_queues_do_no_worse_than_alone() -> None:
    result = run(replace(philly.base(QUICK, 24), compared=True))
    assert not result.than_static[0].queues and result.than_rigid[0].start_later == 0


def test_a_section_replaces_what_stood_there(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text("a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n")
    for _ in range(2):
        write_section(document, "x", "new\n")
    assert document.read_text() == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"
    with pytest.raises(MissingMarkers, match="begin y"):
        write_section(document, "y", "new")


def test_a_run_that_has_ended_is_not_repeated(tmp_path: Path) -> None:
    plan = movielens.Plan(Path("r"), movielens.Mode.LEASED, (2, 4), epochs=1, batch=8, every=8)
    audit = Report(1, 10, 10, 0, 0, 0, 0, 1, 1)
    made: list[object] = []

    def run(of: movielens.Plan) -> movielens.Outcome:
        made.append(of)
        return movielens.Outcome(((5, 0.5), (10, 0.6)), ((1, 2), (5, 4)), (0.2,), audit, 3.0)

    other = replace(plan, remark=", again")
    for one in (plan, other, plan):
        found = KeptRuns(tmp_path / "runs", movielens.Outcome.read).once(one, run)
        assert found == run(one) and made.pop() == one
    assert made == [plan, other]


def test_the_document_has_a_place_for_every_section() -> None:
    text = Path("docs/experiments.md").read_text()
    assert all(f"<!-- begin {name} -->" in text for name in SECTIONS)


def test_pictures_lie_where_the_text_says(tmp_path: Path) -> None:
    for name in ("seed", "service", "pollux", "philly", "right-sizing"):
        text = SECTIONS[name](QUICK, 1, tmp_path)
        listed = re.findall(r"!\[.+\]\(pictures/(.+\.png)\)", text)
        assert listed, name
        for file in listed:
            assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
            (tmp_path / file).unlink()
    assert not list(tmp_path.iterdir()), "none that no text shows"


def test_missing_traces_are_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingTraces, match="give their folder with --traces"):
        Source(tmp_path).pollux()
    monkeypatch.setattr(sys, "argv", ["experiments", "pollux", "--traces", str(tmp_path)])
    with pytest.raises(SystemExit, match="No such file or directory; the experiments need"):
        main()


def test_dealing_anew_gives_minimums_first_and_never_more_than_there_is() -> None:
    whole = pollux.base(QUICK)
    found = run(replace(whole, scheduling=Scheduling.REDEALT))
    assert found.found.p99_wait <= 60 and found.found.allocated_utilisation is not None
    starts = [one.start for one in found.first.runs]
    assert all(start % 60 == 0 for start in starts)
    elastic = run(whole)
    assert elastic.found.mean_wait < found.found.mean_wait
