"""The worker's end of the link, whatever the agent says and when: no word makes a worker wait for
what nobody owes it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from elastic_trainer.link import message
from elastic_trainer.link.message import FromAgent, FromWorker, decode_from_worker, encode
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import LinkError, WorkerLink

PATIENCE = 60.0


class AgentEnd:
    """The other end of a worker's link."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(PATIENCE)
        self._end = end
        self._lines: BinaryIO = end.makefile("rb")

    def say(self, *messages: FromAgent) -> None:
        self._end.sendall(b"".join(map(encode, messages)))

    def heard(self) -> FromWorker:
        return decode_from_worker(self._lines.readline())


@pytest.fixture
def link() -> Iterator[tuple[WorkerLink, AgentEnd]]:
    ours, theirs = socket.socketpair()
    link = WorkerLink(ours, 1, broken=lambda: None)
    reader = threading.Thread(target=link._read, daemon=True)
    reader.start()
    with theirs:
        yield link, AgentEnd(theirs)
        link._closing = True  # its agent goes, and it should not
        theirs.shutdown(socket.SHUT_RDWR)  # an AgentEnd's file would keep the socket open
    reader.join(PATIENCE)
    ours.close()


STALE: list[list[FromAgent]] = [
    [message.AskStep(fence=1, at_once=False)],
    [message.AskStep(fence=1, at_once=True)],
    [message.AskStep(fence=1, at_once=False), message.StopAt(1, 7, leaving=True, commit=True)],
]


@pytest.mark.parametrize("stale", STALE, ids=["asked", "asked at once", "told to stop"])
def test_a_fence_of_a_round_that_is_over_holds_nobody_in_the_next(
    link: tuple[WorkerLink, AgentEnd], stale: list[FromAgent]
) -> None:
    worker, agent = link
    places: list[message.Place] = []
    waiting = threading.Thread(target=lambda: places.append(worker.next_place()), daemon=True)
    waiting.start()
    assert agent.heard() == message.Idle(1)
    place = message.Place(2, rank=0, world=1, address="127.0.0.1", port=1, last_run=70)
    agent.say(*stale, place)
    waiting.join(PATIENCE)
    assert places == [place]
    assert worker.last_run == 70
    orders: list[Order] = []
    stepping = threading.Thread(
        target=lambda: orders.extend(map(worker.boundary, range(5, 9))), daemon=True
    )
    stepping.start()
    stepping.join(PATIENCE)
    assert orders == [Order.GO] * 4


def test_a_fence_asked_for_with_the_place_counts(link: tuple[WorkerLink, AgentEnd]) -> None:
    worker, agent = link
    waiting = threading.Thread(target=worker.next_place, daemon=True)
    waiting.start()
    assert agent.heard() == message.Idle(1)
    agent.say(
        message.Place(2, rank=0, world=1, address="127.0.0.1", port=1),
        message.AskStep(fence=1, at_once=False),
    )
    waiting.join(PATIENCE)
    assert agent.heard() == message.StepInProgress(1, -1)
    agent.say(message.StopAt(1, 5, leaving=False, commit=False))
    assert worker.boundary(5) is Order.FENCE


def test_it_says_once_that_it_stands_at_a_stop_and_again_at_one_that_is_told_anew(
    link: tuple[WorkerLink, AgentEnd],
) -> None:
    worker, agent = link
    assert worker.boundary(4) is Order.GO
    assert agent.heard() == message.Stepped()
    for step in (6, 9):  # of two coordinators, which both count fences from 1 on
        agent.say(message.AskStep(fence=1, at_once=False))
        assert agent.heard() == message.StepInProgress(1, step - 1)
        agent.say(message.StopAt(1, step, leaving=False, commit=False))
        assert worker.boundary(step) is Order.FENCE
        assert worker.boundary(step + 1) is Order.FENCE, "it goes on beyond, to hand over"
        assert agent.heard() == message.Stopped()


@pytest.mark.parametrize("ends", [message.StopAt(2, 6, True, False), message.RoundOver(1)])
def test_who_waits_at_a_fence_waits_for_the_rounds_end_or_another_stop(
    link: tuple[WorkerLink, AgentEnd], ends: FromAgent
) -> None:
    worker, agent = link
    agent.say(message.AskStep(fence=1, at_once=False))
    assert agent.heard() == message.StepInProgress(1, -1)
    agent.say(message.StopAt(1, 6, leaving=False, commit=False))
    assert worker.boundary(6) is Order.FENCE
    assert [agent.heard(), agent.heard()] == [message.Stepped(), message.Stopped()]
    stood: list[bool] = []
    waiting = threading.Thread(target=lambda: stood.append(worker.wait_at_fence(6, 1)), daemon=True)
    waiting.start()
    assert agent.heard() == message.Fenced(1, 6)
    agent.say(message.StopCancelled(), ends)
    waiting.join(PATIENCE)
    assert stood == [isinstance(ends, message.RoundOver)]
    if not worker.over:
        assert worker.boundary(7) is Order.LEAVE


