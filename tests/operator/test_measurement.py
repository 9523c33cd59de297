"""Trainers' speeds, from the coordinator's answer to the job's status."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.measuring import (
    NOW,
    Jobs,
    answer,
    coordinator,
    emitted,
    job,
    measured,
    measuring,
    token_of,
    worker_zero,
)
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.kube.client import ApiError
from volcano_elastic.operator import measurement
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.coordinator_client import Report, read
from volcano_elastic.operator.failure_report import Exclusion
from volcano_elastic.operator.straggler_report import SlowRank, to_leave
from volcano_elastic.operator.token import HEADER
from volcano_elastic.pytorchjob.goodput import POD_STARTUP, TOLD
from volcano_elastic.pytorchjob.label import JOB_NAME, REPLICA_INDEX, REPLICA_TYPE

Object = dict[str, Any]


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
        cluster.jobs.note_write(edited)
        # Its turn is in an hour.
        await asyncio.wait_for(one.changed.wait(), 120)
    assert one.range == {"min": 1, "max": 8}


async def test_a_coordinator_that_refuses_a_range_is_said(caplog: pytest.LogCaptureFixture) -> None:
    one = Ranged(1, 1)

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "no multiple of node unit 8"}, status=400)

    def said() -> list[logging.LogRecord]:
        of = "volcano_elastic.operator.coordinator_client"
        return [record for record in caplog.records if record.name == of]

    async with coordinator(one.respond, refuse) as port, measuring(port):
        async with asyncio.timeout(120):
            while not said():  # noqa: ASYNC110  # logs tell nobody
                await asyncio.sleep(0.05)
    (record,) = said()
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
        cluster.jobs.note_write(edited)
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


async def test_speeds_of_other_sizes_may_be_of_as_many_servers_as_there_were() -> None:
    """By the trainer's word alone, which doesn't know of an edit of their number."""

    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "speeds": {"1": 50.0, "2": 88.88}})

    async with coordinator(respond) as port, measuring(port, servers=3) as (_, _, jobs):
        async with asyncio.timeout(120):
            while not jobs.patches:  # noqa: ASYNC110  # a plain server, told by nobody
                await asyncio.sleep(0.05)
    assert jobs.patches[0]["status"]["elastic"]["speeds"] == {"2": 88.9}


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
        cluster.jobs.note_write(ended)
        async with asyncio.timeout(120):
            while written() != [1, 2]:  # noqa: ASYNC110  # a plain server
                await asyncio.sleep(0.05)
        rounds = [{"round": 1, "world": 2, "time": 1e9, "reason": "start"}]
        pod = worker_zero(phase="Succeeded")
        word = {"state": {"terminated": {"message": answer(rounds=rounds).decode()}}}
        pod["status"]["containerStatuses"] = [word]
        pod["metadata"] |= {"resourceVersion": "98", "labels": {JOB_NAME: "a"}}
        cluster.pods.note_write(pod)  # the coordinator's host ends last
        async with asyncio.timeout(120):
            while "rounds" not in server.patches[-1]["status"]["elastic"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (kept,) = server.patches[-1]["status"]["elastic"]["rounds"]
        assert (kept["round"], kept["reason"]) == (1, "start")


def ended_with_word(port: int, cluster: Cluster) -> None:
    """Its one pod leaves that all of 10 samples were trained on."""
    rounds = [{"round": 1, "world": 2, "time": 1e9, "reason": "start"}]
    word = answer(rounds=rounds, progress={"samples": 10, "total": 10, "remaining_seconds": 0})
    pod = worker_zero(phase="Succeeded")
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"message": word.decode()}}}]
    pod["metadata"] |= {"resourceVersion": "98", "labels": {JOB_NAME: "a"}}
    cluster.pods.note_write(pod)
    ended = job(rdzvPort=port - 1)
    ended["metadata"] |= {"resourceVersion": "99"}
    ended["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]
    cluster.jobs.note_write(ended)


async def test_what_a_job_left_that_ended_while_no_operator_ran_is_written() -> None:
    async with measuring(9) as (cluster, _, server):
        ended_with_word(9, cluster)  # before anything is awaited
        async with asyncio.timeout(120):
            while not server.patches:  # noqa: ASYNC110  # a plain server, told by nobody
                await asyncio.sleep(0.05)
    elastic = server.patches[0]["status"]["elastic"]
    assert [one["round"] for one in elastic["rounds"]] == [1]
    assert elastic["progress"]["progressPercentage"] == 100


async def test_an_answer_from_before_a_jobs_end_does_not_replace_its_last_word() -> None:
    heard, found = asyncio.Event(), list[tuple[Cluster, Jobs]]()

    async def respond(request: web.Request) -> web.Response:
        (cluster, server), port = found[0], request.url.port
        assert port is not None
        ended_with_word(port, cluster)
        while not server.patches:  # noqa: ASYNC110  # a plain server
            await asyncio.sleep(0.01)
        progress = {"samples": 9, "total": 10, "remaining_seconds": 1}
        return web.json_response({"job": "team/a", "connected": [0], "progress": progress})

    async with (
        coordinator(respond) as port,
        measuring(port, reports_heard=lambda _: heard.set()) as (cluster, _, server),
    ):
        found.append((cluster, server))
        await asyncio.wait_for(heard.wait(), 120)
        await asyncio.sleep(0.2)
    told = [
        patch["status"]["elastic"]["progress"]["progressPercentage"] for patch in server.patches
    ]
    assert told == [100]


async def test_a_worker_that_its_coordinator_hears_no_more_is_not_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measurement, "_EVERY_SECONDS", 0.05)
    hours, told = itertools.count(), set[frozenset[int] | None]()

    async def respond(request: web.Request) -> web.Response:
        connected = [0] if {0, 1} in told else [0, 1]
        return web.json_response({"job": "team/a", "connected": connected})

    def granted() -> list[tuple[int, int]]:
        found = (patch["status"]["elastic"].get("goodput") or {} for patch in server.patches)
        return [(one["granted"], one["wanted"]) for one in found if one]

    def clock() -> datetime:
        return NOW + timedelta(hours=next(hours))

    async with (
        coordinator(respond) as port,
        measuring(port, reports_heard=lambda report: told.add(report.heard), clock=clock) as (
            cluster,
            _,
            server,
        ),
    ):
        for index in range(2):
            pod = worker_zero("127.0.0.1")
            labels = {JOB_NAME: "a", REPLICA_TYPE: "worker", REPLICA_INDEX: str(index)}
            named = {"name": f"a-worker-{index}", "uid": f"p{index}", "resourceVersion": "98"}
            pod["metadata"] |= named | {"labels": labels}
            pod["spec"] = {"nodeName": f"n{index}"}
            cluster.pods.note_write(pod)
        async with asyncio.timeout(120):
            # Two of four are ready.
            while not any(2 * known < wanted for known, wanted in granted()):  # noqa: ASYNC110
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
            cluster.jobs.note_write(edited)
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

    assert (await measured(flood, writes=False))[0] == []
    assert (await measured(elsewhere, writes=False))[0] == []
