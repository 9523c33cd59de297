"""The simulator: work is conserved, nothing overlaps, and the same planner decides."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from volcano_elastic.api.queue_policy import GPU, Grow, QueuePolicy, Rebalance
from volcano_elastic.cli.main import main
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.simulator.comparison import compare
from volcano_elastic.simulator.config import Discipline, SimulationConfig, Speeds
from volcano_elastic.simulator.curve import (
    Curve,
    CurveError,
    amdahl,
    parse_model,
    read_table,
)
from volcano_elastic.simulator.elasticity import (
    DEFAULT,
    Elasticity,
    ElasticityError,
    Range,
)
from volcano_elastic.simulator.figures import figures, held_over_time, limits
from volcano_elastic.simulator.outcome import Outcome, Stuck
from volcano_elastic.simulator.queue import QueueError, partitioned, read_queues
from volcano_elastic.simulator.row import RowError
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.simulator.trace import TraceError, TraceJob, read_trace
from volcano_elastic.simulator.worse_off import worse_off
from volcano_elastic.snapshot.snapshot import Queue, Snapshot

LINEAR = amdahl(0.0, 512)
CALM = QueuePolicy("default", grow=Grow(), rebalance=Rebalance(gap=0))
SMALL = SimulationConfig(2, 4, pause=30.0)


def job(
    name: str,
    submit: float,
    gpus: int,
    seconds: float,
    least: int | None = None,
    most: int | None = None,
    *,
    queue: str = "default",
    curve: Curve = LINEAR,
) -> TraceJob:
    work = seconds * curve[gpus]
    return TraceJob(name, queue, submit, gpus, work, curve, least or gpus, most or gpus)


def times(outcome: Outcome) -> dict[str, tuple[float, float]]:
    return {run.job.name: (run.start, run.finish) for run in outcome.runs}


# Rigid scheduling


def test_a_gang_that_fits_overtakes_one_that_does_not() -> None:
    jobs = [job("a", 0, 6, 100), job("b", 10, 4, 100), job("c", 20, 2, 100)]
    assert times(simulate(jobs, SMALL, None)) == {
        "a": (0, 100),
        "b": (100, 200),
        "c": (20, 120),
    }


def test_in_strict_order_nobody_overtakes() -> None:
    jobs = [job("a", 0, 6, 100), job("b", 10, 4, 100), job("c", 20, 2, 100)]
    config = replace(SMALL, discipline=Discipline.FIFO)
    assert times(simulate(jobs, config, None))["c"] == (100, 200)


def test_a_queue_confined_to_its_share_waits_though_others_idle() -> None:
    queues = partitioned([Queue("q", deserved={GPU: 4000}), Queue("r", deserved={GPU: 4000})])
    jobs = [job("a", 0, 4, 100, queue="q"), job("b", 0, 4, 100, queue="q")]
    found = times(simulate(jobs, replace(SMALL, queues=queues), None))
    assert sorted(found.values()) == [(0, 100), (100, 200)]


def test_a_job_too_large_for_its_queue_is_named_and_nothing_hangs() -> None:
    queues = (Queue("q", capability={GPU: 2000}),)
    jobs = [job("big", 0, 4, 100, 3, 4, queue="q"), job("ok", 0, 1, 10, queue="q")]
    for planner in (None, plan):
        with pytest.raises(Stuck, match="first of them big"):
            simulate(jobs, replace(SMALL, queues=queues), planner)


# Elastic jobs under the planner


def test_a_job_alone_starts_at_its_max() -> None:
    [run] = simulate([job("a", 0, 2, 400, 2, 8)], SMALL, plan).runs
    assert (run.start, run.finish, run.resizes) == (0, 100, 0)


def test_who_grows_pays_one_pause() -> None:
    jobs = [job("rigid", 0, 6, 100), job("a", 0, 2, 400, 2, 8)]
    run = simulate(jobs, SMALL, plan).runs[1]
    grown = run.segments[1].begin
    assert run.start == 0 and 100 <= grown <= 102 and run.resizes == 1
    assert run.finish == pytest.approx(grown + 30 + (800 - 2 * grown) / 8)


def test_a_newcomer_starts_at_once_and_surplus_leaves() -> None:
    jobs = [job("old", 0, 4, 2000, 2, 8), job("new", 500, 4, 100)]
    found = {run.job.name: run for run in simulate(jobs, SMALL, plan).runs}
    assert found["new"].wait == 0
    assert [part.size for part in found["old"].segments][:2] == [8, 4]


def test_a_newcomer_waits_for_the_grace_of_those_who_leave() -> None:
    jobs = [job("old", 0, 4, 2000, 2, 8), job("new", 500, 4, 100)]
    found = simulate(jobs, replace(SMALL, grace=20.0), plan)
    assert {run.job.name: run.wait for run in found.runs}["new"] == 20
    assert found.leaving == 20 * 4


def test_growth_waits_for_the_cooldown() -> None:
    jobs = [job("old", 0, 4, 4000, 2, 8), job("other", 0, 4, 500), job("late", 495, 4, 3)]
    policy = replace(CALM, grow=replace(CALM.grow, cooldown=timedelta(minutes=5)))
    config = replace(SMALL, policies=(policy,))
    changes = [part.begin for part in simulate(jobs, config, plan).runs[0].segments]
    assert all(later - earlier >= 300 for earlier, later in pairwise(changes[1:]))


@pytest.mark.parametrize("least", [44, 150])
def test_the_seed_experiment_ends_within_three_percent_of_the_oracle(least: int) -> None:
    jobs = [job(n, t, 175, 650, least, 175) for n, t in (("older", 0.0), ("newer", 300.0))]
    config = SimulationConfig(20, 16, resource="cpu", pause=0.0)
    assert figures(simulate(jobs, config, None), 1300).makespan == 1300
    elastic = simulate(jobs, config, plan)
    assert figures(elastic, 1300).makespan <= 1.03 * 1010
    assert max(run.wait for run in elastic.runs) <= 1


@pytest.mark.parametrize(("hours", "deserved"), [(6, 8), (16, 8), (8, 16), (8, 24)])
def test_many_small_jobs_beside_few_large_ones_are_no_worse_off_than_rigid(
    hours: int, deserved: int
) -> None:
    """Rigid, all run at once. What the large ones' queue deserves lets them grow fourfold, which
    must not bring the small ones back to their minimums meanwhile."""
    curve = amdahl(0.036, 64)
    shares = {"few": 64 - deserved, "many": deserved}
    queues = tuple(Queue(name, deserved={GPU: 1000 * gpus}) for name, gpus in shares.items())
    config = SimulationConfig(8, 8, queues=queues)
    jobs = [
        job(f"large-{n}", 0, 8, 3600 * hours, 2, 32, queue="few", curve=curve) for n in range(3)
    ] + [job(f"small-{n}", 100, 4, 10_000, 1, 16, queue="many", curve=curve) for n in range(10)]
    outcome, rigid = simulate(jobs, config, Planner().plan), simulate(jobs, config, None)
    assert all(ratio <= 1.1 for ratio in worse_off(outcome, rigid).queues.values())


def test_the_planner_sees_pods_speeds_and_hours() -> None:
    seen: list[Snapshot] = []

    def look(snapshot: Snapshot, now: datetime) -> Plan:
        seen.append(snapshot)
        return plan(snapshot, now)

    jobs = [job("a", 0, 4, 12000, 2, 8), job("b", 5000, 1, 10)]
    simulate(jobs, SMALL, look)
    last = [snapshot for snapshot in seen if len(snapshot.jobs) == 2][-1]
    a = next(one for one in last.jobs if one.key == "a")
    assert a.speeds[8] == 8 and a.gpu_hours >= 10
    assert sum(pod.job == "a" and pod.node is not None for pod in last.pods) == 7
    assert sum(pod.protected for pod in last.pods if pod.job == "a") == 2


def test_speeds_are_learnt_size_by_size() -> None:
    seen: list[set[int]] = []

    def look(snapshot: Snapshot, now: datetime) -> Plan:
        seen.append({size for one in snapshot.jobs for size in one.speeds})
        return plan(snapshot, now)

    jobs = [job("a", 0, 4, 8000, 2, 8), job("b", 1000, 1, 10)]
    simulate(jobs, replace(SMALL, speeds=Speeds.LEARNT), look)
    assert seen[0] == set() and {7, 8} <= set().union(*seen)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    made = []
    for i in range(draw(st.integers(1, 8))):
        gpus = draw(st.integers(1, 8))
        least, most = draw(st.integers(1, gpus)), draw(st.integers(gpus, 8))
        made.append(
            job(
                f"j{i}",
                draw(st.integers(0, 600)),
                gpus,
                draw(st.integers(1, 900)),
                least,
                most,
                queue=draw(st.sampled_from(["q", "r"])),
                curve=amdahl(draw(st.sampled_from([0.0, 0.04, 0.4])), 8),
            )
        )
    return made


@given(
    traces(),
    st.sampled_from([0.0, 5.0, 60.0]),
    st.sampled_from([0.0, 10.0]),
    st.sampled_from([plan, None]),
    st.sampled_from(list(Speeds)),
)
@settings(max_examples=60, deadline=None)
def test_work_is_conserved_rooms_is_never_exceeded_and_no_bound_beaten(
    jobs: list[TraceJob], pause: float, grace: float, planner: object, speeds: Speeds
) -> None:
    config = SimulationConfig(2, 4, pause=pause, grace=grace, speeds=speeds)
    if planner is None:
        jobs = [replace(one, min=one.gpus, max=one.gpus) for one in jobs]
    outcome = simulate(jobs, config, planner)  # type: ignore[arg-type]
    for run in outcome.runs:
        done = sum(
            run.job.curve[part.size] * (part.end - part.begin - part.standstill)
            for part in run.segments
        )
        assert done == pytest.approx(run.job.work)
        assert all(run.job.min <= part.size <= run.job.max for part in run.segments)
        assert run.segments[0].begin == run.start >= run.job.submit
        assert run.segments[-1].end == run.finish
        for before, after in pairwise(run.segments):
            assert before.end == after.begin and before.size != after.size
    assert max(level for _, level in held_over_time(outcome.runs)) <= config.total
    window = max(run.finish for run in outcome.runs)
    found, bound = figures(outcome, window), limits(jobs, config.total, window)
    for name in ("mean_completion", "median_completion", "p99_completion", "makespan"):
        assert getattr(found, name) >= getattr(bound, name) * (1 - 1e-9), name
    assert found.useful_utilisation <= bound.useful_utilisation + 1e-9  # type: ignore[operator]
    quicker = Planner().plan if planner is plan else None
    assert simulate(jobs, config, quicker) == outcome


# Figures


def test_figures_of_a_case_worked_out_by_hand() -> None:
    # 8 GPUs. a: 6 from 0 to 100; b: 4 from 100 to 200, having waited 90.
    outcome = simulate([job("a", 0, 6, 100), job("b", 10, 4, 100)], SMALL, None)
    found = figures(outcome, 200, rigid=True)
    assert (found.mean_completion, found.median_completion) == (145, 100)
    assert (found.mean_wait, found.p99_wait, found.makespan) == (45, 90, 200)
    assert found.allocated_utilisation == pytest.approx((600 + 400) / 1600)
    assert found.useful_utilisation == pytest.approx(1000 / 1600)
    # From 10 to 100, 8 could be held and 6 are.
    assert found.idle_while_wanted_hours == pytest.approx(2 * 90 / 3600)


def test_work_done_inefficiently_is_not_useful() -> None:
    halved = amdahl(1 / 7, 8)  # 8 workers do the work of 4
    config = replace(SMALL, pause=0.0)
    outcome = simulate([job("a", 0, 8, 100, curve=halved)], config, None)
    found = figures(outcome, 100)
    assert found.allocated_utilisation == 1 and found.useful_utilisation == pytest.approx(0.5)


def test_who_is_worse_off_is_counted() -> None:
    first = [job("a", 0, 8, 100), job("b", 0, 8, 100, queue="r")]
    one = simulate(first, SMALL, None)
    other = simulate([replace(j, submit=j.submit, work=j.work / 2) for j in first], SMALL, None)
    found = worse_off(one, other)
    assert (found.jobs, found.start_later, found.finish_later, found.worst) == (2, 0, 2, 2.0)
    assert found.queues == {"default": 2.0, "r": 2.0}
    assert worse_off(other, one).queues == {}


def test_a_study_compares_with_rigid_and_with_static_shares() -> None:
    queues = (Queue("q", deserved={GPU: 4000}), Queue("r", deserved={GPU: 4000}))
    jobs = [job(f"j{i}", 10 * i, 4, 300, 1, 8, queue="q") for i in range(6)]
    found = compare(jobs, replace(SMALL, queues=queues), plan)
    assert found.elastic and found.static and found.than_static
    assert found.elastic.mean_completion < found.static.mean_completion
    assert found.than_static.queues == {}
    assert found.rigid.mean_completion < found.static.mean_completion


# Files


def read(text: str, elastic: str = DEFAULT, **more: object) -> list[TraceJob]:
    found = read_trace(
        text.splitlines(),
        "t.csv",
        cluster=64,
        elasticity=Elasticity(elastic),
        **more,  # type: ignore[arg-type]
    )
    return [one for jobs in found.values() for one in jobs]


def test_a_philly_row_becomes_a_job() -> None:
    [one] = read("job,submit_s,queue,gpus,duration_s\n44252,246,6c71a0,8,6802\n")
    assert (one.name, one.queue, one.submit, one.gpus) == ("44252", "6c71a0", 246, 8)
    assert (one.min, one.max) == (2, 32)
    assert one.work == pytest.approx(6802 * 8 / (1 + 0.036 * 7))


def test_a_pollux_row_takes_its_speed_from_the_table() -> None:
    table = read_table(
        ["app,global_batch,gpus,nodes,step_s", "ncf,32,1,1,2.0", "ncf,32,4,2,9", "ncf,32,4,1,1.0"],
        "s.csv",
    )
    text = "workload,job,submit_s,app,global_batch,tuned_gpus,iterations\n1,x,5,ncf,32,2,100.5\n"
    [one] = read(text, "min=1,max=efficient(0.5)", table=table)
    assert one.curve[:6] == (0, 0.5, pytest.approx(2 / 3), pytest.approx(5 / 6), 1.0, 1.0)
    assert (one.work, one.max) == (100.5, 4)
    with pytest.raises(TraceError, match="line 2: the table of speeds has nothing for app 'other'"):
        read(text.replace("ncf", "other"), table=table)
    with pytest.raises(TraceError, match="line 2: iterations say nothing without"):
        read(text)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("1,x,q,1,10", "expected submit_s to be a number from 0 to 1e+09, found 'x'"),
        ("1,-5,q,1,10", "expected submit_s to be a number from 0 to 1e+09, found '-5'"),
        ("1,5,q,1.5,10", "expected gpus to be a whole number from 1 to the cluster's 64"),
        ("1,5,q,65,10", "expected gpus to be a whole number from 1 to the cluster's 64"),
        ("1,5,q,1,0", "expected duration_s above 0"),
        ("1,5,q,1,nan", "expected duration_s to be a number"),
        ("1,5,q,1,1e308", "expected duration_s to be a number from 0 to 1e+09, found '1e308'"),
        ("1,5,q,1", "expected 5 values, found 4"),
        ("1,5,q,1,10,9", "expected 5 values, found 6"),
        ('1,5,"q,1,10\n2,6,q,1,10', "unexpected end of data"),
        ("0,5,q,1,10", "job 0 is there twice"),
    ],
)
def test_a_broken_line_is_named_by_number(row: str, complaint: str) -> None:
    with pytest.raises((TraceError, RowError), match=re.escape(f"t.csv, line 3: {complaint}")):
        read(f"job,submit_s,queue,gpus,duration_s\n0,1,q,1,10\n{row}\n")


def test_a_trace_without_its_columns_or_jobs_is_refused() -> None:
    with pytest.raises(TraceError, match="line 1: expected the columns submit_s"):
        read("a,b\n1,2\n")
    with pytest.raises(TraceError, match="expected jobs, found none"):
        read("submit_s,gpus,duration_s\n")


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        (DEFAULT, 1, Range(1, 4)),
        (DEFAULT, 16, Range(4, 64)),
        ("min=gpus,max=gpus*2", 3, Range(3, 6)),
        ("min=max(1,gpus//3),max=cluster", 2, Range(1, 64)),
        ("min=ceil(gpus/4),max=200,unit=8", 16, Range(8, 64, 8)),
        ("min=1, max=efficient(0.5)", 1, Range(1, 28)),
    ],
)
def test_what_an_expression_means(text: str, gpus: int, expected: Range) -> None:
    assert Elasticity(text)(gpus, 64, amdahl(0.036, 64)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "min=1",
        "min=1,max=2,more=3",
        "1,2",
        "min=__import__('os').getpid(),max=2",
        "min=1,max=gpus.real",
        "min=1,max=9**9**9",
        "min=1,max=[1][0]",
        "min=1,max=min(a for a in b)",
        "min=1,max=open",
        "min=1,max=True",
        "min=1,max=min()",
        "**{'min':1},max=2",
        "min=1),max=(2",
    ],
)
def test_only_arithmetic_is_an_expression(text: str) -> None:
    with pytest.raises(ElasticityError):
        Elasticity(text)


@pytest.mark.parametrize(
    "text", ["min=gpus/4,max=8", "min=9,max=8", "min=1//0,max=8", "min=0,max=1"]
)
def test_an_expression_that_makes_no_sense_for_a_job_names_its_line(text: str) -> None:
    with pytest.raises(TraceError, match=r"line 2: "):
        read("submit_s,gpus,duration_s\n5,3,10\n", text)


def test_speed_models_and_tables_are_checked() -> None:
    assert parse_model("amdahl:0.1") == 0.1
    for text in ("amdahl", "amdahl:2", "amdahl:x", "power:0.5"):
        with pytest.raises(CurveError, match="expected amdahl:S"):
            parse_model(text)
    with pytest.raises(CurveError, match="line 1: expected the columns"):
        read_table(["a,b", "1,2"], "s.csv")
    with pytest.raises(CurveError, match="line 2: expected gpus of at least 1"):
        read_table(["app,gpus,step_s", "x,1,0"], "s.csv")


def test_queues_take_the_share_for_this_many_gpus() -> None:
    text = "queue,deserved_of_512,deserved_of_384\nq,10,8\n"
    [queue] = read_queues(text.splitlines(), "q.csv", resource=GPU, total=384)
    assert queue.deserved == {GPU: 8000}
    with pytest.raises(QueueError, match="expected a column deserved_of_100 or deserved"):
        read_queues(text.splitlines(), "q.csv", resource=GPU, total=100)
    with pytest.raises(QueueError, match="line 2: expected deserved_of_512 to be a whole number"):
        read_queues(text.replace("10", "x").splitlines(), "q.csv", resource=GPU, total=512)


# The command


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


def test_gpus_that_nobody_could_use_efficiently_are_not_idle_while_wanted() -> None:
    badly = amdahl(0.9, 8)  # below half efficiency from 3 workers on
    outcome = simulate([job("a", 0, 1, 100, 1, 8, curve=badly)], SMALL, plan)
    assert max(part.size for part in outcome.runs[0].segments) == 2
    # Two of eight, once it has grown: nothing wanted is idle but in the first seconds.
    assert figures(outcome, 100).idle_while_wanted_hours <= 2 / 3600
