"""How often agents speak, by their number, and when their silence means that they are gone."""

from __future__ import annotations

from elastic_trainer.coordinator.model import Lost, Received, Tick
from elastic_trainer.protocol.message import Heartbeat, Hello
from elastic_trainer.protocol.pace import BEATS_PER_SECOND, Pace, beat_seconds, silence
from elastic_trainer.succession.follower import Follower
from hypothesis import given
from hypothesis import strategies as st

from .world import Job


def test_agents_of_a_job_of_any_usual_size_speak_as_often_as_they_did() -> None:
    assert [beat_seconds(agents) for agents in (0, 1, 200)] == [0.2] * 3
    assert silence(1.0, beat_seconds(400)) == 1.0
    assert silence(0.3, beat_seconds(200)) == 0.3


@given(st.integers(201, 4000))
def test_all_together_say_no_more_than_the_coordinator_can_hear(agents: int) -> None:
    assert agents / beat_seconds(agents) <= BEATS_PER_SECOND * (1 + 1e-9)
    assert silence(1.0, beat_seconds(agents)) >= 2.5 * beat_seconds(agents)


@given(st.lists(st.tuples(st.integers(0, 6000), st.floats(0.01, 3.0)), min_size=1, max_size=50))
def test_whoever_was_told_a_longer_beat_has_time_to_hear_of_the_shorter_one(
    story: list[tuple[int, float]],
) -> None:
    pace, now, told = Pace(), 0.0, []
    for agents, seconds in story:
        now += seconds
        pace = pace.at(agents, now)
        told.append((now, beat_seconds(agents)))
        for when, beat in told:
            if now < when + 2 * beat:  # the next word comes after one beat, and takes one
                assert pace.slowest >= beat
    assert pace.at(story[-1][0], now + 13.0).slowest == told[-1][1]


def test_an_agent_among_many_is_lost_after_a_longer_silence() -> None:
    job = Job(min_nodes=2, max_nodes=4000)
    for index in range(1200):
        hello = Hello(agent=f"a{index}", pod_index=index, address="127.0.0.1")
        job.feed(Received(f"a{index}", hello))
    job.feed(Tick())
    others = [f"a{index}" for index in range(1, 1200)]
    for _ in range(29):
        job.now += 0.1
        job.feed(Tick(dict.fromkeys(others, job.now)))
    assert "a0" in job.state.agents
    job.now += 0.2
    job.feed(Tick(dict.fromkeys(others, job.now)))
    assert "a0" not in job.state.agents and len(job.state.agents) == 1199


def test_the_first_of_many_that_a_round_waits_for_may_be_silent_as_long_as_all_of_them() -> None:
    job = Job(min_nodes=1200, max_nodes=4000)
    job.feed(Tick())
    job.feed(Received("a0", Hello(agent="a0", pod_index=0, address="127.0.0.1")))
    for _ in range(29):
        job.now += 0.1
        job.feed(Tick())
    assert "a0" in job.state.agents
    job.now += 0.2
    job.feed(Tick())
    assert "a0" not in job.state.agents


def test_those_left_of_many_are_not_lost_before_they_hear_that_they_are_few() -> None:
    job = Job(min_nodes=2, max_nodes=4000)
    for index in range(1200):
        hello = Hello(agent=f"a{index}", pod_index=index, address="127.0.0.1")
        job.feed(Received(f"a{index}", hello))
    job.feed(Tick())
    for index in range(4, 1200):
        job.feed(Lost(f"a{index}"))
    for _ in range(24):  # they beat each 1.2 s still, and are just about to
        job.now += 0.1
        job.feed(Tick())
    assert len(job.state.agents) == 4


def test_an_agent_doubts_a_coordinator_of_many_later() -> None:
    follower = Follower("a", 1.0, heard_at=100.0).hears_beat(Heartbeat(beat_seconds=1.6), "host:1")
    assert follower.limit == 4.0 and not follower.doubts(102.0, connected=True)
    assert follower.hears_beat(Heartbeat(), "host:1").limit == 4.0
    usual = follower.hears_beat(Heartbeat(beat_seconds=0.2), "host:1")
    assert usual.limit == 1.0 and usual.doubts(102.0, connected=True)
