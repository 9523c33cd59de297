"""An agent's socket: who may speak on it, and what of that is believed."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.link import message as link
from elastic_trainer.link.message import decode_from_agent, encode
from elastic_trainer.link.peer import Peer, has_ended, refusal
from elastic_trainer.link.progress import ProgressPage
from elastic_trainer.metrics.table_load import TableLoad, encoded
from elastic_trainer.protocol.message import (
    AskStanding,
    Committed,
    Doubted,
    FenceReply,
    Linked,
    Member,
    NewestCommit,
    Reported,
    Round,
    RoundStands,
    Standing,
    Tables,
    WorkersFailed,
)

pytestmark = pytest.mark.process

HELLO = link.Hello(round=1, rank=0, local_rank=0, local_world_size=1, recovers=False, error_file="")

SAVED = link.Saved(
    round=1,
    slot="slot",
    step=5,
    savers=1,
    folder="",
    keep=3,
    run=1,
    claim="",
    retry_seconds=-1.0,
)

STRANGER = """
import os, socket, sys
from elastic_trainer.link.message import Hello, encode
from elastic_trainer.link.progress import ProgressPage
if sys.argv[1] == "orphan":
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        pass
if sys.argv[1] == "user":
    os.setgroups([])
    os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(120)
connection.connect("\\0" + sys.argv[2].partition("/")[2])
hello = Hello(round=1, rank=0, local_rank=0, local_world_size=1, recovers=False, error_file="")
try:
    socket.send_fds(connection, [encode(hello)], [ProgressPage.create().fileno()])
except OSError:
    pass  # refused already
