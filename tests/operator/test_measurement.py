"""What trainers tell of their speed, from the coordinator's answer to the job's status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.world import job_object, merged
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.operator import measurement
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.coordinator_client import Report, endpoint, owed, read
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.failure_report import Exclusion
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.measurement import (
    Measurement,
    due,
    news,
    pause_to_write,
    units,
    used,
)
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.operator.straggler_report import SlowRank, to_leave
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.operator.token import HEADER
from volcano_elastic.pytorchjob.goodput import POD_STARTUP, TOLD

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(*, backend: str = "volcano-elastic", **more: Any) -> Object:
    obj = job_object(elastic={"min": 1, "max": 4, "rdzvBackend": backend} | more)
    obj["kind"] = "PyTorchJob"
    obj["status"] = {"elastic": {"desired": 2, "ready": 2}}
    return obj


def worker_zero(address: str = "10.0.0.1", phase: str = "Running") -> Object:
    owner = {"kind": "PyTorchJob", "name": "a", "uid": "u1", "controller": True}
    meta = {"name": "a-worker-0", "namespace": "team", "uid": "p0", "ownerReferences": [owner]}
    return {"metadata": meta, "status": {"phase": phase, "podIP": address}}


def answer(**more: Any) -> bytes:
    return json.dumps({"job": "team/a"} | more).encode()


def test_only_a_running_coordinator_of_ours_is_asked() -> None:
    ours = parse(job())
    assert endpoint(ours, worker_zero()) == "http://10.0.0.1:23457"
    assert endpoint(ours, worker_zero("fd00::1")) == "http://[fd00::1]:23457"
    assert endpoint(parse(job(rdzvPort=1234)), worker_zero()) == "http://10.0.0.1:1235"
    assert endpoint(ours, worker_zero(phase="Pending")) is None
    assert endpoint(ours, None) is None
    assert endpoint(parse(job(backend="c10d")), worker_zero()) is None
    assert endpoint(parse(job(rdzvHost="elsewhere")), worker_zero()) is None, "not ours to ask"
    assert endpoint(parse(job(rdzvHost="a-worker-0")), worker_zero()), "it says what is so anyway"


def test_speeds_and_the_usual_pause_are_read() -> None:
    rounds = [{"pause_seconds": pause} for pause in (None, 30, 0.52, 0.48, 0.5, 0.5, 9)]
    found = read(answer(speeds={"1": 101.23, "4": 404}, rounds=rounds), parse(job()))
    assert found == Report({1: 101.0, 4: 404.0}, timedelta(seconds=0.5))


def test_the_master_is_no_worker() -> None:
    obj = job_object(elastic={"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}, master=True)
    assert read(answer(speeds={"1": 5, "3": 12}), parse(obj)).speeds == {2: 12.0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"not JSON",
        answer(job="team/b", speeds={"1": 5}),
        answer(speeds=[1], rounds={"a": 1}),
        answer(speeds={"-1": 5, "0": 5, "x": 5, "9": 5, "²": 5, "1": -3, "2": "fast", "3": True}),
        b'{"job": "team/a", "speeds": {"1": NaN, "2": Infinity}}',
        answer(rounds=[None, {"pause_seconds": "long"}, {}]),
    ],
)
def test_an_answer_that_makes_no_sense_says_nothing(body: bytes) -> None:
    assert read(body, parse(job())) == Report()


def test_a_coordinator_is_owed_the_range_when_it_goes_by_another() -> None:
    def nodes(told: Any, obj: Object) -> tuple[int, int] | None:
        parsed = parse(obj)
        return owed(parsed, read(answer(range=told), parsed))

    policy: Object = {"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}
    for ends in ((1, 4), (2, 4), (1, 3)):
        told = {"min": ends[0], "max": ends[1]}
        assert nodes(told, job()) == (None if ends == (1, 4) else (1, 4))
        master = job_object(elastic=policy, master=True)
        assert nodes(told, master) == (2, 5), "the Master is a node too"
    assert nodes({"min": 2, "max": 5}, job_object(elastic=policy, master=True)) is None
    for nonsense in (None, [1, 2], {"min": 1}, {"min": "1", "max": 9}):
        assert nodes(nonsense, job()) is None, "a trainer of an older version cannot be told"
    assert (
        owed(parse(job()), read(answer(job="team/b", range={"min": 9, "max": 9}), parse(job())))
        is None
    )


def test_who_is_connected_is_heard_whether_it_trains_or_not() -> None:
    def heard(**more: Any) -> frozenset[int] | None:
        return read(answer(**more), parse(job())).heard

    assert heard(connected=[0, 2], pids={"0": [7]}) == {0, 2}
    assert heard(pids={"0": [7]}) == {0}, "of a trainer of an older version"
    assert heard(connected=["0", -1, True, 10**9, 1]) == {1}
    assert heard() is None


def test_noise_is_not_written() -> None:
    known = {"1": 100, "2": 190}
    assert news(known, {1: 104.0, 2: 181.0}) == {}
    assert news(known, {1: 106.0, 2: 190.0, 3: 250.0}) == {"1": 106.0, "3": 250.0}


def test_a_pause_is_written_when_it_is_the_first_or_another_than_before() -> None:
    usual = timedelta(seconds=2)
    assert pause_to_write(None, usual) == 2.0
    assert pause_to_write(1.7, usual) is None
    assert pause_to_write(1.5, usual) == 2.0
    assert pause_to_write(0, timedelta(0)) is None
    assert pause_to_write(2.0, None) is None


def test_hours_are_written_at_a_change_of_size_and_every_few_minutes() -> None:
    use = used(None, 8, 2, 1.5, NOW)
    assert use.hours == 1.5 and not due(use, 2, NOW)
    use = used(use, 8, 2, 99.0, NOW + timedelta(seconds=90))
    assert use.hours == pytest.approx(1.7), "8 GPUs for 90 s"
    assert due(use, 3, NOW + timedelta(seconds=90))
    assert not due(use, 2, NOW + timedelta(seconds=90))
    assert due(use, 2, NOW + timedelta(minutes=6))


class Jobs:
    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self.cluster, self.patches = cluster, list[Object]()
        self.created = list[Object]()

    async def create(self, kind: Any, body: Object) -> Object:
        self.created.append(body)
        return body

    async def patch(
        self, kind: Any, name: str, namespace: str, body: Object, *, subresource: str
    ) -> Object:
        self.patches.append(body)
        old = self.cluster().jobs.get(f"{namespace}/{name}")
        assert old is not None and body["metadata"]["uid"] == old["metadata"]["uid"]
        new = cast(Object, merged(old, {"status": body["status"]}))
        version = str(int(old["metadata"]["resourceVersion"]) + 1)
        return new | {"metadata": old["metadata"] | {"resourceVersion": version}}


@asynccontextmanager
async def coordinator(
    respond: Callable[[web.Request], Any], change: Callable[[web.Request], Any] | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/status", respond)
    if change is not None:
        app.router.add_put("/range", change)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def test_hours_add_up_what_each_pod_holds() -> None:
    gpu = "nvidia.com/gpu"
    assert units([{gpu: 1000}, {gpu: 3000, "cpu": 8000}], gpu) == 2.0
    assert units([{"cpu": 500}], gpu) == 0.5, "without GPUs it is cpu that counts"


async def token_of(uid: str) -> str:
    return f"token of {uid}"


@asynccontextmanager
async def measuring(
    port: int,
    token_of: Callable[[str], Awaitable[str]] = token_of,
    heard: Callable[[Sequence[Exclusion]], None] = lambda _: None,
    policy: Object | None = None,
    reports_heard: Callable[[Report], None] = lambda _: None,
) -> AsyncIterator[tuple[Cluster, SnapshotBuilder, Jobs]]:
    """One job, whose coordinator is at `port`, is asked again and again."""
    server = Jobs(lambda: cluster)
    cluster = Cluster(cast(Client, server))
    builder = SnapshotBuilder()

    class HeardPods(LostPods):
        def hear(self, job: PyTorchJob, report: Report) -> None:
            super().hear(job, report)
            reports_heard(report)

    lost_pods = HeardPods(cluster, builder, lambda: NOW, timedelta(seconds=300))

    class HeardNodes(FailedNodes):
        def hear(self, job: PyTorchJob, told: Sequence[Exclusion]) -> None:
            super().hear(job, told)
            heard(told)

    failed_nodes = HeardNodes(cluster, lambda: NOW)
    survivors = Survivors(cluster, builder, lambda: NOW)
    measurement = Measurement(
        cluster, builder, lambda: NOW, token_of, lost_pods, failed_nodes, survivors
    )
    for informer in (cluster.jobs, cluster.pods):
        informer.on_change(lambda old, new: builder.change(old, new) and None)
    if policy is not None:
        builder.change(None, policy)
    cluster.jobs.put(job(rdzvPort=port - 1))
    cluster.pods.put(worker_zero("127.0.0.1"))
    task = asyncio.create_task(measurement.run())
    try:
        yield cluster, builder, server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measured(
    respond: Callable[[web.Request], Any],
) -> tuple[list[Object], SnapshotBuilder]:
    """What is written of one job after it was asked once."""
    asked = asyncio.Event()

    async def responding(request: web.Request) -> Any:
        asked.set()
        return await respond(request)

    async with coordinator(responding) as port, measuring(port) as (_, builder, server):
        await asyncio.wait_for(asked.wait(), 120)
        await asyncio.sleep(0.5)
        return server.patches, builder


async def emitted(respond: Callable[[web.Request], Any]) -> Object:
    """The one event that is emitted of a coordinator's answers."""
    async with coordinator(respond) as port, measuring(port) as (_, _, server):
        async with asyncio.timeout(120):
            while not server.created:  # noqa: ASYNC110  # a plain server, told by nobody
                await asyncio.sleep(0.05)
    (event,) = server.created
    return event


