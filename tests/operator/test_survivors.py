"""Survivors: which jobs' workers wait for worker 0, as coordinators and pods tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.pytorchjob.world import copied, job_object
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.survivors import Survivors

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOBODY = Report()


@dataclass
class Scene:
    """A job of workers 0 and 1, each on its node, and an operator that began long ago."""

    policy: dict[str, Any] = field(default_factory=dict)
    now: datetime = NOW - timedelta(hours=1)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster, self.builder = Cluster(cast(Client, None)), SnapshotBuilder()
        for informer in (self.cluster.jobs, self.cluster.pods):
            informer.on_change(self._changed)
        self.survivors = Survivors(self.cluster, self.builder, lambda: self.now)
        self.survivors.on_news(self.told.append)
        elastic = {"min": 1, "max": 2, "rdzvBackend": "volcano-elastic"} | self.policy
        self.obj = job_object(elastic=elastic)
        self.obj["metadata"].update(namespace="team", name="a")
        self.obj["status"] = {"elastic": {"desired": 2}}
        self.cluster.jobs.note_write(self.obj)
        self.job = parse(self.obj)
        self._version = 1
        for index in (0, 1):
            self.put(index)
        self.now = NOW

    def _changed(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        self.builder.change(old, new)

    def put(self, index: int, *, uid: str = "", restarts: int = 0, **status: Any) -> None:
        """A worker is there, or has changed."""
        self._version += 1
        name = f"a-worker-{index}"
        owner = {"kind": "PyTorchJob", "name": "a", "uid": "u1", "controller": True}
        container = {"name": "pytorch", "restartCount": restarts}
        told = {"phase": "Running", "podIP": f"10.0.0.{index}", "containerStatuses": [container]}
        self.cluster.pods.note_write(
            {
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": uid or name,
                    "resourceVersion": str(self._version),
                    "creationTimestamp": "2026-01-01T11:00:00Z",
                    "ownerReferences": [owner],
                    "labels": {
                        "training.kubeflow.org/job-name": "a",
                        "training.kubeflow.org/replica-type": "worker",
                        "training.kubeflow.org/replica-index": str(index),
                    },
                },
                "spec": {} if status.get("phase") == "Pending" else {"nodeName": f"n{index}"},
                "status": told | status,
            }
        )

    def gone(self, index: int) -> None:
        pod = self.cluster.pods.get(f"team/a-worker-{index}")
        assert pod is not None
        self.cluster.pods.drop(pod)

    def hear(self, report: Report, after: float = 10) -> bool:
        """Return whether worker 0 is needed, by this answer after so many seconds."""
        self.now += timedelta(seconds=after)
        self.survivors.hear(self.job, report)
        return self.needed

    @property
    def needed(self) -> bool:
        found = self.survivors.needed(self.job)
        planned = self.builder.job("team/a")
        assert planned is not None and planned.needs_first == found, "both decide by the same"
        return found


def round_of(*members: int, host: int = 0, **more: Any) -> Report:
    heard = frozenset(members)
    return Report(heard=heard, round=3, members=heard, host=f"10.0.0.{host}", **more)


def test_the_survivor_of_a_round_goes_on_without_worker_0_and_the_planner_knows() -> None:
    scene = Scene()
    assert not scene.hear(round_of(0, 1))
    scene.gone(0)
    for _ in range(5):
        assert not scene.hear(NOBODY), "they are about to elect another host"
    scene.put(0, uid="anew", phase="Pending", podIP="")
    assert not scene.hear(round_of(1, host=1))
    assert not scene.told
    for _ in range(5):
        assert not scene.hear(NOBODY)
    assert scene.hear(NOBODY), "its host was silent for a minute"
    assert scene.told == ["team/a"]
    assert not scene.hear(round_of(1, host=1))
    assert scene.told == ["team/a"] * 2


def test_patience_begins_again_when_worker_0_is_given_up() -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    for _ in range(5):
        assert not scene.hear(NOBODY)
    scene.gone(0)
    for _ in range(5):
        assert not scene.hear(NOBODY)
    assert scene.hear(NOBODY)


def test_a_survivor_whose_container_began_anew_waits_for_worker_0_at_once() -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    scene.gone(0)
    assert not scene.hear(round_of(1, host=1))
    scene.put(1, restarts=1)
    assert scene.needed and scene.told == ["team/a"]


@pytest.mark.parametrize("ends", ["gone", "failed"])
def test_a_survivor_that_ends_is_none(ends: str) -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    scene.gone(0)
    if ends == "gone":
        scene.gone(1)
    else:
        scene.put(1, phase="Failed")
    assert scene.needed


def test_whoever_was_in_no_round_goes_on_with_nobody() -> None:
    scene = Scene()
    assert scene.hear(round_of(0)), "worker 1 has only begun"
    assert not scene.hear(round_of(0, 1))


def test_workers_of_a_dedicated_coordinator_may_begin_anew() -> None:
    scene = Scene({"coordinator": "dedicated"})
    assert not scene.hear(round_of(0, 1, host=1))
    scene.gone(0)
    scene.put(1, restarts=1)
    assert not scene.needed


@pytest.mark.parametrize(
    "report",
    [
        round_of(1, host=1, missing=True),
        Report(heard=frozenset({1}), host="10.0.0.1"),
        round_of(0, host=7),
    ],
    ids=["misses somebody", "no round yet", "an old worker 0 behind a partition"],
)
def test_a_coordinator_is_no_witness_of_itself(report: Report) -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    scene.gone(0)
    assert [scene.hear(report) for _ in range(6)] == [False] * 5 + [True]


def test_a_coordinator_that_forms_its_next_round_is_one() -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    scene.gone(0)
    forming = Report(heard=frozenset({1}), round=3, host="10.0.0.1")
    assert not any(scene.hear(forming) for _ in range(20))


def test_a_question_that_could_not_be_put_says_nothing() -> None:
    scene = Scene()
    scene.hear(round_of(0, 1))
    assert not any(scene.hear(Report(asked=False), 600) for _ in range(3))


def test_a_job_that_never_told_of_a_round_needs_its_worker_0() -> None:
    scene = Scene()
    assert not scene.needed, "nobody was asked yet"
    assert scene.hear(NOBODY)


def test_another_operator_asks_for_a_minute_first() -> None:
    scene = Scene()
    scene.hear(NOBODY)
    scene.survivors.begin()
    assert [scene.hear(NOBODY) for _ in range(6)] == [False] * 5 + [True]
    scene.survivors.begin()
    assert not scene.hear(round_of(1, host=1))


def test_a_job_of_another_scheduler_which_is_never_asked_needs_its_worker_0() -> None:
    scene = Scene()
    assert not scene.needed
    other = copied(scene.obj)
    template = other["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["schedulerName"] = "default-scheduler"
    other["metadata"]["resourceVersion"] = "2"
    scene.cluster.jobs.note_write(other)
    assert scene.survivors.needed(parse(other))


def test_a_job_that_meets_at_torchruns_own_store_needs_worker_0_which_serves_it() -> None:
    scene = Scene({"rdzvBackend": "c10d"})
    planned = scene.builder.job("team/a")
    assert planned is not None and planned.needs_first


def test_what_was_heard_of_a_job_is_not_said_of_the_next_of_its_name() -> None:
    scene = Scene()
    assert scene.hear(NOBODY)
    scene.cluster.jobs.drop(scene.obj)
    other = copied(scene.obj)
    other["metadata"] |= {"uid": "u2", "resourceVersion": "9"}
    scene.cluster.jobs.note_write(other)
    assert not scene.builder.needs_first("team/a")
