"""MemoryKills binds a kill to the pod and the life of its container in which it happened."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tests.pytorchjob.world import job_object
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.kube.client import Client
from volcano_elastic.operator import failure_report
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.failure_report import Failure
from volcano_elastic.operator.memory_kills import MemoryKills

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(uid: str = "u1") -> PyTorchJob:
    obj = job_object(elastic={"min": 1, "max": 2, "rdzvBackend": "volcano-elastic"})
    obj["metadata"]["uid"] = uid
    return parse(obj)


def pod(uid: str, began: datetime, index: int = 1) -> dict[str, Any]:
    state = {"running": {"startedAt": moment.timestamp(began)}}
    name = f"a-worker-{index}"
    return {
        "metadata": {"name": name, "namespace": "team", "uid": uid, "resourceVersion": "1"},
        "status": {"containerStatuses": [{"name": "pytorch", "state": state}]},
    }


def kill(round_: int = 1, at: datetime = NOW, **more: Any) -> Failure:
    found = Failure(round_, 1, 1, 7, at, -9, "killed", out_of_memory=True)
    return replace(found, **more)


def test_a_kill_is_of_the_pod_that_was_there_and_for_ten_minutes() -> None:
    now, told = NOW, list[str]()
    cluster = Cluster(cast(Client, None))
    kills = MemoryKills(cluster, lambda: now)
    kills.on_news(told.append)
    cluster.pods.note_write(pod("p1", NOW - timedelta(hours=1)))
    kills.hear(job(), [kill(out_of_memory=False)])
    assert not told and not kills.of(job())
    kills.hear(job(), [kill()])
    assert told == ["team/a"] and kills.of(job()) == {"p1"}
    assert not kills.of(job("u2")), "another job of the name"
    cluster.pods.note_write(pod("p2", NOW - timedelta(minutes=5)))
    kills.hear(job(), [kill()])
    assert kills.of(job()) == {"p1"} and len(told) == 1, "its successor has nothing to do with it"
    now += timedelta(minutes=10)
    assert not kills.of(job())


def test_a_kill_of_an_earlier_life_counts_for_nothing() -> None:
    cluster = Cluster(cast(Client, None))
    kills = MemoryKills(cluster, lambda: NOW)
    cluster.pods.note_write(pod("p1", NOW + timedelta(seconds=1)))
    kills.hear(job(), [kill(), kill(2, worker=0)])
    assert not kills.of(job())
    kills.hear(job(), [kill(), kill(3, NOW + timedelta(seconds=2))])
    assert kills.of(job()) == {"p1"}, "the next does"


def test_the_coordinator_says_which_failures_were_for_memory() -> None:
    raw: dict[str, Any] = {
        "round": 1,
        "worker": 1,
        "rank": 1,
        "pid": 7,
        "time": 1.0,
        "exitCode": -9,
    }
    raw["message"] = "killed"
    told = [raw | {"outOfMemory": True}, raw | {"time": 2.0, "outOfMemory": "yes"}, raw]
    found = failure_report.read({"failures": told})
    assert sorted(one.out_of_memory for one in found) == [False, False, True]