class Ranged:
    """A coordinator with a range."""

    def __init__(self, low: int, high: int) -> None:
        self.range = {"min": low, "max": high}
        self.asked = asyncio.Event()
        self.changed = asyncio.Event()
        self.tokens: set[str | None] = set()

    async def respond(self, request: web.Request) -> web.Response:
        self.asked.set()
        return web.json_response({"job": "team/a", "range": self.range})

    async def change(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get(HEADER))
        self.range = await request.json()
        self.changed.set()
        return web.json_response(self.range)


async def test_a_coordinator_that_was_started_with_another_range_is_told_the_jobs() -> None:
    one = Ranged(2, 2)
    async with coordinator(one.respond, one.change) as port, measuring(port):
        await asyncio.wait_for(one.changed.wait(), 120)
    assert one.range == {"min": 1, "max": 4} and one.tokens == {"token of u1"}


async def test_an_edited_range_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "_EVERY_SECONDS", 3600.0)
    one = Ranged(1, 4)
    async with coordinator(one.respond, one.change) as port, measuring(port) as (cluster, _, _):
        await asyncio.wait_for(one.asked.wait(), 120)
        edited = job(rdzvPort=port - 1, max=8)
        edited["metadata"] |= {"generation": 2, "resourceVersion": "99"}
        cluster.jobs.put(edited)
        # Its turn is in an hour.
        await asyncio.wait_for(one.changed.wait(), 120)
    assert one.range == {"min": 1, "max": 8}


