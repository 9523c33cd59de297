"""Deadlines follow what can be seen: bytes that move, the time of a step, the pod's grace."""

from __future__ import annotations

from elastic_trainer.coordinator.model import Lost, Phase
from elastic_trainer.coordinator.status import status
from elastic_trainer.protocol.message import (
    Committed,
    Dismissed,
    FenceAsk,
    Fenced,
    FenceReply,
    FenceStop,
    Hello,
    Join,
    Leave,
    Linked,
    Progress,
    Round,
    RoundOver,
    Standby,
    Stopped,
    Transferring,
    WorkersFailed,
)

from tests.elastic_trainer.coordinator.world import Job


def recovering(job: Job, *indexes: int) -> Job:
    job.running(*indexes)
    assert job.state.round is not None
    for index in indexes:
        job.say(f"a{index}", Linked(job.state.round.round, recovers=True, last_run=1))
    return job


def wait_in_process(job: Job, *indexes: int) -> None:
    for index in indexes:
        job.say(f"a{index}", Join(5000 + index, live=True))


def let_in(job: Job, newcomer: int, *members: int) -> int:
    """A newcomer whose workers are ready joins by a fence; the new round's number."""
    job.say(f"a{newcomer}", Hello(f"a{newcomer}", newcomer, "h"), Join(5000 + newcomer))
    job.last(f"a{newcomer}", Standby)
    wait_in_process(job, newcomer)
    fence = job.last("a0", FenceAsk).fence
    for index in members:
        job.say(f"a{index}", FenceReply(fence, 1))
    for index in members:
        job.say(f"a{index}", Stopped(fence), Fenced(fence, 2))
    wait_in_process(job, *members)
    assert job.state.round is not None and f"a{newcomer}" in job.members()
    return job.state.round.round


def test_a_state_that_takes_five_minutes_to_hand_over_is_waited_for() -> None:
    job = recovering(Job(min_nodes=1, max_nodes=2), 0)
    number = let_in(job, 1, 0)
    for second in range(300):
        job.say("a0", Transferring(number, second << 28))
        job.pass_time(1.0)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(number, recovers=True, last_run=1))
    job.pass_time(1.0)
    assert job.state.phase is Phase.RUNNING and job.state.last_round == number


def test_a_newcomer_whose_state_stops_moving_is_left_out_for_longer_each_time() -> None:
    job = recovering(Job(min_nodes=1, max_nodes=3), 0, 1)
    waits = []
    number = let_in(job, 2, 0, 1)
    for _ in range(3):
        job.say("a0", Transferring(number, 1))
        job.pass_time(60.1)
        assert job.last("a2", RoundOver).round == number
        began = job.now
        wait_in_process(job, 0, 1, 2)
        assert job.members() == ["a0", "a1"], "the others train on"
        assert job.state.round is not None
        for agent in ("a0", "a1"):
            job.say(agent, Linked(job.state.round.round, recovers=True, last_run=1))
        job.heard.clear()
        while "a0" not in job.heard or not any(isinstance(m, FenceAsk) for m in job.heard["a0"]):
            job.pass_time(0.5)
        waits.append(round((job.now - began) / 10))
        fence = job.last("a0", FenceAsk).fence
        for agent in ("a0", "a1"):
            job.say(agent, FenceReply(fence, 1))
        for agent in ("a0", "a1"):
            job.say(agent, Fenced(fence, 2))
        wait_in_process(job, 0, 1)
        assert job.state.round is not None
        number = job.state.round.round
        assert job.members() == ["a0", "a1", "a2"]
    assert waits == [1, 2, 4]
    for agent in ("a0", "a1", "a2"):
        job.say(agent, Linked(number, recovers=True, last_run=1))
    assert job.state.agents["a2"].late == 0, "it took its place"


def test_survivors_of_long_steps_are_waited_for_as_long_as_these_take() -> None:
    job = recovering(Job(min_nodes=1, max_nodes=3), 0, 1, 2)
    job.say("a0", Progress(1, 5, step_seconds=90.0))
    job.feed(Lost("a2"))
    wait_in_process(job, 1)
    job.pass_time(89.0)
    assert job.state.phase is Phase.RESTARTING, "it is still in its step"
    wait_in_process(job, 0)
    assert job.members() == ["a0", "a1"]


def test_leaving_has_the_pods_grace_of_ten_minutes() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", Leave(grace_seconds=600.0))
    fence = job.last("a1", FenceAsk).fence
    job.pass_time(300.0)
    for agent in ("a0", "a1"):
        job.say(agent, FenceReply(fence, 3))
    job.say("a0", Stopped(fence))
    job.say("a1", Stopped(fence))
    job.pass_time(290.0)
    assert job.state.phase is Phase.FENCING, "a commit in progress is not cut"
    job.say("a0", Fenced(fence, 4))
    job.say("a1", Fenced(fence, 4))
    assert job.last("a1", Dismissed) and job.state.reason == "worker 1 left"


