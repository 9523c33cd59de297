"""Whatever agents do, however long they take: a check ends, and calls no sound node faulty."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from elastic_trainer.coordinator.recheck import RECHECK_SECONDS
from elastic_trainer.node_check.message import (
    NOTE_BYTES,
    Order,
    Over,
    Presence,
    Report,
    Trial,
    Wait,
    decode_order,
    decode_presence,
    encode_order,
    encode_presence,
)
from elastic_trainer.node_check.session import Limits, Session
from hypothesis import given
from hypothesis import strategies as st

from tests.operation_count import operations

LIMITS = Limits()


@dataclass
class Agent:
    """One that asks each second."""

    presence: Presence
    kind: str
    comes: float
    takes: float
    """Seconds of a trial."""
    order: Order | None = None
    since: float = 0.0
    over: Over | None = None

    def ask(self, session: Session, now: float, agents: dict[str, Agent]) -> None:
        order = session.poll(self.presence, now, lambda count, quiet: quiet and count > 1)
        if isinstance(order, Over):
            self.over = order
        elif isinstance(order, Trial) and order != self.order:
            self.order, self.since = order, now
        elif isinstance(order, Trial) and now - self.since >= self.takes:
            group = [one for one in agents.values() if one.order == _as(order, one.order)]
            report = Report(order.check, order.round)
            if self.kind == "unable":
                self.presence = replace(self.presence, report=replace(report, unable=True))
            elif self.kind == "crashes":
                self.presence = replace(self.presence, report=replace(report, note="SIGABRT"))
            elif len(group) == order.size and all(one.kind == "sound" for one in group):
                # Else a partner's failure keeps it waiting, and it says nothing.
                self.presence = replace(self.presence, report=replace(report, passed=True))


def _as(order: Trial, other: Order | None) -> Order:
    return replace(order, rank=other.rank) if isinstance(other, Trial) else order


def hold(agents: dict[str, Agent], limits: Limits = LIMITS) -> Session:
    """A whole check; the clock goes by seconds."""
    session = Session("c", limits)
    now = 0.0
    while not all(one.over for one in agents.values() if one.kind != "leaves"):
        for one in agents.values():
            if one.over is None and now >= one.comes and not (one.kind == "leaves" and now > 9):
                one.ask(session, now, agents)
        now += 1.0
        assert now < limits.check + limits.longest + 60
    return session


@st.composite
def some_agents(draw: st.DrawFn, kinds: str) -> dict[str, Agent]:
    count = draw(st.integers(2, 12))
    return {
        f"agent-{i}": Agent(
            Presence(f"agent-{i}", f"node-{i}", i, "h", 1),
            draw(st.sampled_from(kinds.split())),
            draw(st.floats(0, 1.5)),
            draw(st.floats(0, 20)),
        )
        for i in range(count)
    }


@given(some_agents("sound sound sound crashes hangs"))
def test_below_half_all_that_crash_or_hang_are_faulty_and_no_other(
    agents: dict[str, Agent],
) -> None:
    session = hold(agents)
    broken = {one.presence.node for one in agents.values() if one.kind != "sound"}
    faulty = set(session.faulty())
    assert faulty <= broken
    if 2 * len(broken) < len(agents):
        assert faulty == broken


@given(some_agents("sound crashes hangs leaves unable"))
def test_a_check_ends_whoever_leaves_and_finds_only_the_broken_faulty(
    agents: dict[str, Agent],
) -> None:
    session = hold(agents)
    sound = {o.presence.node for o in agents.values() if o.kind in ("sound", "unable")}
    assert not sound & set(session.faulty())
    if any(one.kind != "leaves" for one in agents.values()):
        assert session.over
        told = session.as_json()
        assert told is not None and len(told["nodes"]) == len(agents)


def test_two_sound_nodes_are_proven_in_one_round() -> None:
    agents = {
        f"agent-{i}": Agent(Presence(f"agent-{i}", f"node-{i}", i, "h", 1), "sound", 0, 1)
        for i in range(2)
    }
    told = hold(agents).as_json()
    assert told is not None
    assert told["rounds"] == 1
    assert {node["verdict"] for node in told["nodes"]} == {"proven"}


def test_one_that_comes_during_a_check_meets_a_proven_node() -> None:
    agents = {
        f"agent-{i}": Agent(Presence(f"agent-{i}", f"node-{i}", i, "h", 1), "sound", comes, 5)
        for i, comes in enumerate((0, 0, 4))
    }
    told = hold(agents).as_json()
    assert told is not None
    assert told["rounds"] == 2
    assert {node["verdict"] for node in told["nodes"]} == {"proven"}


def test_one_node_alone_goes_on_without_a_verdict() -> None:
    session = Session("c", LIMITS)
    order = session.poll(Presence("a", "n", 0, "h", 1), 0.0, lambda count, quiet: True)
    assert order == Over("unknown", "there is no pair")


def test_a_faulty_node_is_told_with_those_that_witness_it() -> None:
    agents = {
        f"agent-{i}": Agent(
            Presence(f"agent-{i}", f"node-{i}", i, "h", 1), "crashes" if i == 3 else "sound", 0, 1
        )
        for i in range(6)
    }
    assert hold(agents).faulty() == {
        "node-3": "worker 3 failed the node check beside workers 1 and 2, which are sound: SIGABRT"
    }


def test_a_report_of_another_check_counts_for_nothing() -> None:
    session = Session("new", LIMITS)
    ones = [Presence(f"a{i}", f"n{i}", i, "h", 1, Report("old", 1, passed=True)) for i in range(2)]
    for one in ones:
        order = session.poll(one, 0.0, lambda count, quiet: count == 2)
    assert isinstance(order, Trial)
    assert isinstance(session.poll(ones[0], 0.1, lambda count, quiet: True), Trial)


@pytest.mark.parametrize("order", [Wait(0.5), Trial("c", 1, 2, 0, 2, "h", 3, 0.1), Over("proven")])
def test_orders_survive_the_wire(order: Order) -> None:
    assert decode_order(json.dumps(encode_order(order)).encode()) == order


def test_presences_survive_the_wire_with_notes_cut_short() -> None:
    presence = Presence("a", "n", 3, "10.0.0.1", 4, Report("c", 1, True, 0.5, False, "ü" * 400))
    found = decode_presence(encode_presence(presence))
    assert found.report is not None
    assert found.report.note == "ü" * (NOTE_BYTES // 2)
    assert replace(found, report=replace(found.report, note="ü" * 400)) == presence


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"agent": 5}',
        b'{"agent": "a", "port": "x"}',
        b'{"agent": "a", "report": 1}',
        b'{"agent": "a", "report": {"seconds": NaN}}',
        b'{"agent": "a", "report": {"passed": 1}}',
        b"\xff",
    ],
)
def test_what_is_no_presence_is_refused(body: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whichever it is
        decode_presence(body)


def test_a_node_that_is_not_proven_says_what_went_wrong_and_others_nothing() -> None:
    agents = {
        f"agent-{i}": Agent(Presence(f"agent-{i}", f"node-{i}", i, "h", 1), kind, 0, 1)
        for i, kind in enumerate(("crashes", "hangs"))
    }
    told = hold(agents).as_json()
    assert told is not None
    assert [node["note"] for node in told["nodes"]] == ["SIGABRT", "failed beside worker 0"]


def test_a_check_of_1024_nodes_asks_little_of_the_coordinator() -> None:
    count = 1024
    session = Session("c", LIMITS)
    ones = [Presence(f"a{i}", f"n{i}", i, "h", 1) for i in range(count)]
    for one in ones:
        session.poll(one, 0.0, lambda present, quiet: present == count)

    def round_() -> None:
        """Each says twice that it is there: at work, and with its report."""
        for one in ones:
            session.poll(one, 1.0, lambda present, quiet: False)
            told = replace(one, report=Report("c", 1, passed=True))
            session.poll(told, 1.0, lambda present, quiet: False)

    assert operations(round_) < 1000 * count
    assert session.over


@pytest.mark.parametrize(("sound", "hangs"), [(2, 1), (3, 1), (5, 2), (8, 3)])
def test_devices_that_hang_between_rounds_are_found_while_the_round_waits(
    sound: int, hangs: int
) -> None:
    kinds = ["sound"] * sound + ["hangs"] * hangs
    agents = {
        f"a{i}": Agent(Presence(f"a{i}", f"node-{i}", i, "h", 1), kind, 0, 5)
        for i, kind in enumerate(kinds)
    }
    session = hold(agents, LIMITS.between_rounds(RECHECK_SECONDS))
    assert set(session.faulty()) == {f"node-{i}" for i in range(sound, sound + hangs)}
    assert session.seconds < RECHECK_SECONDS
