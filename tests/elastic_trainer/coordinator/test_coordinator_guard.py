"""The coordinator's guard: whom it lets in, and what strangers, floods and the unequal are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from elastic_trainer.coordinator import agent_session
from elastic_trainer.coordinator import server as server_module
from elastic_trainer.coordinator.__main__ import EXIT_PERMISSION, main
from elastic_trainer.coordinator.model import Settings
from elastic_trainer.coordinator.server import CoordinatorServer
from elastic_trainer.metrics.http import Request
from elastic_trainer.proto.coordinator_pb2 import AgentMessage
from elastic_trainer.proto.coordinator_pb2_grpc import CoordinatorStub
from elastic_trainer.proto.leases_pb2_grpc import LeasesStub
from elastic_trainer.protocol.auth import HEADER, check_compatible, check_token, is_loopback
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import MESSAGE_BYTES, VERSION, Heartbeat, Hello, Join, Round

from benchmarks.endpoint import free_endpoint

TOKEN = "token-of-this-job"
HELLO = Hello("a", 0, "127.0.0.1", version=VERSION, job="ns/job", processes=2)


@contextlib.asynccontextmanager
async def served(token: str = TOKEN) -> AsyncIterator[tuple[CoordinatorServer, int]]:
    server = CoordinatorServer("ns/job", Settings(1, 4, grace=0.0, lost_after=30.0), token)
    port, stopped = free_endpoint(), asyncio.Event()
    running = asyncio.create_task(server.run("127.0.0.1", port, stopped))
    try:
        yield server, port
    finally:
        stopped.set()
        await asyncio.wait_for(running, 120)


@contextlib.asynccontextmanager
async def attending(port: int, *messages: Any, token: str = TOKEN) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = ((HEADER, token),) if token else ()
        call = CoordinatorStub(channel).Attend(metadata=metadata, wait_for_ready=True, timeout=60)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            for message in messages:
                await call.write(encode_agent(message))
        try:
            yield call
        finally:
            call.cancel()


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details() or ""


async def test_the_jobs_own_worker_is_let_in() -> None:
    async with served() as (_, port), attending(port, HELLO, Join(5000)) as call:
        while not isinstance(told := decode(await call.read()), Round):
            pass
        assert told.members[0].agent == "a"


async def test_what_only_a_later_agent_says_is_passed_over() -> None:
    later = AgentMessage.FromString(b"\xba\x3e\x00")  # a message of field 999
    async with served() as (_, port), attending(port, HELLO) as call:
        await call.write(later)
        await call.write(encode_agent(Join(5000)))
        while not isinstance(told := decode(await call.read()), Round):
            pass
        assert told.members[0].agent == "a"


@pytest.mark.parametrize(("token", "found"), [("", "none"), ("another", "another one")])
async def test_a_stranger_is_refused_without_being_told_the_token(token: str, found: str) -> None:
    async with served() as (server, port):
        for _ in range(10):
            async with attending(port, HELLO, token=token) as call:
                code, text = await refusal(call)
            # gRPC's own word for a stream that ended while it was written to; who has it asks anew.
            if code is not grpc.StatusCode.INTERNAL:
                break
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "expected this job's token (VOLCANO_ELASTIC_TOKEN" in text and found in text
        assert TOKEN not in text
        assert not server.state.agents


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version": VERSION - 1}, f"protocol version {VERSION} or 5, found {VERSION - 1}"),
        ({"job": "ns/other"}, "expected a worker of job ns/job, found one of ns/other"),
        ({"agent": ""}, "expected a Hello that names its agent first"),
    ],
)
async def test_others_are_told_what_was_expected_and_found(
    changes: dict[str, Any], expected: str
) -> None:
    async with served() as (server, port):
        async with attending(port, replace(HELLO, **changes)) as call:
            code, text = await refusal(call)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert expected in text
        assert not server.state.agents


async def test_a_node_with_another_number_of_workers_is_refused() -> None:
    async with served() as (server, port), attending(port, HELLO) as first:
        await first.read()
        other = replace(HELLO, agent="b", pod_index=1, processes=4)
        async with attending(port, other) as call:
            code, text = await refusal(call)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "expected 2 workers a node, as worker 0 has, found 4" in text
        # The one that takes its place may differ: nobody else is there.
        async with attending(port, replace(other, pod_index=0)) as call:
            assert await call.read() is not grpc.aio.EOF
        assert set(server.state.agents) <= {"a", "b"}


async def http(port: int, request: str) -> tuple[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return head.split("\r\n")[0], body


async def test_status_is_for_holders_of_the_token_and_metrics_for_anybody() -> None:
    async with served() as (_, port):
        async with attending(port, HELLO) as call:
            await call.read()
            line, body = await http(port + 1, "GET /status HTTP/1.1\r\n\r\n")
            assert "401" in line and TOKEN not in body
            line, _ = await http(port + 1, f"GET /status HTTP/1.1\r\n{HEADER}: no\r\n\r\n")
            assert "401" in line
            line, body = await http(port + 1, f"GET /status HTTP/1.1\r\n{HEADER}: {TOKEN}\r\n\r\n")
            assert "200" in line and json.loads(body)["job"] == "ns/job"
            line, body = await http(port + 1, "GET /metrics HTTP/1.1\r\n\r\n")
        assert "200" in line
        assert 'volcano_elastic_trainer_agents{job="ns/job"} 1' in body
        assert "# TYPE volcano_elastic_trainer_failures_total counter" in body


async def test_the_range_is_changed_by_holders_of_the_token() -> None:
    async with served() as (server, port), attending(port, HELLO) as call:
        await call.read()
        for token, code in (("no", "401"), (TOKEN, "200")):
            assert server.state.settings.max_nodes == 4
            head = f"PUT /range HTTP/1.1\r\n{HEADER}: {token}\r\nContent-Length: 20\r\n\r\n"
            line, body = await http(port + 1, head + '{"min": 2, "max": 9}')
            assert code in line and TOKEN not in body
        assert json.loads(body) == {"min": 2, "max": 9}
        line, body = await http(port + 1, f"GET /status HTTP/1.1\r\n{HEADER}: {TOKEN}\r\n\r\n")
        assert json.loads(body)["range"] == {"min": 2, "max": 9}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"min": 5, "max": 2}', "expected 1 <= min <= max, found min 5, max 2"),
        (b'{"min": 0, "max": 2}', "expected 1 <= min <= max, found min 0, max 2"),
        (b'{"min": 1, "max": 1}', "no multiple of node unit 2 lies in 1..1"),
        (b"", 'expected {"min": N, "max": N} with whole numbers, found b\'\''),
        (b"[" * 1024, "expected {"),
        (b'{"min": 1}', "expected {"),
        (b'{"min": true, "max": 2}', "expected {"),
        (b'{"min": 1, "max": 2.0}', "expected {"),
        (b'{"min": 1, "max": 2, "unit": 1}', "expected {"),
    ],
)
def test_a_range_that_cannot_be_is_refused_and_the_old_one_stays(
    body: bytes, expected: str
) -> None:
    server = CoordinatorServer("ns/job", Settings(2, 4, 2), TOKEN)
    before = server.state
    found = server.respond(Request("PUT", "/range", {HEADER: TOKEN}, body))
    assert found.code.startswith("400") and expected in json.loads(found.body)["error"]
    assert server.state is before


async def test_a_message_beyond_the_limit_is_refused_and_the_rest_go_on() -> None:
    async with served() as (_, port), attending(port, HELLO) as good:
        await good.read()
        async with attending(port, replace(HELLO, agent="b" * (MESSAGE_BYTES + 1))) as call:
            code, _ = await refusal(call)
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)
        await good.write(encode_agent(Heartbeat()))
        assert await good.read() is not grpc.aio.EOF


async def test_a_flood_ends_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_session, "BURST", 100.0)
    monkeypatch.setattr(agent_session, "PER_SECOND", 10.0)
    async with served() as (server, port), attending(port, HELLO) as good:
        await good.read()
        flood = [replace(HELLO, agent="b", pod_index=1), *[Heartbeat()] * 500]
        async with attending(port, *flood) as call:
            code, _ = await refusal(call)
        assert code is not grpc.StatusCode.OK
        assert set(server.state.agents) == {"a"}


async def test_bytes_that_are_no_message_end_their_own_stream() -> None:
    said = encode_agent(replace(HELLO, agent="b", pod_index=1)).SerializeToString()
    method = "/volcano_elastic.trainer.v1.Coordinator/Attend"
    async with served() as (server, port), attending(port, HELLO) as good:
        await good.read()
        for first in ((b"\xff" * 9,), (said, b"\xff" * 9)):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_stream(method)(metadata=((HEADER, TOKEN),), timeout=60)
                for message in first:
                    await call.write(message)
                await refusal(call)
        assert set(server.state.agents) == {"a"}
        await good.write(encode_agent(Heartbeat()))


async def test_an_agent_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_session, "OUTBOX", 3)
    async with served() as (server, port), attending(port, HELLO) as call:
        await call.read()
        session = server._sessions["a"]
        for _ in range(10):
            session.put(server_module.encode_coordinator(Heartbeat()))
        await asyncio.wait_for(refusal(call), 60)
        assert not server.state.agents and not server._sessions


def test_without_a_token_only_this_machine_is_served(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VOLCANO_ELASTIC_TOKEN", raising=False)
    assert main(["--host=0.0.0.0", f"--port={free_endpoint()}"]) == EXIT_PERMISSION
    assert "VOLCANO_ELASTIC_TOKEN" in capsys.readouterr().err
    assert is_loopback("127.3.2.1") and is_loopback("localhost") and not is_loopback("0.0.0.0")


def test_a_token_is_compared_whole() -> None:
    assert check_token("", None) is None and check_token("abc", "abc") is None
    assert all(check_token("abc", given) for given in ("ab", "abcd", "ABC", "", None, "ä"))
    assert check_compatible(HELLO, "ns/job", [(1, 2), (2, 0)]) is None


def test_programs_are_compared_where_both_sides_tell_theirs() -> None:
    first = replace(HELLO, program="/a/train.py --lr 1")
    assert check_compatible(first, "ns/job", [], first.program) is None
    assert check_compatible(HELLO, "ns/job", [], first.program) is None  # of an earlier version
    assert check_compatible(first, "ns/job", []) is None
    refused = check_compatible(first, "ns/job", [], "/a/train.py --lr 2")
    assert refused is not None
    assert "/a/train.py --lr 2, found /a/train.py --lr 1" in refused and "--rdzv-id" in refused


async def test_leases_are_for_holders_of_the_token_too() -> None:
    async with served() as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = LeasesStub(channel).Attend(wait_for_ready=True, timeout=60)
        assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED
