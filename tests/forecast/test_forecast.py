"""Starts and ends are foretold by what runs, what is known of its rest, and where there is room."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.forecast.world import past_job
from tests.queue_policy.world import GPU, NOW, gpus, job, node, pod, pods, world
from volcano_elastic.api import moment
from volcano_elastic.forecast import forecast as module
from volcano_elastic.forecast.forecast import DRAWS, Forecast, Interval, Scene, forecast
from volcano_elastic.forecast.job_record import JobRecord, last_record, read_record
from volcano_elastic.forecast.past import Past
from volcano_elastic.pytorchjob.goodput import USES
from volcano_elastic.snapshot.snapshot import Job, Snapshot


def record(owner: Job, **more: object) -> JobRecord:
    began = NOW - timedelta(minutes=5)
    made = JobRecord(
        uid=owner.key,
        job=owner.key,
        queue=owner.queue,
        user="ns",
        each=1000,
        min=owner.min,
        max=owner.max,
        created=owner.created,
        started=began,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def told(
    snapshot: Snapshot,
    asked: Collection[str],
    *records: JobRecord,
    past: Collection[JobRecord] = (),
) -> Mapping[str, Forecast]:
    scene = Scene(snapshot, NOW, GPU, {r.job: r for r in records}, Past([*past, *records], NOW))
    return forecast(scene, asked, random.Random(1).random)


A, B = job("a", 4, 4), job("b", 2, 2)
FULL = world([node("n", 4)], [A, B], pods(A, "n", "n", "n", "n"))


def test_who_waits_starts_when_training_says_that_it_ends() -> None:
    known = record(A, remaining=700.0, said=NOW - timedelta(seconds=100))
    found = told(FULL, ["ns/a", "ns/b"], known)
    assert found["ns/a"] == Forecast(None, Interval(600, 600, 600))
    assert found["ns/b"].start == Interval(600, 600, 600)


def test_without_progress_the_start_is_as_wide_as_lengths_are() -> None:
    start = told(FULL, ["ns/b"], record(A))["ns/b"].start
    assert start is not None and start.low and start.high and start.high > 10 * start.low


def test_what_has_room_starts_now_and_what_never_has_never_does() -> None:
    huge = job("huge", 9, 9)
    snapshot = world([node("n", 4)], [B, huge])
    found = told(snapshot, ["ns/b", "ns/huge"])
    assert found["ns/b"].start == Interval(0, 0, 0)
    assert found["ns/huge"] == Forecast(Interval(None, None, None), Interval(None, None, None))


def test_nobody_starts_on_nodes_that_it_may_not_go_to() -> None:
    picky = replace(B, node_selector={"disk": "fast"})
    fast = node("n", 4, labels={"disk": "fast"})
    known = record(A, remaining=600.0, said=NOW)
    snapshot = replace(FULL, nodes=(fast, node("free", 8)), jobs=(A, picky))
    assert told(snapshot, ["ns/b"], known)["ns/b"].start == Interval(600, 600, 600)
    free = replace(snapshot, jobs=(A, B))
    assert told(free, ["ns/b"], known)["ns/b"].start == Interval(0, 0, 0)


def test_pods_that_leave_free_their_room_and_those_of_others_keep_it() -> None:
    leaving = replace(
        pod(A, 0, "n"), job=None, terminating=True, leaves_by=NOW + timedelta(seconds=40)
    )
    strange = replace(pod(A, 1, "n"), key="x/y", uid="y", job=None, gang=None)
    four = job("four", 4, 4)
    snapshot = world([node("n", 5)], [four], (leaving, strange))
    assert told(snapshot, ["ns/four"])["ns/four"].start == Interval(40, 40, 40)
    assert told(replace(snapshot, nodes=(node("n", 4),)), ["ns/four"])["ns/four"].start == Interval(
        None, None, None
    )


def test_workers_of_several_gpus_need_them_on_one_node() -> None:
    small = job("s", 1, 1)
    wide = replace(job("wide", 1, 1), pod_requests=gpus(2))
    snapshot = world([node("n", 2), node("m", 2)], [small, job("t", 1, 1), wide], pods(small, "n"))
    snapshot = replace(snapshot, pods=(*snapshot.pods, *pods(job("t", 1, 1), "m")))
    ends = [record(small, remaining=500.0, said=NOW), record(job("t", 1, 1), remaining=300.0)]
    found = told(snapshot, ["ns/wide"], ends[0], replace(ends[1], said=NOW))
    assert found["ns/wide"].start == Interval(300, 300, 300)


def test_a_master_with_a_gpu_counts_as_a_worker() -> None:
    led = replace(job("led", 1, 1), master_requests=gpus(1))
    held = (pod(led, 0, "n"), replace(pod(led, 0, "n"), key="m", uid="m", role="Master"))
    snapshot = world([node("n", 2)], [led, job("c", 1, 1)], held)
    known = record(led, min=2, max=2, remaining=50.0, said=NOW)
    assert told(snapshot, ["ns/c"], known)["ns/c"].start == Interval(50, 50, 50)


def test_equal_jobs_of_a_burst_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = [job(f"j{i}", 1, 1) for i in range(8)]
    held = [p for one in burst for p in pods(one, "n")]
    snapshot = world([node("n", 8)], [*burst, job("next", 1, 1)], held)
    records = [record(one) for one in burst]
    past = [past_job("ns", -20_000, -20_000 + 600 * i) for i in range(1, 30)]

    def start() -> float:
        found = told(snapshot, ["ns/next"], *records, past=past)["ns/next"].start
        assert found is not None and found.middle is not None
        return found.middle

    alike = start()
    monkeypatch.setattr(module, "_BURST", 0.0)
    monkeypatch.setattr(module, "_QUEUE", 0.0)
    assert alike > 1.3 * start(), "of eight that know nothing of each other one ends early"


def test_others_that_will_come_slow_down_who_shares_with_them() -> None:
    elastic = job("e", 1, 4, 4)
    snapshot = world([node("n", 4)], [elastic], pods(elastic, *["n"] * 4))
    known = record(elastic, remaining=3600.0, said=NOW)
    busy = [
        past_job(f"u{i}", -86_400 * 3 + 1000 * i, -86_400 * 3 + 1000 * i + 3000) for i in range(250)
    ]
    alone = told(snapshot, ["ns/e"], known)["ns/e"].end.middle
    beside = told(snapshot, ["ns/e"], known, past=busy)["ns/e"].end.middle
    assert alone == 3600 and beside is not None and beside > 1.5 * alone


def test_the_interval_leaves_out_two_draws_of_twenty() -> None:
    found = module._interval([float(i) for i in range(DRAWS)])
    assert found == Interval(1.0, 9.5, 18.0)
    assert module._interval([None] * 3 + [1.0] * 17) == Interval(1.0, 1.0, None)
    assert found.holds(18.0) and not found.holds(0.9) and Interval(5, None, None).holds(1e9)


# Records


OBJECT = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "u",
        "creationTimestamp": moment.timestamp(NOW),
        "annotations": {"volcano-elastic.io/user": "ann"},
    },
    "spec": {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "pytorchReplicaSpecs": {
            "Worker": {
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "pytorch",
                                "image": "i",
                                "resources": {"limits": {GPU: 2}},
                            }
                        ]
                    }
                }
            }
        },
    },
    "status": {
        "queue": "vision",
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "lastTransitionTime": moment.timestamp(NOW + timedelta(seconds=9)),
            }
        ],
        "elastic": {
            "desired": 2,
            "gpuHours": 1.5,
            "goodput": {"milliseconds": {"productive_training": 30, "hang": 10}},
            "progress": {
                "progressPercentage": 40,
                "estimatedRemainingSeconds": 90,
                "lastUpdatedTime": moment.timestamp(NOW + timedelta(seconds=60)),
            },
        },
    },
}


def test_an_object_tells_its_jobs_life() -> None:
    found = read_record(OBJECT, GPU)
    assert found == JobRecord(
        uid="u",
        job="ns/a",
        queue="vision",
        user="ann",
        each=2000,
        min=1,
        max=4,
        created=NOW,
        started=NOW + timedelta(seconds=9),
        hours=1.5,
        asked=1,
        spent=dict.fromkeys(USES, 0) | {"productive_training": 30, "hang": 10},
        remaining=90,
        said=NOW + timedelta(seconds=60),
    )
    deleted = last_record(OBJECT, None, GPU, NOW + timedelta(hours=1))
    assert deleted == replace(found, ended=NOW + timedelta(hours=1), outcome="Deleted")
    assert read_record({**OBJECT, "spec": {}}, GPU) is None
