"""The files that a simulation reads: traces, speeds, elasticity, queues."""

from __future__ import annotations

import re

import pytest

from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.simulator.curve import (
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
from volcano_elastic.simulator.queue import QueueError, read_queues
from volcano_elastic.simulator.row import RowError
from volcano_elastic.simulator.trace import TraceError, TraceJob, read_trace


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