print(connection.makefile("rb").readline().decode(), flush=True)
"""


class Served:
    """A WorkerServer in round 1, and what it passed on."""

    def __init__(self, memory: Path | None) -> None:
        self.told: list[Any] = []
        self.server = WorkerServer(
            memory=memory,
            tell=self.told.append,
            failing=lambda: self.told.append("failing"),
            idle=lambda: self.told.append("idle"),
            secondary_failure=self.told.append,
            fatal=self.told.append,
        )
        self.saved: list[Any] = []
        self.server.persister.saved = self.saved.append  # type: ignore[method-assign]
        self.server.begin(1)

    async def connect(self, hello: bytes | None = None, descriptor: int | None = None) -> Client:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, "\0" + self.server.address[1:])
        if descriptor is not None:
            socket.send_fds(connection, [hello or encode(HELLO)], [descriptor])
        elif hello is not None:
            connection.send(hello)
        return Client(*await asyncio.open_unix_connection(sock=connection))

    async def worker(self) -> Client:
        page = ProgressPage.create()
        client = await self.connect(descriptor=page.fileno())
        client.page = page
        await self.until(lambda: os.getpid() in self.server.local.pids)
        return client

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


class Client:
    page: ProgressPage

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, message: link.FromWorker | bytes) -> None:
        self.writer.write(message if isinstance(message, bytes) else encode(message))

    async def answer(self) -> link.FromAgent:
        async with asyncio.timeout(120):
            return decode_from_agent(await self.reader.readline())

    async def closed(self) -> bool:
        async with asyncio.timeout(120):
            return await self.reader.read() == b""


@pytest.fixture
async def served(tmp_path: Path) -> Served:
    served = Served(tmp_path / "memory")
    await served.server.start()
    return served


async def test_a_worker_of_ours_is_linked_by_the_kernels_word_for_its_process(
    served: Served,
) -> None:
    worker = await served.worker()
    assert served.server.local.pids == (os.getpid(),)
    worker.page.stepped(7, 64)
    worker.page.stalled(1.5)
    reading = served.server.reading()
    assert (reading.step, reading.samples, reading.stall) == (7, 64, 1.5)
    worker.writer.close()


async def stranger(kind: str, served: Served) -> link.FromAgent:
    address = f"{os.getpid()}/{served.server.address[1:]}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STRANGER, kind, address), stdout=subprocess.PIPE
    )
    async with asyncio.timeout(120):
        said, _ = await process.communicate()
    return decode_from_agent(said)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_and_it_is_logged_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        refused = await stranger("user", served)
        assert isinstance(refused, link.Refused)
        assert "expected a process of user 0, found one of user 65534" in refused.reason
    assert not served.server.local.workers and not served.told
    assert len(caplog.records) == 1 and "user 65534" in caplog.text


async def test_a_process_that_does_not_descend_from_the_agent_is_refused(served: Served) -> None:
    refused = await stranger("orphan", served)
    assert isinstance(refused, link.Refused)
    assert f"expected a descendant of process {os.getpid()}, found process" in refused.reason
    assert not served.server.local.workers


async def test_a_descendant_is_a_worker(served: Served) -> None:
    asking = asyncio.ensure_future(stranger("child", served))
    await served.until(lambda: 0 in served.server.local.workers)
    assert served.server.local.pids[0] != os.getpid()
    served.server.end()
    assert await asking == link.RoundOver(1)


async def test_a_workers_child_process_never_takes_its_place(served: Served) -> None:
    worker = await served.worker()
    refused = await stranger("child", served)
    assert isinstance(refused, link.Refused)
    assert f"expected one process for local rank 0 of round 1, which is {os.getpid()}" in (
        refused.reason
    )
    assert "unset VOLCANO_ELASTIC_AGENT_SOCKET" in refused.reason
    assert served.server.local.pids == (os.getpid(),)
    served.server.ask(1, at_once=True)
    assert await worker.answer() == link.AskStep(1, True)
    worker.say(link.StepInProgress(1, 4))
    await served.until(lambda: FenceReply(1, 4) in served.told)
    assert not any(isinstance(one, WorkersFailed) for one in served.told)
    worker.writer.close()


async def test_a_child_process_that_came_first_gives_way_to_its_worker(served: Served) -> None:
    asking = asyncio.ensure_future(stranger("child", served))
    await served.until(lambda: 0 in served.server.local.workers)
    worker = await served.worker()
    refused = await asking
    assert isinstance(refused, link.Refused)
    assert f"local rank 0 of round 1, which is {os.getpid()}, found" in refused.reason
    assert served.server.local.pids == (os.getpid(),)
    assert not any(isinstance(one, WorkersFailed) for one in served.told)
    worker.writer.close()


async def test_a_worker_is_followed_by_another_once_it_has_ended(served: Served) -> None:
    address = f"{os.getpid()}/{served.server.address[1:]}"
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", STRANGER, "child", address)
    await served.until(lambda: served.server.local.pids == (first.pid,))
    first.kill()
    await first.wait()
    asking = asyncio.ensure_future(stranger("child", served))
    await served.until(lambda: served.server.local.pids not in ((), (first.pid,)))
    refused = await stranger("child", served)  # a sibling, while the second lives
    assert isinstance(refused, link.Refused)
    served.server.end()
    assert await asking == link.RoundOver(1)


def test_descent_is_told_by_parents() -> None:
    parents = {40: 30, 30: 20, 20: 1, 50: 1, 7: 0}
    assert refusal(Peer(40, 1000), 1000, 20, lambda pid: parents[pid]) is None
    assert refusal(Peer(20, 1000), 1000, 20, lambda pid: parents[pid]) is None
    for pid in (50, 7, 0):  # 0: in another container, of the same network
        assert refusal(Peer(pid, 1000), 1000, 20, lambda pid: parents[pid]) is not None
    assert refusal(Peer(40, 0), 1000, 20, lambda pid: parents[pid]) is not None


async def test_a_hello_brings_sealed_memory_and_nothing_else(
    served: Served, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 40)
    refusals = []
    with open(precious, "rb+") as file:
        refusals.append(await (await served.connect(descriptor=file.fileno())).answer())
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 40)
    refusals.append(await (await served.connect(descriptor=unsealed)).answer())
    os.close(unsealed)
    refusals.append(await (await served.connect(encode(HELLO))).answer())
    refusals.append(await (await served.connect(b'{"type": "hello", "progress": "/x"}\n')).answer())
    refusals.append(await (await served.connect(encode(link.Goodbye()))).answer())
    assert [type(one) for one in refusals] == [link.Refused] * 5, refusals
    assert precious.read_bytes() == b"x" * 40
    assert not served.server.local.workers


@pytest.mark.parametrize("slot", ["../elsewhere", "/etc/passwd", "", ".", "..", "a/b", "a\0b"])
async def test_saved_names_a_slot_of_the_memory_folder_and_no_path(
    served: Served, slot: str
) -> None:
    worker = await served.worker()
    worker.say(replace(SAVED, slot="slot-0"))
    worker.say(replace(SAVED, slot=slot))
    refused = await worker.answer()
    assert isinstance(refused, link.Refused)
    assert "Saved.slot: expected a file's name" in refused.reason
    assert await worker.closed()
    assert [Path(one.path).name for one in served.saved] == ["slot-0"]


async def test_a_worker_may_ask_what_is_known_of_a_storages_commits(served: Served) -> None:
    worker = await served.worker()
    served.server.learn((NewestCommit("ours", 40), NewestCommit("other", 90)))  # by a round
    worker.say(link.Committed(1, 60, "ours", 4096))
    answers = []
    for place in ("ours", "other", "unheard of"):
        worker.say(link.AskNewestCommit(place))
        answers.append(await worker.answer())
    assert answers == [link.NewestCommit(60), link.NewestCommit(90), link.NewestCommit(-1)]
    assert Committed(1, 60, place="ours", size=4096) in served.told


async def test_figures_are_passed_on_and_what_is_none_is_refused(served: Served) -> None:
    worker = await served.worker()
    worker.say(link.Reported('{"loss": "0.31"}'))
    await served.until(lambda: Reported(("loss",), ("0.31",)) in served.told)
    worker.say(link.Reported('{"loss": 0.31}'))
    refused = await worker.answer()
    assert isinstance(refused, link.Refused) and "Reported.figures: expected" in refused.reason


async def test_what_a_worker_holds_of_tables_is_passed_on_and_kept_for_metrics(
    served: Served,
) -> None:
    worker = await served.worker()
    held = {"items": TableLoad(rows=5, hot_ids=(7,), hot_share=(0.5,))}
    worker.say(link.Tables(encoded(held)))
    await served.until(lambda: Tables((encoded(held),)) in served.told)
    assert served.server.tables() == {0: held}
    worker.say(link.Tables('{"items": 5}'))
    refused = await worker.answer()
    assert isinstance(refused, link.Refused) and "Tables.loads: expected" in refused.reason


async def test_a_run_that_began_is_told_to_the_coordinator_and_with_the_next_place(
    served: Served,
) -> None:
    worker = await served.worker()
    worker.say(link.Joined(1, 70, 0))
    await served.until(lambda: Linked(1, (os.getpid(),), False, 70) in served.told)
    served.server.reassign(Round(2, (Member("a"),), "127.0.0.1", 1), 0)  # it knows of less
    place = await worker.answer()
    assert isinstance(place, link.Place) and place.last_run == 70


async def test_a_worker_that_doubts_its_round_is_told_that_it_stands(served: Served) -> None:
    worker = await served.worker()
    worker.say(link.Failing(True))
    await served.until(lambda: Doubted(1, 1) in served.told)
    served.server.stands(AskStanding(1, 5))
    assert served.told[-1] == Standing(1, 5), "who only asks is there"
    served.server.round_stands(RoundStands(1, 0))  # what was asked before
    assert served.server.local.failing
    served.server.round_stands(RoundStands(1, 1))
    assert not served.server.local.failing, "its script may pass over the error, and train on"
    worker.say(link.Settle(False))
    assert [await worker.answer(), await worker.answer()] == [link.RoundStands(), link.Settled("")]
    served.server.stands(AskStanding(1, 6))
    assert served.told[-1] == Standing(1, 6), "others may have the same error just then"


async def test_an_error_before_any_round_is_the_workers_own_at_once(served: Served) -> None:
    served.server.begin(0)  # started beforehand, and it fails as it warms up
    page = ProgressPage.create()
    worker = await served.connect(encode(replace(HELLO, round=0)), page.fileno())
    worker.say(link.Failing(True))
    worker.say(link.Settle(False))
    assert await worker.answer() == link.RoundStands()
    assert not any(isinstance(one, Doubted) for one in served.told)


async def test_a_worker_that_ends_by_an_error_is_not_said_to_be_there(served: Served) -> None:
    worker = await served.worker()
    worker.say(link.Failing(False))
    await served.until(lambda: "failing" in served.told)
    worker.say(link.Ending())
    worker.say(link.Settle(False))
    await worker.answer()
    served.server.stands(AskStanding(1, 1))
    served.server.begin(2)
    served.server.stands(AskStanding(1, 2))  # which is over
    assert not any(isinstance(one, Standing) for one in served.told)


@pytest.mark.parametrize("live", [False, True])
async def test_who_is_asked_before_its_workers_have_their_places_answers_then(
    served: Served, live: bool
) -> None:
    await served.worker()
    served.server.stands(AskStanding(2, 1))
    assert not any(isinstance(one, Standing) for one in served.told)
    if live:
        served.server.reassign(Round(2, (Member("a"),), "127.0.0.1", 1), 0)
    else:
        served.server.begin(2)
    assert served.told[-1] == Standing(2, 1)


async def test_a_worker_that_says_goodbye_is_there_once_it_has_ended_well(served: Served) -> None:
    worker = await served.worker()
    worker.say(link.Goodbye())
    worker.say(link.Settle(False))
    await worker.answer()
    worker.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    served.server.stands(AskStanding(1, 1))
    assert not any(isinstance(one, Standing) for one in served.told), "it may have failed"
    served.server.local.ended.add(os.getpid())
    served.server.answer_again()
    assert served.told[-1] == Standing(1, 1)


async def test_a_workers_end_is_known_before_it_is_read(served: Served) -> None:
    worker = await served.worker()
    worker.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    served.server.stands(AskStanding(1, 1))
    assert WorkersFailed(1) not in served.told
    await served.until(lambda: WorkersFailed(1) in served.told)
    served.server.stands(AskStanding(1, 1))
    assert not any(isinstance(one, Standing) for one in served.told)


def test_a_process_has_ended_though_its_connection_is_still_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        assert not has_ended(ours, process.pid)
        assert not has_ended(ours, 0), "of another namespace"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(ours, process.pid)
        process.wait()
        assert has_ended(ours, process.pid)


async def test_nothing_that_a_worker_says_ends_the_agents_service(served: Served) -> None:
    """Whatever comes, it is refused in words or heard, and the next worker is served."""
    chance = random.Random(7)
    good = [
        encode(one)
        for one in (
            link.Stepped(),
            link.Stopped(),
            link.StepInProgress(3, 4),
            link.Fenced(2, 5),
            link.Committed(1, 5, "place"),
            link.Reported('{"loss": "0.31"}'),
            link.Tables("{}"),
            link.AskNewestCommit("place"),
            SAVED,
            link.Settle(True),
            link.Failing(True),
            link.Ending(),
            link.Idle(1),
            link.Joined(1, 5, 0),
            link.SecondaryFailure(),
            link.Parked(),
            link.GivenUp("it can't be"),
            HELLO,
        )
    ]
    for number in range(150):
        line = bytearray(chance.choice(good))
        for _ in range(chance.randrange(3)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        if number % 3 == 0:
            line = bytearray(chance.randbytes(chance.randrange(1, 400)))
        served.server.begin(1)
        worker = await served.worker()
        worker.say(bytes(line))
        worker.say(b"\n" if number % 2 else b"x" * 70000)  # which no worker says
        heard = [decode_from_agent(one) async for one in worker.reader]
        assert isinstance(heard[-1], link.Refused), heard
    served.server.begin(1)
    worker = await served.worker()
    worker.say(link.Committed(1, 1234, ""))
    await served.until(lambda: served.server.committed_step == 1234)
    worker.writer.close()
