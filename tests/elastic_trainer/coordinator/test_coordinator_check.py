"""A node check before the first round: what it finds broken is kept out of the training."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_trainer.coordinator.__main__ import CHECK_VARIABLE, QUIET_VARIABLE, main
from elastic_trainer.coordinator.model import FaultyNodes, Phase, Received, Settings
from elastic_trainer.coordinator.server import CoordinatorServer
from elastic_trainer.metrics.http import BODY_BYTES, Request
from elastic_trainer.node_check.message import (
    NOTE_BYTES,
    PATH,
    Over,
    Presence,
    Report,
    Trial,
    decode_order,
    encode_presence,
)
from elastic_trainer.protocol.message import Failed, Hello, Join, WorkersFailed

from tests.elastic_trainer.coordinator.world import Job


def ask(server: CoordinatorServer, presence: Presence) -> Any:
    answer = server.respond(Request("PUT", PATH, body=encode_presence(presence)))
    assert answer.code.startswith("200"), answer.body
    return decode_order(answer.body)


def agents(count: int) -> dict[str, Presence]:
    return {f"a{i}": Presence(f"a{i}", f"gpu-{i}", i, "h", 1) for i in range(count)}


def hold(server: CoordinatorServer, present: dict[str, Presence], broken: str) -> None:
    """A whole check, in which each trial with the broken one fails."""
    over: set[str] = set()
    while len(over) < len(present):
        orders = {name: ask(server, one) for name, one in present.items()}
        over |= {name for name, order in orders.items() if isinstance(order, Over)}
        trials = {name: order for name, order in orders.items() if isinstance(order, Trial)}
        spoilt = trials[broken].group if broken in trials else -1
        for name, trial in trials.items():
            report = Report(trial.check, trial.round, passed=trial.group != spoilt)
            present[name] = Presence(**{**vars(present[name]), "report": report})


def test_a_node_that_the_check_finds_faulty_is_in_no_round() -> None:
    server = CoordinatorServer("a/b", Settings(min_nodes=2, max_nodes=4))
    for i in range(4):
        server._apply(Received(f"a{i}", Hello(agent=f"a{i}", pod_index=i, node=f"gpu-{i}")))
    hold(server, agents(4), broken="a2")
    [excluded] = server.status()["excluded"]
    assert (excluded["node"], excluded["workers"]) == ("gpu-2", [2])
    assert "failed the node check beside workers" in excluded["reason"]
    assert [n["verdict"] for n in server.status()["check"]["nodes"]] == [
        "proven",
        "proven",
        "faulty",
        "proven",
    ]


def test_without_enough_others_a_faulty_node_trains_on() -> None:
    job = Job(min_nodes=3, max_nodes=3)
    for i in range(3):
        job.say(f"a{i}", Hello(agent=f"a{i}", pod_index=i, node=f"gpu-{i}"))
    job.feed(FaultyNodes({"gpu-1": "broken"}))
    job.say("a0", Join(1))
    job.say("a1", Join(1))
    job.say("a2", Join(1))
    job.pass_time(1.0)
    assert not job.state.excluded
    assert job.state.phase is Phase.RUNNING


def test_once_a_round_has_been_held_nobody_is_checked() -> None:
    server = CoordinatorServer("a/b", Settings(min_nodes=1, max_nodes=2))
    server.state = Job(min_nodes=1, max_nodes=2).state
    assert not isinstance(ask(server, agents(1)["a0"]), Over), "it waits for others at first"
    job = Job(min_nodes=1, max_nodes=2)
    job.join(0)
    job.pass_time(1.0)
    server.state = job.state
    assert ask(server, agents(2)["a1"]) == Over(reason="the first round has begun")
    assert server.status()["check"]["over"] == "a round has begun"


def test_after_a_failure_of_devices_all_members_are_checked_before_the_next_round() -> None:
    server = CoordinatorServer("a/b", Settings(3, 4, recheck_seconds=60.0))
    job = Job(min_nodes=3, max_nodes=4, recheck_seconds=60.0)
    for i in range(4):
        job.say(f"a{i}", Hello(agent=f"a{i}", pod_index=i, node=f"gpu-{i}"), Join(1))
    job.pass_time(1.0)
    server.state = job.state
    server._apply(Received("a2", Failed(1, 2, code=1, node_fault="GPU hardware")))
    server._apply(Received("a2", WorkersFailed(1)))
    present = agents(4)
    for name in present:
        server._apply(Received(name, Join(1)))
    assert server.state.round is None
    stranger = Presence("a9", "gpu-9", 9, "h", 1)
    assert isinstance(ask(server, stranger), Over), "nobody else holds it up"
    hold(server, present, broken="a2")
    assert server.state.round is not None
    assert [member.agent for member in server.state.round.members] == ["a0", "a1", "a3"]
    assert [one["node"] for one in server.status()["excluded"]] == ["gpu-2"]
    assert ask(server, present["a1"]).verdict == "proven", "who asks late is told the verdict"


def test_a_check_goes_on_without_an_agent_that_is_lost() -> None:
    server = CoordinatorServer("a/b", Settings(min_nodes=2, max_nodes=2))
    present = agents(2)
    for one in present.values():
        ask(server, one)
    assert isinstance(ask(server, present["a0"]), Trial)
    server._check.leave("a1")
    trial = ask(server, present["a0"])
    assert isinstance(trial, Trial)
    report = Report(trial.check, trial.round, passed=True)
    order = ask(server, Presence(**{**vars(present["a0"]), "report": report}))
    assert isinstance(order, Over), "its group is decided without the other's report"
    assert server.status()["check"]["nodes"][1]["note"] == "its agent was lost"


def test_those_who_wait_for_a_round_count_when_a_check_begins() -> None:
    # Pods of one job may be told differently: after an edit, some ask for a check and some don't.
    server = CoordinatorServer("a/b", Settings(min_nodes=3, max_nodes=3))
    present = agents(3)
    del present["a2"]
    for one in present.values():
        assert not isinstance(ask(server, one), Trial)
    server._apply(Received("a2", Hello(agent="a2", pod_index=2, node="gpu-2")))
    server._apply(Received("a2", Join(1)))
    assert all(isinstance(ask(server, one), Trial) for one in present.values())


def test_a_job_that_asks_for_no_check_tells_of_none() -> None:
    assert CoordinatorServer("a/b", Settings(1, 1)).status()["check"] is None


def test_only_holders_of_the_token_take_part_and_nonsense_is_refused() -> None:
    server = CoordinatorServer("a/b", Settings(1, 1), token="secret")
    body = encode_presence(agents(1)["a0"])
    assert server.respond(Request("PUT", PATH, body=body)).code.startswith("401")
    server = CoordinatorServer("a/b", Settings(1, 1))
    assert server.respond(Request("PUT", PATH, body=b"{}")).code.startswith("400")
    assert server.status()["check"] is None


@pytest.mark.parametrize("letter", ['"', "\0", "\x1b", "ü"])
def test_the_longest_presence_fits_into_a_request(letter: str) -> None:
    longest = Presence(
        "a" * 16,
        "n" * 253,
        10**6,
        "a" * 253,
        65535,
        Report("c" * 16, 1000, False, 1234.56789012345, False, letter * NOTE_BYTES * 2),
    )
    assert len(encode_presence(longest)) <= BODY_BYTES


@pytest.mark.parametrize("variable", [CHECK_VARIABLE, QUIET_VARIABLE])
@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_no_time_is_refused(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, text)
    assert main(["--port", "1"]) == 2
    told = capsys.readouterr().err
    assert variable in told and repr(text) in told
