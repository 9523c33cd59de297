"""LostPods asks coordinators of pods on a node in trouble, and tells which jobs have lost one."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.pytorchjob.world import job_object
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(
    name: str, version: int, *, ready: bool, stamp: str = "2026-01-01T11:59:00Z"
) -> dict[str, Any]:
    status = "True" if ready else "Unknown"
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": stamp}]
        },
    }


def pod(index: int, job: dict[str, Any]) -> dict[str, Any]:
    owner = {"kind": "PyTorchJob", "uid": job["metadata"]["uid"], "controller": True, "name": "a"}
    return {
        "metadata": {
            "name": f"a-worker-{index}",
            "namespace": "team",
            "uid": f"pod-{index}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T11:00:00Z",
            "ownerReferences": [owner],
            "labels": {
                "training.kubeflow.org/job-name": "a",
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {"nodeName": f"n{index}", "containers": []},
        "status": {"phase": "Running", "podIP": f"10.0.0.{index}"},
    }


def world(backend: str = "volcano-elastic") -> tuple[Cluster, LostPods, PyTorchJob]:
    cluster, builder = Cluster(cast(Client, None)), SnapshotBuilder()
    cluster.jobs.on_change(lambda old, new: builder.change(old, new) and None)
    looks = itertools.count()
    lost = LostPods(
        cluster, builder, lambda: NOW + timedelta(seconds=next(looks)), timedelta(seconds=300)
    )
    obj = job_object(elastic={"min": 2, "max": 2, "rdzvBackend": backend})
    obj["apiVersion"], obj["kind"] = "kubeflow.org/v1", "PyTorchJob"
    obj["metadata"].update(namespace="team", name="a")
    cluster.jobs.note_write(obj)
    for index in (0, 1):
        cluster.pods.note_write(pod(index, obj))
        cluster.nodes.note_write(node(f"n{index}", 1, ready=True))
    return cluster, lost, parse(obj)


async def test_jobs_with_a_pod_on_a_node_in_trouble_are_asked_about_and_told() -> None:
    cluster, lost, job = world()
    asked, told = asyncio.Event(), list[str]()
    lost.on_doubt(lambda key: asked.set())
    lost.on_news(told.append)
    task = asyncio.create_task(lost.run())
    try:
        lost.hear(job, Report(heard=frozenset({0, 1})))
        cluster.nodes.note_write(node("n1", 2, ready=False))
        await asyncio.wait_for(asked.wait(), 120)
        assert not lost.of(job).lost and not told, "one witness alone"
        lost.hear(job, Report(heard=frozenset({0})))
        assert not lost.of(job).lost, "agents may be on their way to another coordinator"
        lost.hear(job, Report(heard=frozenset({0})))
        assert set(lost.of(job).lost) == {"pod-1"} and told == ["team/a"]
        cluster.nodes.note_write(node("n1", 3, ready=True))
        assert not lost.of(job).lost, "the node has come back, and its pod may, too"
    finally:
        task.cancel()


async def test_no_answer_is_no_word_about_other_pods() -> None:
    cluster, lost, job = world()
    cluster.nodes.note_write(node("n1", 2, ready=False))
    lost.hear(job, Report(heard=frozenset({0, 1})))
    lost.hear(job, Report())
    assert not lost.of(job).lost
    cluster.nodes.note_write(node("n0", 2, ready=False))
    assert not lost.of(job).lost, "it was asked before"
    lost.hear(job, Report())
    assert set(lost.of(job).lost) == {"pod-0"}


async def test_a_worker_that_is_ready_for_kubernetes_alone_is_counted_as_silent() -> None:
    cluster, lost, job = world()
    lost.hear(job, Report(heard=frozenset({0})))
    assert lost.silent(job) == 0, "worker 1 may only just begin"
    lost.hear(job, Report(heard=frozenset({0, 1})))
    lost.hear(job, Report())
    assert lost.silent(job) == 0, "it is the coordinator that gives no answer"
    lost.hear(job, Report(heard=frozenset({0})))
    assert lost.silent(job) == 1
    obj = cluster.jobs.get(job.key)
    assert obj is not None
    gone = pod(1, obj)
    gone["metadata"]["resourceVersion"] = "2"
    gone["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    cluster.pods.note_write(gone)
    assert lost.silent(job) == 0, "Kubernetes knows it, too"


async def test_a_coordinators_silence_speaks_against_the_pod_that_was_elected_its_host() -> None:
    cluster, lost, job = world()
    lost.hear(job, Report(heard=frozenset({0, 1}), host="10.0.0.1"))
    for index in (0, 1):
        cluster.nodes.note_write(node(f"n{index}", 2, ready=False))
    lost.hear(job, Report(host="10.0.0.1"))
    lost.hear(job, Report(host="10.0.0.1"))
    assert set(lost.of(job).lost) == {"pod-1"}


async def test_a_pod_that_only_just_began_is_lost_with_its_node_though_it_was_never_heard() -> None:
    cluster, lost, job = world()
    lost.hear(job, Report())
    cluster.nodes.note_write(node("n0", 2, ready=False))
    lost.hear(job, Report())
    assert set(lost.of(job).lost) == {"pod-0"}


async def test_a_coordinator_that_could_not_be_asked_was_not_silent() -> None:
    cluster, lost, job = world()
    now = [NOW]
    lost._clock = lambda: now[0]
    lost.hear(job, Report(heard=frozenset({0, 1})))
    cluster.nodes.note_write(node("n0", 2, ready=False))
    for _ in range(2):
        now[0] += timedelta(seconds=1)
        lost.hear(job, Report(asked=False))
    assert not lost.of(job).lost
    for _ in range(2):
        now[0] += timedelta(seconds=1)
        lost.hear(job, Report())
    assert set(lost.of(job).lost) == {"pod-0"}, "it gave no answer twice"


async def test_an_operator_that_reaches_no_pod_takes_none_for_silent() -> None:
    cluster, lost, job = world()
    seconds = itertools.count()
    now = [NOW]
    lost._clock = lambda: now[0] + timedelta(seconds=next(seconds))
    lost.hear(job, Report())
    now[0] += timedelta(seconds=61)
    cluster.nodes.note_write(node("n0", 2, ready=False))
    lost.hear(job, Report())
    lost.hear(job, Report())
    assert not lost.of(job).lost, "a NetworkPolicy may keep it from them"
    lost.hear(job, Report(reached=True))
    assert set(lost.of(job).lost) == {"pod-0"}, "it is not the operator's way to pods"


@pytest.mark.parametrize("vouched", [False, True])
async def test_a_healthy_host_stays_while_only_the_operator_does_not_hear_it(vouched: bool) -> None:
    """A NetworkPolicy may come between them while the job trains."""
    _, lost, job = world()
    now = [NOW]
    lost._clock = lambda: now[0]
    lost.hear(job, Report(heard=frozenset({0, 1})))
    for _ in range(100):
        now[0] += timedelta(seconds=10)
        lost.hear(job, Report(reached=vouched, vouched=vouched))
        assert not lost.of(job).lost
    if not vouched:
        return
    for _ in range(31):  # its own agents hear it no more
        now[0] += timedelta(seconds=10)
        lost.hear(job, Report(reached=True))
    assert set(lost.of(job).lost) == {"pod-0"}


async def test_a_host_in_trouble_stays_while_agents_hear_it_though_the_operator_does_not() -> None:
    cluster, lost, job = world()
    lost.hear(job, Report(heard=frozenset({0, 1})))
    cluster.nodes.note_write(node("n0", 2, ready=False))
    for _ in range(9):
        lost.hear(job, Report(reached=True, vouched=True))
    assert not lost.of(job).lost, "its node and the operator are cut off from one another"
    for _ in range(2):
        lost.hear(job, Report(reached=True))
    assert set(lost.of(job).lost) == {"pod-0"}


@pytest.mark.parametrize("stamp", ["2026-01-01T11:00:00Z", "2026-01-01T13:00:00Z"])
async def test_a_nodes_wrong_clock_makes_no_pod_lost_sooner_or_later(stamp: str) -> None:
    cluster, lost, job = world()
    now = [NOW]
    lost._clock = lambda: now[0]
    lost.hear(job, Report(heard=frozenset({0, 1})))
    cluster.nodes.note_write(node("n1", 2, ready=False, stamp=stamp))
    now[0] += timedelta(seconds=299)
    lost.hear(job, Report(heard=frozenset({0, 1})))
    assert not lost.of(job).lost
    now[0] += timedelta(seconds=1)
    assert set(lost.of(job).lost) == {"pod-1"}


async def test_a_clock_begins_anew_where_the_watch_missed_that_a_node_was_back() -> None:
    cluster, lost, job = world()
    now = [NOW]
    lost._clock = lambda: now[0]
    lost.hear(job, Report(heard=frozenset({0, 1})))
    cluster.nodes.note_write(node("n1", 2, ready=False, stamp="2026-01-01T12:00:00Z"))
    now[0] += timedelta(seconds=601)
    cluster.nodes.note_write(node("n1", 3, ready=False, stamp="2026-01-01T12:10:00Z"))
    lost.hear(job, Report(heard=frozenset({0, 1})))
    assert not lost.of(job).lost


async def test_under_stock_torchrun_a_container_that_began_anew_speaks_against_worker_0() -> None:
    cluster, lost, job = world("c10d")
    cluster.nodes.note_write(node("n0", 2, ready=False))
    assert not lost.of(job).lost
    peer = pod(1, cluster.jobs.get(job.key) or {})
    peer["metadata"]["resourceVersion"] = "2"
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T11:59:00Z"}}
    peer["status"]["containerStatuses"] = [{"name": "pytorch", "lastState": ended}]
    cluster.pods.note_write(peer)
    assert set(lost.of(job).lost) == {"pod-0"}
