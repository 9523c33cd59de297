"""Jobs of other kinds, from the objects to the planner's snapshot, and from its plan to a patch."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.adapters.world import GPU, JOB, JOBSET, TRAINJOB, job, jobset, made, pod, pods_of
from tests.pytorchjob.world import merged
from volcano_elastic.adapters.adapter import ADAPTERS, Adapter
from volcano_elastic.kube.client import ApiError, Client, Conflict
from volcano_elastic.kube.resource import EVENTS, Resource
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.job_sizes import REFUSED_FOR, JobSizes
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.queue_policy.plan import plan

Object = dict[str, Any]
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
kinds = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)


def node(name: str, gpus: int) -> Object:
    allocatable = {GPU: str(gpus), "cpu": "8", "memory": "64Gi", "pods": "110"}
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def built(objects: Iterable[Object]) -> SnapshotBuilder:
    builder = SnapshotBuilder(adapters=ADAPTERS)
    for obj in objects:
        builder.change(None, deepcopy(obj))
    return builder


def decided(builder: SnapshotBuilder, now: datetime = NOW) -> list[tuple[str, int, int, str]]:
    decisions = plan(builder.snapshot(), now).decisions
    return [(d.job, d.old, d.new, str(d.reason)) for d in decisions]


@kinds
@pytest.mark.parametrize("pods_first", [False, True])
def test_its_pods_are_counted_as_its_own(adapter: Adapter, pods_first: bool) -> None:
    objects = [made(adapter, size=2), *pods_of(adapter, count=2, nodeName="n")]
    builder = built(reversed(objects) if pods_first else objects)
    snapshot, key = builder.snapshot(), f"team/{adapter.kind.lower()}/a"
    (found,) = snapshot.jobs
    assert (found.key, found.min, found.max, found.desired) == (key, 1, 8, 2)
    assert found.pod_requests == {GPU: 1000}
    assert {(p.job, p.index, p.owner) for p in snapshot.pods} == {(key, 0, None), (key, 1, None)}


@kinds
def test_pods_are_nobodys_again_when_the_job_no_longer_asks(adapter: Adapter) -> None:
    obj = made(adapter, size=2)
    builder = built([obj, *pods_of(adapter, nodeName="n")])
    quiet = deepcopy(obj)
    quiet["metadata"]["annotations"] = {}
    assert builder.change(obj, quiet)
    assert builder.snapshot().jobs == ()
    assert {p.job for p in builder.snapshot().pods} == {None}
    assert builder.change(quiet, obj) and len(builder.snapshot().jobs) == 1
    builder.change(obj, None)
    assert builder.snapshot().jobs == ()


def test_only_pods_of_the_sized_part_are_counted() -> None:
    driver = pods_of(JOBSET, count=1, nodeName="n")[0]
    driver["metadata"] |= {"name": "driver", "uid": "d"}
    driver["metadata"]["labels"] |= {"jobset.sigs.k8s.io/replicatedjob-name": "driver"}
    snapshot = built([jobset(size=1), driver, *pods_of(JOBSET, count=1, nodeName="n")]).snapshot()
    assert {p.key: p.job for p in snapshot.pods} == {
        "team/driver": None,
        "team/a-0": "team/jobset/a",
    }


def test_pods_of_a_train_job_are_not_those_of_a_jobset_of_its_name() -> None:
    both = built([made(TRAINJOB), jobset(), *pods_of(TRAINJOB, nodeName="n")])
    assert {p.job for p in both.snapshot().pods} == {"team/trainjob/a"}


def test_jobs_of_one_name_and_several_kinds_are_told_apart() -> None:
    builder = built([made(JOB), made(JOBSET)])
    assert {found.key for found in builder.snapshot().jobs} == {"team/job/a", "team/jobset/a"}


@kinds
def test_it_grows_into_idle_gpus(adapter: Adapter) -> None:
    builder = built(
        [node("n", 4), made(adapter, size=2), *pods_of(adapter, nodeName="n")],
    )
    key = f"team/{adapter.kind.lower()}/a"
    assert decided(builder) == [(key, 2, 4, "GrewIntoIdle")]


@kinds
def test_it_shrinks_for_a_minimum_that_waits(adapter: Adapter) -> None:
    waiting = job("b", size=2, least=2, most=2)
    builder = built(
        [
            *(node("n", 4), made(adapter, size=4), *pods_of(adapter, count=4, nodeName="n")),
            *(waiting, *pods_of(JOB, "b", 2)),
        ]
    )
    key = f"team/{adapter.kind.lower()}/a"
    assert decided(builder) == [(key, 4, 2, "ShrunkForMinimum")]


def test_the_pod_group_that_volcano_makes_for_its_pods_is_no_claim_beside_it() -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "controller": True}
    group = {
        "kind": "PodGroup",
        "metadata": {"name": "podgroup-1", "namespace": "team", "ownerReferences": [reference]},
        "spec": {"minMember": 1, "queue": "default"},
    }
    obj = job(size=1, template={"spec": {**job()["spec"]["template"]["spec"]}})
    obj["spec"]["template"]["spec"]["schedulerName"] = "volcano"

    def seen(**placed: str) -> SnapshotBuilder:
        (one,) = pods_of(JOB, count=1, schedulerName="volcano", **placed)
        one["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "podgroup-1"}
        return built([node("n", 4), obj, group, one])

    waits = plan(seen().snapshot(), NOW)
    assert waits.admitted == {"team/job/a"} and not waits.blocked
    assert decided(seen(nodeName="n")) == [("team/job/a", 1, 4, "GrewIntoIdle")]


def test_its_priority_is_that_of_its_class_whenever_that_is_known() -> None:
    obj = job(size=1)
    obj["spec"]["template"]["spec"]["priorityClassName"] = "high"
    builder = built([obj])
    assert builder.snapshot().jobs[0].priority == 0
    assert builder.change(None, {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7})
    assert builder.snapshot().jobs[0].priority == 7


def test_pods_without_an_index_get_one_each_and_keep_it() -> None:
    """The planner holds index 0 to be vital: with nothing but zeros nothing could leave."""
    pods = pods_of(JOB, count=4, nodeName="n")
    for one in pods:
        del one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
    waiting = job("b", size=2, least=2, most=2)
    builder = built([node("n", 4), job(size=4), *pods, waiting, *pods_of(JOB, "b", 2)])
    assert decided(builder) == [("team/job/a", 4, 2, "ShrunkForMinimum")]

    def indexes() -> dict[str, int]:
        mine = [p for p in builder.snapshot().pods if p.job == "team/job/a"]
        return {p.key.rpartition("-")[2]: p.index for p in mine}

    assert indexes() == {"0": 0, "1": 1, "2": 2, "3": 3}
    again = deepcopy(pods[2])
    again["metadata"]["resourceVersion"] = "2"
    builder.change(pods[2], again)
    builder.change(pods[1], None)
    assert indexes() == {"0": 0, "2": 2, "3": 3}
    late = deepcopy(pods[1])
    late["metadata"] |= {"name": "a-9", "uid": "late"}
    builder.change(None, late)
    assert indexes() == {"0": 0, "2": 2, "3": 3, "9": 1}


class Server:
    """Keeps one job, merges patches into it, and records events."""

    def __init__(self, obj: Object) -> None:
        self.obj = obj
        self.events: list[tuple[str, str]] = []
        self.patches = 0
        self.failing: ApiError | None = None

    async def patch(self, kind: Resource, name: str, namespace: str, body: Object) -> Object:
        self.patches += 1
        if self.failing is not None:
            raise self.failing
        meta = self.obj["metadata"]
        if body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise Conflict(409, "Conflict", name)
        self.obj = cast(Object, merged(self.obj, body))
        version = str(int(meta["resourceVersion"]) + 1)
        self.obj["metadata"] |= {"resourceVersion": version, "generation": int(version)}
        return deepcopy(self.obj)

    async def create(self, kind: Resource, body: Object) -> Object:
        assert kind == EVENTS
        self.events.append((body["reason"], body["message"]))
        return body


class Scene:
    def __init__(self, adapter: Adapter, obj: Object) -> None:
        self.server = Server(obj)
        self.cluster = Cluster(cast(Client, self.server), adapters=ADAPTERS)
        self.builder = SnapshotBuilder(adapters=ADAPTERS)
        self.informer = self.cluster.others[adapter.kind]
        self.informer.on_change(self.builder.change)
        self.informer.note_write(deepcopy(obj))
        for one in pods_of(adapter, nodeName="n"):
            self.builder.change(None, one)
        self.builder.change(None, node("n", 4))
        self.sizes = JobSizes(self.cluster, self.builder)

    async def carry_out(self, now: datetime = NOW) -> frozenset[str]:
        """Plan, and carry the plan out."""
        decisions = plan(self.builder.snapshot(), now).decisions
        return await self.sizes.carry_out({d.job: d for d in decisions}, now, 2.0)


@kinds
async def test_a_plan_is_carried_out_by_one_patch_and_told(adapter: Adapter) -> None:
    scene = Scene(adapter, made(adapter, size=2))
    assert await scene.carry_out() == frozenset()
    assert scene.server.events == [
        (
            "GrewIntoIdle",
            "2 GPUs are idle and nobody waits for them; a grows from 2 to 4 of at most 8 workers",
        )
    ]
    (found,) = scene.builder.snapshot().jobs
    # Known before any watch brings it.
    assert (found.desired, found.last_scale, found.last_reason) == (4, NOW, "GrewIntoIdle")
    assert await scene.carry_out() == frozenset() and scene.server.patches == 1


async def test_a_job_that_has_changed_since_is_planned_anew() -> None:
    scene = Scene(JOB, made(JOB, size=2))
    scene.server.obj["metadata"]["resourceVersion"] = "8"
    assert await scene.carry_out() == {"team/job/a"}
    assert scene.server.events == []
    scene.informer.note_write(deepcopy(scene.server.obj))
    assert await scene.carry_out() == frozenset()


async def test_a_size_that_is_refused_is_told_once_and_not_asked_for_again() -> None:
    """The API server refuses a TrainJob's numNodes so where the field is immutable."""
    scene = Scene(TRAINJOB, made(TRAINJOB, size=2))
    scene.server.failing = ApiError(422, "Invalid", "spec.trainer: field is immutable")
    assert await scene.carry_out() == {"team/trainjob/a"}
    assert [reason for reason, _ in scene.server.events] == ["ResizeRefused"]
    assert "field is immutable" in scene.server.events[0][1]
    for seconds in range(3):
        assert await scene.carry_out(NOW + timedelta(seconds=seconds)) == frozenset()
    assert scene.server.patches == 1, "it counts as a job of fixed size"
    # The API server may have learnt it, or the job's owner changed what it is.
    await scene.sizes.carry_out({}, NOW + REFUSED_FOR, 2.0)
    await scene.carry_out(NOW + REFUSED_FOR)
    assert scene.server.patches == 2
    await scene.sizes.carry_out({}, NOW + REFUSED_FOR, 2.0)
    edited = deepcopy(scene.server.obj)
    edited["metadata"] |= {"resourceVersion": "9", "generation": 9}
    scene.server.obj, scene.server.failing = edited, None
    scene.informer.note_write(deepcopy(edited))
    await scene.sizes.carry_out({}, NOW + REFUSED_FOR, 2.0)
    assert await scene.carry_out(NOW + REFUSED_FOR) == frozenset()
    assert scene.server.obj["spec"]["trainer"]["numNodes"] == 4


async def test_a_job_that_cannot_be_sized_is_told_so_once() -> None:
    scene = Scene(JOB, job(least=4, most=2))
    await scene.carry_out()
    await scene.carry_out()
    assert [reason for reason, _ in scene.server.events] == ["NotElastic"]
    assert scene.builder.snapshot().jobs == ()
    assert {p.job for p in scene.builder.snapshot().pods} == {None}


async def test_which_pods_leave_is_left_to_the_controller() -> None:
    scene = Scene(JOB, made(JOB, size=2))
    (found,) = scene.builder.snapshot().jobs
    move = Decision(found.key, 2, 2, plan(scene.builder.snapshot(), NOW).decisions[0].reason, "")
    assert await scene.sizes.carry_out({found.key: move}, NOW, 2.0) == frozenset()
    assert scene.server.patches == 0


def test_a_pod_of_another_namespace_or_name_is_nobodys() -> None:
    other = pod("x", {"batch.kubernetes.io/job-name": "b"}, nodeName="n")
    assert {p.job for p in built([made(JOB), other]).snapshot().pods} == {None}