async def test_a_coordinator_that_refuses_a_range_is_said(caplog: pytest.LogCaptureFixture) -> None:
    one, refused = Ranged(1, 1), asyncio.Event()

    async def refuse(request: web.Request) -> web.Response:
        refused.set()
        return web.json_response({"error": "no multiple of node unit 8"}, status=400)

    async with coordinator(one.respond, refuse) as port, measuring(port):
        await asyncio.wait_for(refused.wait(), 120)
        await asyncio.sleep(0.2)
    (record,) = [
        r for r in caplog.records if r.name == "volcano_elastic.operator.coordinator_client"
    ]
    assert "/range refuses {'min': 1, 'max': 4}: 400" in record.getMessage()
    assert "no multiple of node unit 8" in record.getMessage()


async def test_a_coordinator_that_could_not_be_asked_is_not_taken_for_silent() -> None:
    tokens, refused, told = 0, asyncio.Event(), asyncio.Queue[Report]()

    async def first_token_only(uid: str) -> str:
        nonlocal tokens
        tokens += 1
        if tokens == 1:
            return await token_of(uid)
        refused.set()
        raise ApiError(500, "InternalError", "etcdserver: request timed out")

    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "pids": {"0": [1]}})

    async with (
        coordinator(respond) as port,
        measuring(port, first_token_only, reports_heard=told.put_nowait) as (cluster, _, _),
    ):
        assert (await asyncio.wait_for(told.get(), 120)).heard == {0}
        edited = job(rdzvPort=port - 1, max=8)  # is told at once, were there a token
        edited["metadata"] |= {"generation": 2, "resourceVersion": "99"}
        cluster.jobs.put(edited)
        await asyncio.wait_for(refused.wait(), 120)
        assert not (await asyncio.wait_for(told.get(), 120)).asked