@pytest.mark.parametrize(
    ("answer", "found"), [(message.NewestCommit(40), 40), (message.RoundOver(1), LinkError)]
)
def test_who_asks_for_commits_hears_of_them_or_of_the_rounds_end(
    link: tuple[WorkerLink, AgentEnd], answer: FromAgent, found: object
) -> None:
    worker, agent = link
    heard: list[object] = []

    def ask() -> None:
        try:
            heard.append(worker.newest_commit("place"))
        except LinkError as error:
            heard.append(type(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert agent.heard() == message.AskNewestCommit("place")
    agent.say(answer)
    asking.join(PATIENCE)
    assert heard == [found]


@pytest.mark.parametrize("answer", [message.RoundStands(), message.RoundOver(1)])
def test_an_error_waits_until_its_round_is_over_or_is_said_to_stand(
    link: tuple[WorkerLink, AgentEnd], answer: FromAgent
) -> None:
    worker, agent = link
    agent.say(message.RoundStands(), message.AskStep(fence=1, at_once=False))
    assert agent.heard() == message.StepInProgress(1, -1), "that was said of an earlier error"
    lost: list[bool] = []
    asking = threading.Thread(
        target=lambda: lost.append(worker.peer_lost(PATIENCE, asks=True)), daemon=True
    )
    asking.start()
    assert agent.heard() == message.Failing(asks=True)
    agent.say(answer)
    asking.join(PATIENCE / 2)
    assert lost == [isinstance(answer, message.RoundOver)]


def test_an_error_while_a_place_is_waited_for_is_of_no_lost_peer(
    link: tuple[WorkerLink, AgentEnd],
) -> None:
    worker, agent = link

    def follow() -> bool:
        raise RuntimeError("the newcomer's GPU has an error")

    with pytest.raises(RuntimeError, match="GPU"):
        worker.next_place(follow)
    assert agent.heard() == message.Idle(1)
    assert not worker.peer_lost(PATIENCE, asks=True), "or it would be made again without end"


@pytest.mark.parametrize("failing", [False, True])
def test_the_agent_hears_how_a_process_ends_before_its_connections_close(
    link: tuple[WorkerLink, AgentEnd], failing: bool
) -> None:
    worker, agent = link
    worker._failing = failing
    worker._goodbye()
    assert agent.heard() == (message.Ending() if failing else message.Goodbye())


def test_rank_0_reports_figures_and_the_last_ones_before_the_end(
    link: tuple[WorkerLink, AgentEnd],
) -> None:
    worker, agent = link
    for round_, rank in ((2, 1), (3, 0)):
        waiting = threading.Thread(target=worker.next_place, daemon=True)
        waiting.start()
        assert agent.heard() == message.Idle(round_ - 1)
        agent.say(message.Place(round_, rank=rank, world=2, address="127.0.0.1", port=1))
        waiting.join(PATIENCE)
        worker.report(**({"loss": 3.0} if rank else {"accuracy": 0.5}))
    assert agent.heard() == message.Reported('{"accuracy": "0.5"}')
    worker.report(accuracy=0.75)
    worker.finished()
    assert agent.heard() == message.Reported('{"accuracy": "0.75"}')
    assert agent.heard() == message.Finished()


def test_without_an_agent_no_commits_are_known() -> None:
    assert WorkerLink(None).newest_commit("place") == -1


DEAF = """
import socket, threading
from elastic_trainer.link.message import RoundOver, encode
from elastic_trainer.link.worker_link import WorkerLink

def broken():
    raise RuntimeError("can't start new thread")

ours, theirs = socket.socketpair()
link = WorkerLink(ours, 1, broken=broken)
reader = threading.Thread(target=link._read)
reader.start()
theirs.sendall(encode(RoundOver(1)))
reader.join()
print("deaf", flush=True)
"""


@pytest.mark.process
def test_a_worker_that_can_hear_its_agent_no_more_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "the link to the agent failed: RuntimeError" in ended.stderr
