"""Workers of a round that is over wait for the next one, or torchrun starts them anew.

A real agent without a coordinator, whose words are given to it, and processes that speak the
worker's end of the link, or fall silent.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from elastic_trainer.agent.agent import Agent
from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.errors import DismissedError, PermanentFailureError
from elastic_trainer.protocol.message import (
    Completed,
    Dismissed,
    FenceStop,
    Join,
    Member,
    Round,
    RoundOver,
    WorkersFailed,
)

from tests.elastic_trainer.agent.identity import alone

PATIENCE = 60.0

pytestmark = pytest.mark.process

WORKER = """
import socket, sys
from elastic_trainer.link import message as link
from elastic_trainer.link.progress import ProgressPage

connection = socket.socket(socket.AF_UNIX)
connection.connect("\\0" + sys.argv[1][1:])
hello = link.Hello(
    round=1, rank=0, local_rank=0, local_world_size=1, recovers=True, error_file=""
)
socket.send_fds(connection, [link.encode(hello)], [ProgressPage.create().fileno()])

def say(message):
    connection.sendall(link.encode(message))

def heard(kind):
    while not isinstance(message := link.decode_from_agent(lines.readline()), kind):
        pass
    return message

lines = connection.makefile("rb")
print("linked", flush=True)
"""

STAYS = """
sys.stdin.read()
"""

CAN_NOT_LEAVE = """
heard(link.RoundOver)
say(link.Stuck(1))
sys.stdin.read()
"""

LEAVES_THE_LOOP = """
heard(link.RoundOver)
say(link.Finished())  # its last commit came just before
say(link.Goodbye())
"""

ENDS_WHILE_IT_WAITS = """
heard(link.RoundOver)
say(link.Idle(1))
say(link.Goodbye())  # a handler of the script's, say
"""

WAITS = """
heard(link.RoundOver)
say(link.Idle(1))
place = heard(link.Place)
say(link.Joined(place.round, 0, 0))
heard(link.RoundOver)
say(link.Idle(place.round))
sys.stdin.read()
"""


STANDS = """
stop = heard(link.StopAt)
say(link.Fenced(stop.fence, stop.step))
heard(link.RoundOver)
sys.stdin.readline()
say(link.Idle(1))
place = heard(link.Place)
say(link.Joined(place.round, 0, 0))
sys.stdin.read()
"""


ASKS_WHEN_TOLD = """
heard(link.RoundOver)
sys.stdin.readline()
say(link.Idle(1))
heard(link.NoNextRound)
say(link.Goodbye())
"""


class Node:
    """An agent in round 1, and its worker."""

    def __init__(self, script: str, patience: float) -> None:
        identity = alone(9, patience)  # nobody listens there
        self.agent = Agent(identity, CoordinatorProcess(identity))
        address = self.agent.start()
        begun: Future[Round] = Future()
        threading.Thread(target=lambda: begun.set_result(self.agent.join(PATIENCE))).start()
        until(lambda: self.agent._joining is not None)
        self.hear(self.round(1))
        assert begun.result(PATIENCE).round == 1
        self.worker = subprocess.Popen(
            [sys.executable, "-c", WORKER + script, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.worker.stdout is not None
        assert self.worker.stdout.readline() == "linked\n"
        until(lambda: self.agent._workers.local.linked)

    def round(self, number: int) -> Round:
        assert self.agent._joining is not None
        port = self.agent._joining[0].store_port
        return Round(number, (Member("a", 0, "127.0.0.1"),), "127.0.0.1", port)

    def stand_at_a_fence(self) -> Round:
        """Have the worker stand there until it is told to go on; return the next round, as it is
        made by what was said with that."""
        self.agent._stream._resync_messages = lambda: ()  # as if a coordinator were there
        self.hear(FenceStop(1, 1, 5, False, commit=True))
        until(lambda: self.agent._workers.local.fenced)
        assert self.agent._hello().stop_commits, "a new coordinator tells nobody otherwise"
        offer = self.agent._offer
        assert offer is not None and offer.live and offer.round == 1
        made = Round(2, (Member("a", 0, "127.0.0.1"),), "127.0.0.1", offer.store_port)
        self.hear(RoundOver(1, "worker 1 joined"))
        self.hear(made)
        until(lambda: self.agent._next is not None)
        assert self.agent._current is not None and self.agent._current.round == 1
        return made

    def go_on(self) -> None:
        assert self.worker.stdin is not None
        self.worker.stdin.write("\n")
        self.worker.stdin.flush()

    def hear(self, message: object) -> None:
        self.agent._call(self.agent._receive, message)

    def close(self) -> None:
        self.worker.kill()
        self.worker.communicate()
        self.agent.close(complete=False)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(*request.param)
    yield node
    node.close()


@pytest.mark.parametrize(
    "node",
    [(STAYS, 0.1), (CAN_NOT_LEAVE, PATIENCE), (LEAVES_THE_LOOP, PATIENCE)],
    indirect=True,
    ids=["stays", "stuck", "ends"],
)
def test_a_worker_that_does_not_come_out_of_its_round_is_started_anew(node: Node) -> None:
    node.hear(RoundOver(1, "a peer was lost"))
    until(node.agent.restart_wanted)


@pytest.mark.parametrize("node", [(ENDS_WHILE_IT_WAITS, 0.1)], indirect=True, ids=["ends"])
def test_a_worker_that_ended_before_its_next_round_is_started_anew_after_it(node: Node) -> None:
    node.hear(RoundOver(1, "a peer was lost"))
    until(lambda: node.agent._joining is not None)
    node.worker.wait(PATIENCE)
    node.hear(node.round(2))
    node.hear(RoundOver(2, "worker 0 did not take its place in time"))
    until(node.agent.restart_wanted)


@pytest.mark.parametrize("node", [(WAITS, PATIENCE)], indirect=True, ids=["waits"])
def test_workers_that_wait_for_a_round_which_their_agent_is_refused_wait_no_longer(
    node: Node,
) -> None:
    node.hear(RoundOver(1, "a peer was lost"))
    until(lambda: node.agent._joining is not None)
    node.agent._call(node.agent._refuse_to_join, "expected job a, found b")
    until(node.agent.restart_wanted)
    with pytest.raises(PermanentFailureError, match="expected job a, found b"):
        node.agent.join(PATIENCE)


@pytest.mark.parametrize("node", [(WAITS, PATIENCE)], indirect=True, ids=["waits"])
def test_a_worker_that_waits_for_its_next_round_is_left_alone(node: Node) -> None:
    for number in (1, 2):
        node.hear(RoundOver(number, "a peer was lost"))
        node.hear(RoundOver(number, "said again"))
        until(lambda: node.agent._joining is not None)
        # A new coordinator waits for who asks later with a state; in round 1 it came to none.
        assert node.agent._hello().holds is (number == 2)
        if number == 1:
            node.hear(node.round(2))
            until(lambda: node.agent._hello().holds)
            assert node.agent._workers.local.round == 2
    until(lambda: node.agent._round_exit.ending is None)
    assert not node.agent.restart_wanted()
    assert node.worker.poll() is None


@pytest.mark.parametrize("node", [(STANDS, PATIENCE)], indirect=True, ids=["stands"])
def test_a_round_that_was_made_at_a_fence_begins_once_the_workers_are_out(node: Node) -> None:
    node.stand_at_a_fence()
    node.go_on()
    until(lambda: node.agent._workers.local.linked and node.agent._workers.local.round == 2)
    assert node.agent._joining is None and node.agent._offer is None and node.agent._next is None
    assert not node.agent.restart_wanted()


@pytest.mark.parametrize("node", [(STANDS, PATIENCE)], indirect=True, ids=["stands"])
def test_a_round_that_is_over_before_the_workers_are_out_of_the_last_one_is_asked_for_anew(
    node: Node,
) -> None:
    made = node.stand_at_a_fence()
    node.hear(RoundOver(2, "a peer was lost"))
    node.go_on()
    until(lambda: node.agent._joining is not None)
    assert node.agent._joining == (Join(made.master_port, live=True, round=1), None)
    assert node.agent._current is None


@pytest.mark.parametrize("node", [(STANDS, PATIENCE)], indirect=True, ids=["stands"])
def test_a_worker_that_ends_on_its_way_to_the_next_round_ends_that(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    node.stand_at_a_fence()
    monkeypatch.setattr(node.agent._stream, "tell", told.append)
    node.worker.kill()
    until(lambda: WorkersFailed(2) in told)
    assert node.agent._next is None


@pytest.mark.parametrize("node", [(ASKS_WHEN_TOLD, PATIENCE)], indirect=True, ids=["late"])
def test_a_worker_that_asks_for_a_round_when_the_coordinator_has_gone_hears_of_the_end(
    node: Node,
) -> None:
    node.hear(RoundOver(1, "a peer was lost"))
    node.hear(Completed())
    node.go_on()
    assert node.worker.wait(PATIENCE) == 0
    assert node.agent.may_end(node.worker.pid, {})
    with pytest.raises(DismissedError, match="training is complete"):
        node.agent.join(PATIENCE)


@pytest.mark.parametrize("node", [(STAYS, PATIENCE)], indirect=True, ids=["late"])
def test_no_worker_is_started_after_a_verdict_when_the_coordinator_has_gone(node: Node) -> None:
    node.hear(Dismissed("the same error twice", failed=True))
    until(node.agent.restart_wanted)
    with pytest.raises(PermanentFailureError, match="the same error twice"):
        node.agent.join(PATIENCE)


@pytest.mark.parametrize("node", [(WAITS, PATIENCE)], indirect=True, ids=["waits"])
def test_workers_wait_without_a_coordinator_as_long_as_torchrun_would(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(node.agent, "_exit", ended.append)
    soon, later = time.monotonic() + 1000.0, time.monotonic() + 1001.0 + PATIENCE
    node.agent._call(node.agent._end_if_never_told, soon)
    node.hear(RoundOver(1, "a peer was lost"))
    until(lambda: node.agent._joining is not None)
    assert not ended, "workers that train need no coordinator"
    node.agent._call(node.agent._end_if_never_told, later)
    until(lambda: ended[:1] == [1])