async def test_what_the_coordinator_tells_is_in_the_jobs_status_and_in_the_picture() -> None:
    async def respond(request: web.Request) -> web.Response:
        told = {"job": "team/a", "speeds": {"2": 88.88}, "rounds": [{"pause_seconds": 3.04}]}
        return web.json_response(told)

    patches, builder = await measured(respond)
    told = {"speeds": {"2": 88.9}, "pauseSeconds": 3.04}
    assert [patch["status"] for patch in patches] == [{"elastic": told}]
    seen = builder.snapshot().jobs[0]
    assert (seen.speeds, seen.pause) == ({2: 88.9}, timedelta(seconds=3.04))


async def test_how_far_training_is_stands_in_the_jobs_status() -> None:
    async def respond(request: web.Request) -> web.Response:
        told = {"samples": 401, "total": 1000, "remaining_seconds": 59.2}
        return web.json_response({"job": "team/a", "progress": told})

    patches, _ = await measured(respond)
    assert [patch["status"]["elastic"]["progress"] for patch in patches] == [
        {
            "progressPercentage": 40,
            "estimatedRemainingSeconds": 60,
            "lastUpdatedTime": moment.timestamp(NOW),
        }
    ]


async def test_a_storage_that_was_committed_to_is_in_the_jobs_status() -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "commits": {"0123456789abcdef": 40}})

    patches, _ = await measured(respond)
    assert [patch["status"]["elastic"] for patch in patches] == [
        {"commits": {"0123456789abcdef": 40}}
    ]


@pytest.mark.parametrize(
    "told",
    [
        [1],
        "x",
        {"0123456789abcdef": -1, "fedcba9876543210": True, "a b=1": 4, "0123456789": "4"},
        {f"{place:016x}": 1 for place in range(65)},
    ],
)
def test_commits_that_make_no_sense_are_not_passed_on(told: object) -> None:
    assert read(answer(commits=told), parse(job())).commits == {}


async def test_what_gpu_time_was_used_for_is_in_the_jobs_status() -> None:
    spent = {use: number for number, use in enumerate(TOLD)}

    async def respond(request: web.Request) -> web.Response:
        told = {"job": "team/a", "goodput": {"id": "x", "milliseconds": spent, "held": 36}}
        return web.json_response(told)

    patches, _ = await measured(respond)
    (goodput,) = [patch["status"]["elastic"]["goodput"] for patch in patches]
    assert (goodput["ledger"], goodput["milliseconds"]) == ("x", {**spent, POD_STARTUP: 0})


