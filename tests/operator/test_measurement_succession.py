"""A coordinator that another agent has taken over is found, and told which pods have ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from tests.operator.measuring import job, measuring, worker_zero
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.operator.coordinator_client import Followed, Report, followed_of, succession
from volcano_elastic.operator.ended_pods import EndedPods
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.pytorchjob.label import JOB_NAME, REPLICA_INDEX

Object = dict[str, Any]


def told(**more: Any) -> bytes:
    return json.dumps({"job": "team/a", "term": 1000, "address": "10.0.0.2:23456"} | more).encode()


def pod(index: int) -> Object:
    found = worker_zero(f"127.0.0.{index + 1}")
    found["metadata"] |= {
        "name": f"a-worker-{index}",
        "uid": f"later-{index}",
        "labels": {JOB_NAME: "a", REPLICA_INDEX: str(index)},
    }
    return found


def test_an_agent_says_where_the_coordinator_is() -> None:
    ours = parse(job())
    assert succession(ours, worker_zero()) == "http://10.0.0.1:23458"
    followed = Followed(1000, heard=False, url="http://10.0.0.2:23457")
    assert followed_of(told(), ours) == followed
    assert followed_of(told(heard=True), ours) == replace(followed, heard=True)
    six = followed_of(told(address="fd00::2:23456"), ours)
    assert six == replace(followed, url="http://[fd00::2]:23457")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        told(job="team/b"),
        told(address=""),
        told(address=7),
        told(address="10.0.0.2:x"),
        told(term="1000"),
    ],
)
def test_an_agent_that_knows_no_coordinator_of_this_job_says_nothing(body: bytes) -> None:
    assert followed_of(body, parse(job())) is None


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[int]:
    """Serve an elected agent's HTTP on an address of its own; yield the port."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.2", port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_the_new_host_is_asked_and_told_which_pods_have_ended() -> None:
    gone: asyncio.Queue[Object] = asyncio.Queue()
    asked = asyncio.Event()

    async def status(request: web.Request) -> web.Response:
        asked.set()
        told = {"job": "team/a", "pids": {"1": [7]}, "missing": [0], "range": {"min": 1, "max": 4}}
        return web.json_response(told)

    async def host(request: web.Request) -> web.Response:
        return web.json_response(
            {"job": "team/a", "term": 1000, "address": f"127.0.0.2:{port - 1}"}
        )

    async def note(request: web.Request) -> web.Response:
        gone.put_nowait(await request.json())
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/status", status)
    app.router.add_get("/host", host)
    app.router.add_put("/gone", note)
    # The agent's service, on the second port after the job's, and the coordinator's are one.
    async with serving(app) as port, measuring(port - 1) as (cluster, _, _):
        cluster.pods.drop(worker_zero())
        cluster.pods.note_write(pod(0))
        cluster.pods.note_write(pod(1))
        await asyncio.wait_for(asked.wait(), 120)
        anew = pod(0)
        anew["metadata"] |= {"uid": "anew", "resourceVersion": "99"}
        anew["status"] = {}
        cluster.pods.note_write(anew)  # its making is known before the other's end
        told = {"addresses": ["127.0.0.1"], "pods": [{"address": "127.0.0.1", "index": 0}]}
        assert await asyncio.wait_for(gone.get(), 120) == told


async def test_one_that_agents_call_by_a_name_is_told_which_pods_have_ended() -> None:
    gone: asyncio.Queue[Object] = asyncio.Queue()

    async def status(request: web.Request) -> web.Response:
        told = {"job": "team/a", "pids": {"1": [7]}, "missing": [0], "range": {"min": 1, "max": 4}}
        return web.json_response(told)

    async def host(request: web.Request) -> web.Response:
        return web.json_response({"job": "team/a", "term": 0, "address": "a-worker-0:23456"})

    async def note(request: web.Request) -> web.Response:
        gone.put_nowait(await request.json())
        return web.json_response({})

    coordinator, agent = web.Application(), web.Application()
    coordinator.router.add_get("/status", status)
    coordinator.router.add_put("/gone", note)
    agent.router.add_get("/host", host)
    async with (
        serving(coordinator) as port,
        serving(agent, port + 1),
        measuring(port) as (cluster, _, _),
    ):
        cluster.pods.drop(worker_zero())
        for uid, address in (("before", "127.0.0.9"), ("anew", "127.0.0.2")):
            worker = pod(0)
            worker["metadata"] |= {"uid": uid}
            worker["status"]["podIP"] = address
            cluster.pods.note_write(worker)
            if uid == "before":
                cluster.pods.drop(worker)
        told = {"addresses": ["127.0.0.9"], "pods": [{"address": "127.0.0.9", "index": 0}]}
        assert await asyncio.wait_for(gone.get(), 120) == told


def test_a_pod_that_ends_counts_no_other_of_its_node_out() -> None:
    """On hostNetwork: both have the node's address."""
    ended, here, other = EndedPods(), [], []
    for index in range(3):
        found = pod(index)
        found["status"]["podIP"] = "10.0.0.1" if index < 2 else "10.0.0.2"
        (here if index < 2 else other).append(found)
    assert not ended.report("team/a", [*here, *other])
    ended.end("team/a", here[0])
    first, second = ({"address": "10.0.0.1", "index": index} for index in range(2))
    # A trainer that knows addresses alone is told of none that another has.
    assert ended.report("team/a", [here[1], *other]) == {"addresses": [], "pods": [first]}
    ended.end("team/a", here[1])
    both = {"addresses": ["10.0.0.1"], "pods": [first, second]}
    assert ended.report("team/a", other) == both
    ended.begin("team/a", here[0])
    assert ended.report("team/a", [here[0]]) == {"addresses": [], "pods": [second]}


@pytest.mark.parametrize("hears", [False, True])
async def test_a_new_host_that_gives_no_answer_is_the_one_that_is_silent(
    monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    heard: asyncio.Queue[tuple[frozenset[int] | None, str]] = asyncio.Queue()

    def hear(self: LostPods, job: PyTorchJob, report: Report) -> None:
        assert report.asked and report.reached, "an agent answered"
        assert report.vouched is hears
        heard.put_nowait((report.heard, report.host))

    async def host(request: web.Request) -> web.Response:
        told = {"job": "team/a", "term": 1000, "address": f"127.0.0.3:{port - 1}"}
        return web.json_response(told | {"heard": hears})

    monkeypatch.setattr(LostPods, "hear", hear)
    app = web.Application()
    app.router.add_get("/host", host)
    async with serving(app) as port, measuring(port - 1) as (cluster, _, _):
        cluster.pods.drop(worker_zero())
        cluster.pods.note_write(pod(1))
        while await asyncio.wait_for(heard.get(), 120) != (None, "127.0.0.3"):
            pass
