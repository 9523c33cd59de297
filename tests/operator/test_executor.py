"""How a reconcile's actions are performed, against an API server that counts."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.pytorchjob.world import job_object
from volcano_elastic.api import moment
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.resource import EVENTS, Resource
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.executor import AT_ONCE, Executor, NameTaken, is_refusal
from volcano_elastic.operator.token import BadKey
from volcano_elastic.pytorchjob.action import (
    CreatePod,
    CreateSecret,
    CreateService,
    DeletePod,
    EmitEvent,
    PatchPod,
    PatchStatus,
    ResizePod,
)
from volcano_elastic.pytorchjob.label import JOB_NAME

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Counting:
    """Answers each request when all that are ready to be sent have been."""

    def __init__(self) -> None:
        self.open = self.most = self.answered = 0

    async def create(self, kind: Resource, obj: Object) -> Object:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        self.answered += 1
        version = str(self.answered)
        return obj | {"metadata": obj["metadata"] | {"uid": version, "resourceVersion": version}}


class Holding:
    """Has a pod of that name already, without labels, whose controller is `owner`."""

    def __init__(self, owner: Object | None) -> None:
        meta = {"name": "a-worker-0", "namespace": "team", "uid": "p", "resourceVersion": "1"}
        owners = [] if owner is None else [{"uid": "another", "controller": True} | owner]
        self.pod: Object = {"metadata": meta | {"ownerReferences": owners}}
        self.told: list[Object] = []

    async def create(self, kind: Resource, obj: Object) -> Object:
        if kind is EVENTS:
            self.told.append(obj)
            return obj
        raise AlreadyExists(409, "AlreadyExists", "a-worker-0")

    async def get(self, kind: Resource, name: str, namespace: str) -> Object:
        return self.pod


async def test_a_pod_that_lost_its_labels_is_told_rather_than_waited_for_in_silence() -> None:
    job = job_object()
    server = Holding({"uid": job["metadata"]["uid"]})
    executor = Executor(Cluster(cast(Client, server)))
    wanted = {"name": "a-worker-0", "namespace": "team", "labels": {JOB_NAME: "a"}}
    with pytest.raises(NameTaken, match=f"lacks its label {JOB_NAME}=a"):
        await executor.perform(job, [CreatePod({"metadata": wanted})], NOW)
    await executor.settle(5)
    (event,) = server.told
    assert (event["reason"], event["type"]) == ("FailedCreatePod", "Warning")


@pytest.mark.parametrize(
    ("owner", "age", "why", "told"),
    [
        ({"kind": "PyTorchJob", "name": "a"}, 5, "left of an earlier PyTorchJob", False),
        ({"kind": "PyTorchJob", "name": "a"}, 60, "left of an earlier PyTorchJob", True),
        ({"kind": "StatefulSet", "name": "a"}, 5, "belongs to StatefulSet a; .* delete it", True),
        (None, 5, "belongs to nobody; .* delete it", True),
    ],
    ids=["of an earlier life", "never collected", "somebody else's", "orphaned"],
)
async def test_whose_name_is_taken_is_told_unless_it_goes_by_itself_soon(
    owner: Object | None, age: int, why: str, told: bool
) -> None:
    """`kubectl replace --force` leaves no warning behind."""
    job, server = job_object(), Holding(owner)
    executor = Executor(Cluster(cast(Client, server)))
    now = moment.parse(job["metadata"]["creationTimestamp"]) + timedelta(seconds=age)
    create = CreatePod({"metadata": {"name": "a-worker-0", "namespace": "team"}})
    with pytest.raises(NameTaken, match=why):
        await executor.perform(job, [create], now)
    await executor.settle(5)
    assert [event["reason"] for event in server.told] == ["FailedCreatePod"] * told


class Keyed:
    """Holds a key that is none."""

    def __init__(self) -> None:
        self.access = type("Access", (), {"namespace": "system"})()
        self.told: list[Object] = []

    async def get(self, kind: Resource, name: str, namespace: str) -> Object:
        return {"data": {"key": "bm9uZQ=="}}

    async def create(self, kind: Resource, obj: Object) -> Object:
        assert kind is EVENTS, "nothing of the job is created"
        self.told.append(obj)
        return obj


class Refusing:
    """Has a webhook that lets nothing be deleted just now."""

    async def delete(self, *_: object, **__: object) -> Object:
        raise Conflict(409, "Conflict", "admission webhook denied the request")


async def test_a_pod_whose_deletion_is_refused_is_not_taken_for_gone() -> None:
    cluster, job = Cluster(cast(Client, Refusing())), job_object()
    meta = {"name": "a-worker-0", "namespace": "team", "uid": "p", "resourceVersion": "1"}
    cluster.pods.note_write({"metadata": meta})
    with pytest.raises(Conflict):
        await Executor(cluster).perform(job, [DeletePod("a-worker-0", "p")], NOW)
    assert [found["metadata"]["uid"] for found in cluster.pods] == ["p"]


def pod(version: int = 1, **more: Any) -> Object:
    meta = {"name": "a-worker-0", "namespace": "team", "uid": "p", "resourceVersion": str(version)}
    return {"metadata": meta | more}


async def test_a_pod_that_a_killed_operator_made_is_the_jobs_and_known_at_once() -> None:
    job = job_object()
    server = Holding({"uid": job["metadata"]["uid"]})
    labels = {JOB_NAME: job["metadata"]["name"]}
    server.pod["metadata"]["labels"] = labels
    cluster = Cluster(cast(Client, server))
    create = CreatePod({"metadata": {"name": "a-worker-0", "namespace": "team", "labels": labels}})
    await Executor(cluster).perform(job, [create], NOW)
    assert [found["metadata"]["uid"] for found in cluster.pods] == ["p"]


class Answering:
    """Notes what it is asked, and answers so."""

    def __init__(self, answer: Object | ApiError) -> None:
        self.answer, self.asked = answer, dict[str, Any]()

    async def patch(self, kind: Resource, name: str, space: str, body: Object, **_: Any) -> Object:
        return self._answered(body)

    async def delete(self, kind: Resource, name: str, namespace: str, **options: Any) -> Object:
        return self._answered(options)

    def _answered(self, asked: Object) -> Object:
        self.asked = asked
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


async def test_a_status_is_written_to_the_very_job_that_was_seen() -> None:
    job = job_object()
    server = Answering(job)
    await Executor(Cluster(cast(Client, server))).perform(job, [PatchStatus({"queue": "q"})], NOW)
    seen = {field: job["metadata"][field] for field in ("uid", "resourceVersion")}
    assert server.asked == {"metadata": seen, "status": {"queue": "q"}}


async def test_a_deletion_means_one_pod_and_is_known_before_its_event() -> None:
    server = Answering(pod(2, deletionTimestamp="2026-01-01T00:00:30Z"))
    cluster = Cluster(cast(Client, server))
    cluster.pods.note_write(pod())
    await Executor(cluster).perform(job_object(), [DeletePod("a-worker-0", "p")], NOW)
    assert server.asked["uid"] == "p"
    assert [found["metadata"].get("deletionTimestamp") for found in cluster.pods] == [
        "2026-01-01T00:00:30Z"
    ]


@pytest.mark.parametrize("action", [DeletePod("a-worker-0", "p"), PatchPod("a-worker-0", {})])
async def test_what_is_gone_already_is_forgotten(action: DeletePod | PatchPod) -> None:
    cluster = Cluster(cast(Client, Answering(NotFound(404, "NotFound", "a-worker-0"))))
    cluster.pods.note_write(pod())
    await Executor(cluster).perform(job_object(), [action], NOW)
    assert list(cluster.pods) == []


@pytest.mark.parametrize(
    ("code", "refused"),
    [(400, True), (403, True), (422, True)]
    + [(code, False) for code in (404, 408, 409, 410, 429, 500, 503)],
)
def test_only_what_somebody_has_to_change_counts_as_refused(code: int, refused: bool) -> None:
    assert is_refusal(ApiError(code, "Reason", "message")) is refused
    assert not is_refusal(TimeoutError())


class WithoutResize:
    """Refuses to resize pods."""

    def __init__(self, error: ApiError) -> None:
        self.error, self.asked, self.told = error, 0, list[Object]()

    async def create(self, kind: Resource, obj: Object) -> Object:
        self.told.append(obj)
        return obj

    async def patch(self, *_: object, **__: object) -> Object:
        self.asked += 1
        raise self.error


@pytest.mark.parametrize(
    ("code", "told"),
    [(404, True), (422, True), (403, True), (503, False)],
    ids=["before 1.33", "quality of service", "no right", "for the moment"],
)
async def test_a_refused_resize_is_told_and_holds_nothing_up(code: int, told: bool) -> None:
    error = NotFound if code == 404 else ApiError
    server = WithoutResize(error(code, "Reason", "not here"))
    cluster, job = Cluster(cast(Client, server)), job_object()
    meta = {"name": "a-worker-0", "namespace": "team", "uid": "p", "resourceVersion": "1"}
    cluster.pods.note_write({"metadata": meta})
    executor = Executor(cluster)
    for _ in range(2):
        with contextlib.nullcontext() if told else pytest.raises(ApiError):
            await executor.perform(job, [ResizePod("a-worker-0", "p", {"spec": {}})], NOW)
    await executor.settle(5)
    assert [event["reason"] for event in server.told] == ["ResizeRefused"] * told
    assert server.asked == (1 if told else 2)
    assert [found["metadata"]["uid"] for found in cluster.pods] == ["p"], "it is not taken for gone"


class Replaced:
    """Its job goes while the status is on its way, and another takes the name at once."""

    def __init__(self) -> None:
        self.cluster = Cluster(cast(Client, self))

    async def patch(self, *_: object, **__: object) -> Object:
        new = job_object()
        new["metadata"] |= {"uid": "u2", "resourceVersion": "9"}
        self.cluster.jobs.note_write(new)
        raise NotFound(404, "NotFound", "a")


async def test_an_answer_about_a_job_that_went_does_not_take_its_successor_away() -> None:
    cluster, job = Replaced().cluster, job_object()
    cluster.jobs.note_write(job)
    await Executor(cluster).perform(job, [PatchStatus({})], NOW)
    assert [found["metadata"]["uid"] for found in cluster.jobs] == ["u2"]


async def test_a_job_that_gets_no_token_says_why() -> None:
    server = Keyed()
    executor = Executor(Cluster(cast(Client, server)))
    secret = {"metadata": {"name": "a-token-u1", "namespace": "team"}}
    with pytest.raises(BadKey):
        await executor.perform(job_object(), [CreateSecret(secret)], NOW)
    await executor.settle(5)
    (event,) = server.told
    assert (event["reason"], event["type"]) == ("FailedCreateSecret", "Warning")
    assert "volcano-elastic-tokens" in event["message"]


async def test_a_job_of_thousands_leaves_room_for_the_requests_of_others() -> None:
    server = Counting()
    executor = Executor(Cluster(cast(Client, server)))
    services = [
        CreateService({"metadata": {"name": f"a-worker-{i}", "namespace": "team"}})
        for i in range(1000)
    ]
    await executor.perform(job_object(), services, NOW)
    assert (server.most, server.answered) == (AT_ONCE, 1000)


class Sluggish:
    """Takes longer for the first event of each job than for the others."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.told: list[tuple[str, str]] = []

    async def create(self, kind: Resource, obj: Object) -> Object:
        found = (obj["involvedObject"]["name"], obj["reason"])
        self.begun.append(found)
        await asyncio.sleep(0.05 if found[1] == "First" else 0)
        self.told.append(found)
        return obj


async def test_events_of_one_job_are_told_in_order_and_those_of_several_at_once() -> None:
    server = Sluggish()
    executor = Executor(Cluster(cast(Client, server)))
    for name in ("a", "b", "c"):
        job = job_object()
        job["metadata"] |= {"name": name, "uid": name}
        events = [EmitEvent(reason, "m") for reason in ("First", "Second", "Third")]
        await executor.perform(job, events, NOW)
    await executor.settle(5)
    assert server.begun[:3] == [("a", "First"), ("b", "First"), ("c", "First")]
    for name in ("a", "b", "c"):
        mine = [reason for job, reason in server.told if job == name]
        assert mine == ["First", "Second", "Third"]