async def test_a_job_that_ends_has_its_last_ledger_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "_EVERY_SECONDS", 0.1)
    asked, twice = 0, asyncio.Event()

    async def respond(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise web.HTTPServiceUnavailable  # its coordinator is gone
        if asked == 2:
            monkeypatch.setattr(measurement, "_EVERY_SECONDS", 600.0)
            twice.set()
        told = {"id": "x", "milliseconds": dict.fromkeys(TOLD, asked), "processes": 1}
        return web.json_response({"job": "team/a", "pids": {}, "goodput": told})

    def written() -> list[int]:
        told = [patch["status"]["elastic"].get("goodput") for patch in server.patches]
        return [one["milliseconds"]["productive_training"] for one in told if one]

    async with coordinator(respond) as port, measuring(port) as (cluster, _, server):
        await asyncio.wait_for(twice.wait(), 120)
        await asyncio.sleep(0.5)
        assert written() == [1], "not at every turn"
        ended = job(rdzvPort=port - 1)
        ended["metadata"] |= {"resourceVersion": "99"}
        ended["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]
        cluster.jobs.put(ended)
        async with asyncio.timeout(120):
            while written() != [1, 2]:  # noqa: ASYNC110  # a plain server
                await asyncio.sleep(0.05)


async def test_a_node_that_is_left_out_of_training_is_an_event_once() -> None:
    asked = 0

    async def respond(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        bad = {"node": "gpu-7", "workers": [3, 2], "reason": "its devices failed in rounds 1 and 2"}
        told = {"job": "team/a", "excluded": [bad, {"node": "x"}, None]}
        return web.json_response(told)

    async with coordinator(respond) as port, measuring(port) as (cluster, _, server):
        async with asyncio.timeout(120):
            while not server.created:  # noqa: ASYNC110  # a plain server, told by nobody
                await asyncio.sleep(0.05)
            before, edited = asked, job(rdzvPort=port - 1)
            edited["metadata"] |= {"generation": 2, "resourceVersion": "99"}
            cluster.jobs.put(edited)
            while asked == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    (event,) = server.created
    assert (event["type"], event["reason"]) == ("Warning", "NodeExcluded")
    assert event["involvedObject"]["name"] == "a"
    assert event["message"] == (
        "Node gpu-7 is left out of training (workers 2, 3): its devices failed in rounds 1 and 2"
    )


async def test_a_round_that_hung_is_an_event_once_and_one_that_was_at_work_is_none() -> None:
    hung = {"round": 8, "step": 119, "seconds": 61.2, "broken": True, "words": "rank 1 is behind"}

    async def respond(request: web.Request) -> web.Response:
        told = {"job": "team/a", "hangs": [hung, {**hung, "broken": False}, {"broken": 1}, None]}
        return web.json_response(told)

    event = await emitted(respond)
    assert (event["type"], event["reason"]) == ("Warning", "TrainingHung")
    assert event["message"].startswith(
        "Round 8 was ended: no step for 61 s after step 119; rank 1 is behind; "
    )


async def test_a_rank_that_slows_its_job_down_is_an_event_once() -> None:
    slow = {"rank": 3, "worker": 1, "node": "gpu-7", "cause": "input", "score": 9.0, "since": 5.0}
    slow |= {"batch_seconds": 0.4, "others_batch_seconds": 0.1}
    nonsense = [{**slow, "cause": "?"}, {**slow, "batch_seconds": 1e999}, {}, None, 3]

    async def respond(request: web.Request) -> web.Response:
        told = {"job": "team/a", "stragglers": [slow, {**slow, "batch_seconds": 0.5}, *nonsense]}
        return web.json_response(told)

    event = await emitted(respond)
    assert (event["type"], event["reason"]) == ("Warning", "StragglerFound")
    assert event["message"] == (
        "Rank 3 (worker 1, node gpu-7) slows the job down: a batch takes it 0.4 s by itself, and "
        "the others 0.1 s; the difference is waiting for data"
    )


async def test_a_rank_whose_state_differs_is_an_event_once() -> None:
    found = {"rank": 3, "worker": 1, "node": "gpu-7", "step": 80, "agreed_step": 70}
    found |= {"outvoted": True, "since": 5.0, "until": None}
    nonsense = [{**found, "step": "?"}, {}, None, 3]

    async def respond(request: web.Request) -> web.Response:
        told = {"job": "team/a", "diverged": [found, {**found, "until": 9.0}, *nonsense]}
        return web.json_response(told)

    event = await emitted(respond)
    assert (event["type"], event["reason"]) == ("Warning", "StateDiverged")
    assert event["message"] == (
        "Rank 3 (worker 1, node gpu-7) has another state than others at step 80, where all should "
        "have the same; all agreed at step 70; it takes theirs at the next round"
    )


@pytest.mark.parametrize("wanted", ["Report", "Replace"])
async def test_a_slow_workers_node_is_avoided_where_the_policy_says_so(wanted: str) -> None:
    slow = {"rank": 3, "worker": 1, "node": "gpu-7", "cause": "compute"}
    slow |= {"batch_seconds": 0.4, "others_batch_seconds": 0.1}
    policy = {
        "kind": "QueuePolicy",
        "metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queue": "default", "nodes": {"stragglers": wanted}},
    }
    told = asyncio.Queue[Sequence[Exclusion]]()

    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "pids": {}, "stragglers": [slow]})

    async with (
        coordinator(respond) as port,
        measuring(port, heard=told.put_nowait, policy=policy),
    ):
        found = await asyncio.wait_for(told.get(), 120)
    assert [one.node for one in found] == (["gpu-7"] if wanted == "Replace" else [])