def test_a_leaver_is_let_go_before_it_is_killed() -> None:
    for grace, limit in ((600.0, 595.0), (8.0, 6.0)):
        job = Job(min_nodes=1, max_nodes=2).running(0, 1)
        job.say("a1", Leave(grace_seconds=grace))
        fence = job.last("a1", FenceAsk).fence
        job.say("a0", FenceReply(fence, 3), Stopped(fence))
        job.pass_time(limit - 0.1)
        assert job.state.phase is Phase.FENCING
        job.pass_time(0.2)
        assert job.state.phase is Phase.RESTARTING and job.last("a1", Dismissed)


def test_a_fence_of_joiners_that_commits_is_not_cut() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    job.join(1)
    job.pass_time(0.5)
    fence = job.last("a0", FenceAsk).fence
    job.say("a0", FenceReply(fence, 3))
    job.pass_time(599.0)
    job.say("a0", Stopped(fence))
    job.pass_time(500.0)
    assert job.state.phase is Phase.FENCING


def test_leavers_of_long_steps_stop_at_the_one_in_progress() -> None:
    for seconds, stop in ((5.0, 8), (0.1, 9), (0.0, 9)):
        job = Job(min_nodes=1, max_nodes=2).running(0, 1)
        job.say("a0", Progress(1, 6, step_seconds=seconds))
        job.say("a1", Leave())
        ask = job.last("a1", FenceAsk)
        assert ask.at_once is (seconds > 1.0)
        job.say("a0", FenceReply(ask.fence, 7))
        job.say("a1", FenceReply(ask.fence, 8))
        assert job.last("a0", FenceStop).step == stop


def test_before_its_first_step_a_leaver_stops_after_it_however_long_steps_are() -> None:
    job = Job(min_nodes=1, max_nodes=1).running(0)
    job.say("a0", Progress(1, 6, step_seconds=5.0), WorkersFailed(1), Join(5000))
    job.pass_time(0.5)
    job.say("a0", Linked(2), Leave())
    job.say("a0", FenceReply(job.last("a0", FenceAsk).fence, -1))
    assert job.last("a0", FenceStop).step == 0


def test_pods_that_come_one_after_another_do_not_restart_scripts_that_still_begin() -> None:
    """Eight, each 15 s after the one before, of a script that needs 100 s before it links."""
    job = Job(min_nodes=1, max_nodes=8)
    broken = 0
    begun: dict[int, float] = {}
    arrived = 0
    while job.now < 600.0:
        if arrived < 8 and job.now >= 15.0 * arrived:
            job.join(arrived)
            arrived += 1
        job.pass_time(0.5)
        for index in range(arrived):
            for message in job.heard.pop(f"a{index}", []):
                if isinstance(message, Round):
                    begun[index] = job.now
                if isinstance(message, RoundOver):
                    broken += index == 0
                    job.say(f"a{index}", Join(5000 + index))
        running = job.state.round
        if running is not None and all(job.now > begun.get(i, 1e9) + 100 for i in range(arrived)):
            break
    assert len(job.members()) == 8
    assert broken <= 3, "each restart makes the world twice as large"
    assert job.now < 7 * 15 + 105


def test_a_script_without_a_link_lets_a_single_joiner_in_after_a_while() -> None:
    job = Job(min_nodes=1, max_nodes=8)
    job.join(0, 1, 2, 3)
    job.pass_time(20.0)
    job.join(4)
    job.pass_time(50.0)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(15.0)
    assert job.last("a0", RoundOver).reason == "worker 4 joined"


def test_the_committed_step_of_status_falls_after_a_rollback() -> None:
    job = Job(min_nodes=1, max_nodes=1).running(0)
    job.say("a0", Progress(1, 100), Committed(1, 100), WorkersFailed(1), Join(5000))
    job.pass_time(0.5)
    job.say("a0", Linked(2), Committed(1, 90), Progress(2, 91))
    told = status(job.state, "ns/job", job.now, 0.0)
    assert told["committed_step"] == 90 and told["step"] == 91
    job.say("a0", Progress(2, 92), Committed(2, 92))
    assert status(job.state, "ns/job", job.now, 0.0)["committed_step"] == 92


def test_after_a_rollback_only_what_all_hold_anew_is_committed() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Progress(1, 100), Committed(1, 100, in_memory=True))
    assert job.state.committed_step == 100
    job.say("a0", WorkersFailed(1), Join(5000))
    job.say("a1", Join(5001))
    job.say("a0", Linked(2), Progress(2, 91), Committed(2, 95, in_memory=True))
    assert job.state.committed_step == 90, "the other has not said that it holds step 95"