@pytest.mark.parametrize("wanted", ["Report", "Replace"])
async def test_the_node_of_an_outvoted_state_is_avoided_where_the_policy_says_so(
    wanted: str,
) -> None:
    one = {"rank": 3, "worker": 1, "node": "gpu-7", "step": 80, "agreed_step": 70, "outvoted": True}
    tied = {**one, "rank": 4, "node": "gpu-8", "outvoted": False}
    policy = {
        "kind": "QueuePolicy",
        "metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queue": "default", "nodes": {"diverged": wanted}},
    }
    told = asyncio.Queue[Sequence[Exclusion]]()

    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "pids": {}, "diverged": [one, tied]})

    async with (
        coordinator(respond) as port,
        measuring(port, heard=told.put_nowait, policy=policy),
    ):
        found = await asyncio.wait_for(told.get(), 120)
    assert [one.node for one in found] == (["gpu-7"] if wanted == "Replace" else [])


@given(st.integers(1, 99), st.integers(1, 999), st.integers(1, 999))
def test_a_slow_workers_node_is_left_only_where_fewer_workers_make_more_of_it(
    workers: int, seconds: int, others: int
) -> None:
    left = to_leave([SlowRank(1, 3, "gpu-7", seconds, others, "input")], workers)
    # Samples a second: all wait for the slow one, or the others do without it.
    assert bool(left) == (Fraction(workers - 1, others) > Fraction(workers, seconds))


async def test_a_job_whose_token_cannot_be_made_is_measured_but_for_its_speed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = asyncio.Event()

    async def forbidden(uid: str) -> str:
        refused.set()
        raise ApiError(403, "Forbidden", "secrets is forbidden")

    async def respond(request: web.Request) -> web.Response:
        raise AssertionError("nobody asks without a token")

    async with coordinator(respond) as port, measuring(port, forbidden):
        await asyncio.wait_for(refused.wait(), 120)
        await asyncio.sleep(0.5)
    record, *_ = [r for r in caplog.records if r.name == "volcano_elastic.operator.measurement"]
    assert "team/a: its speed is not asked for: " in record.getMessage()
    assert record.exc_info is None, "it is foreseen"


async def test_a_coordinator_that_answers_too_much_or_elsewhere_is_not_heard() -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for _ in range(40):
            await stream.write(b" " * 65536)
        await stream.write(answer(speeds={"1": 5}))
        return stream

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/secret")

    assert (await measured(flood))[0] == []
    assert (await measured(elsewhere))[0] == []
