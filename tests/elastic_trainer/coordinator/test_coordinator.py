"""The coordinator's state machine: what agents live through, by table."""

from __future__ import annotations

from elastic_trainer.coordinator.model import (
    Drop,
    Effect,
    Lost,
    Phase,
    Send,
    Tick,
)
from elastic_trainer.coordinator.state import step
from elastic_trainer.coordinator.status import status
from elastic_trainer.protocol.message import (
    Completed,
    Dismissed,
    FenceAsk,
    Fenced,
    FenceReply,
    FenceStop,
    Finished,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Linked,
    Round,
    RoundOver,
    WorkersFailed,
    WorkersSucceeded,
)

from tests.elastic_trainer.coordinator.world import Job


def test_the_first_round_starts_with_all_who_joined_within_the_grace() -> None:
    job = Job(min_nodes=1, max_nodes=4)
    job.pass_time(1.0)
    job.join(2)
    job.pass_time(0.1)
    job.join(0)
    assert job.state.phase is Phase.FORMING
    job.pass_time(0.3)
    assert job.members() == ["a0", "a2"]
    made = job.last("a2", Round)
    assert (made.round, made.master_address, made.master_port) == (1, "10.0.0.0", 5000)


def test_the_first_round_starts_at_once_when_everybody_is_there() -> None:
    job = Job(min_nodes=1, max_nodes=2)
    job.pass_time(0.5)
    job.join(1, 0)
    assert job.members() == ["a0", "a1"]


def test_too_few_wait() -> None:
    job = Job(min_nodes=2, max_nodes=4)
    job.join(0)
    job.pass_time(30)
    assert job.state.phase is Phase.FORMING
    job.join(1)
    job.pass_time(0.4)
    assert job.members() == ["a0", "a1"]


def test_joiners_are_let_in_together_by_one_fence_at_a_common_step() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    job.join(2)
    job.pass_time(0.2)
    job.join(3)
    job.pass_time(0.2)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(0.15)
    fence = job.last("a0", FenceAsk).fence
    job.say("a0", FenceReply(fence, 7))
    assert job.state.phase is Phase.FENCING and FenceStop not in map(type, job.heard["a0"])
    job.say("a1", FenceReply(fence, 8))
    assert job.last("a0", FenceStop) == FenceStop(fence, 1, 9, False, memory_stays=True)
    job.say("a0", Fenced(fence, 9))
    job.say("a1", Fenced(fence, 9))
    assert job.last("a1", RoundOver).round == 1
    assert job.state.phase is Phase.RESTARTING
    job.join(1)
    assert job.state.phase is Phase.RESTARTING
    job.join(0)
    assert job.members() == ["a0", "a1", "a2", "a3"]
    assert job.state.rounds[-1].reason == "worker 2, 3 joined"


def test_workers_at_a_fence_that_will_wait_get_their_places_without_another_word() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(1, recovers=True, last_run=1))
    job.say("a2", Hello("a2", 2, "10.0.0.2"), Join(5002, live=True))
    fence = job.last("a0", FenceAsk).fence
    for agent in ("a0", "a1"):
        job.say(agent, FenceReply(fence, 7))
    job.say("a0", Fenced(fence, 8, 6000))
    assert job.state.phase is Phase.FENCING
    job.say("a1", Fenced(fence, 8, 6001))
    assert job.last("a1", RoundOver).round == 1
    made = job.last("a2", Round)
    assert job.members() == ["a0", "a1", "a2"] and made.master_port == 6000
    job.say("a1", Join(5001, live=True, round=1))  # which crossed it
    assert job.state.phase is Phase.RUNNING and job.state.round == made
    job.say("a1", Join(5001, live=True, round=2))
    assert job.last("a0", RoundOver).round == 2, "its workers have left the new one"


def test_who_will_not_wait_in_process_is_waited_for() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    for agent in ("a0", "a1", "a2"):
        job.say(agent, Linked(1, recovers=True, last_run=1))
    job.say("a1", Leave())
    fence = job.last("a0", FenceAsk).fence
    for agent in ("a0", "a1", "a2"):
        job.say(agent, FenceReply(fence, 7))
    job.say("a0", Fenced(fence, 8, 6000), Fenced(fence, 8, 6000))
    job.say("a1", Fenced(fence, 8, 6001))  # it began to leave just then
    job.say("a2", Fenced(fence, 8))
    assert job.state.phase is Phase.RESTARTING
    job.say("a2", Join(5002, live=True, round=1))
    assert job.members() == ["a0", "a2"]


def test_a_leaver_leaves_at_the_fence_and_the_rest_go_on() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", Leave())
    fence = job.last("a1", FenceAsk).fence
    for agent in ("a0", "a1", "a2"):
        job.say(agent, FenceReply(fence, 3))
    assert job.last("a1", FenceStop).leaving and not job.last("a0", FenceStop).leaving
    assert [job.last(one, FenceStop).memory_stays for one in ("a0", "a1")] == [True, False]
    for agent in ("a0", "a1", "a2"):
        job.say(agent, Fenced(fence, 4))
    assert isinstance(job.last("a1", Dismissed), Dismissed)
    job.join(0, 2)
    assert job.members() == ["a0", "a2"]
    assert job.state.rounds[-1].reason == "worker 1 left"


def test_who_begins_to_leave_while_others_stand_at_a_fence_is_told_to_all() -> None:
    """So nothing is left to it that it takes along."""
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", Leave())
    first = job.last("a1", FenceAsk).fence
    for agent in ("a0", "a1", "a2"):
        job.say(agent, FenceReply(first, 3))
    job.say("a0", Fenced(first, 4))
    for leaver, leaving in (("a2", {"a1", "a2"}), ("a0", {"a0", "a1", "a2"})):
        before = job.last("a0", FenceStop).fence
        job.say(leaver, Leave())
        told = {agent: job.last(agent, FenceStop) for agent in ("a0", "a1", "a2")}
        assert {one.step for one in told.values()} == {4}
        assert {agent for agent, one in told.items() if one.leaving} == leaving
        assert all(one.commit is (len(leaving) == 3) for one in told.values())
        for agent in ("a0", "a1", "a2"):
            job.say(agent, Fenced(before, 4))
        assert job.state.phase is Phase.FENCING, "they stood there before they knew"
    for agent in ("a0", "a1", "a2"):
        job.say(agent, Fenced(told[agent].fence, 4))
    assert job.state.phase is not Phase.FENCING
    assert all(isinstance(job.last(agent, Dismissed), Dismissed) for agent in told)


def test_memory_that_the_next_round_has_no_place_for_does_not_stay() -> None:
    job = Job(min_nodes=1, max_nodes=6, node_unit=3).running(*range(6))
    job.say("a1", Leave())
    fence = job.last("a1", FenceAsk).fence
    for agent in job.state.agents:
        job.say(agent, FenceReply(fence, 3))
    told = {agent: job.last(agent, FenceStop) for agent in job.state.agents}
    assert not any(one.memory_stays for one in told.values())
    displaced = {agent for agent, one in told.items() if one.displaced}
    assert displaced == {"a4", "a5"}, "whose embedding rows go to who goes on"


def test_who_stays_keeps_its_place_and_memory_whoever_waits() -> None:
    for waiting in ((0, 1, 2), (0,), (7, 8, 9)):
        job = Job(min_nodes=1, max_nodes=4).running(3, 4, 5, 6)
        job.join(*waiting)  # of whom the round had no place for any
        job.say("a6", Leave())
        fence = job.last("a6", FenceAsk).fence
        for agent in ("a3", "a4", "a5", "a6"):
            job.say(agent, FenceReply(fence, 3))
        assert job.last("a3", FenceStop).memory_stays
        for agent in ("a3", "a4", "a5", "a6"):
            job.say(agent, Fenced(fence, 4))
        job.join(3, 4, 5)
        job.pass_time(1.0)
        assert {"a3", "a4", "a5"} < set(job.members())


def test_who_comes_after_a_fence_was_told_takes_nobodys_place() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(3, 4, 5, 6)
    job.join(0)
    job.say("a6", Leave())
    fence = job.last("a6", FenceAsk).fence
    for agent in ("a3", "a4", "a5", "a6"):
        job.say(agent, FenceReply(fence, 3))
    assert job.last("a3", FenceStop).memory_stays
    job.join(1, 2)  # of lower index than those whose memory was to stay
    for agent in ("a3", "a4", "a5", "a6"):
        job.say(agent, Fenced(fence, 4))
    job.join(3, 4, 5)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a3", "a4", "a5"]
    # As ever in the next one.
    job.say("a5", Leave())
    fence = job.last("a5", FenceAsk).fence
    for agent in ("a0", "a3", "a4", "a5"):
        job.say(agent, FenceReply(fence, 7))
        job.say(agent, Fenced(fence, 8))
    job.join(0, 3, 4)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a2", "a3"]


def test_a_leaver_does_not_wait_for_workers_that_never_link() -> None:
    job = Job(min_nodes=1, max_nodes=4)
    job.join(0, 1)
    job.pass_time(0.5)
    job.say("a1", Leave())
    assert job.state.phase is Phase.RUNNING
    job.pass_time(2.1)
    assert job.state.phase is Phase.RESTARTING
    job.last("a1", Dismissed)


def test_a_fence_that_nobody_answers_is_broken_for_a_leaver() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    job.say("a1", Leave())
    job.pass_time(24.9)
    assert job.state.phase is Phase.FENCING
    job.pass_time(0.2)
    assert job.state.phase is Phase.RESTARTING, "Kubernetes kills it after 30 s"


def test_survivors_restart_at_once_when_a_worker_fails() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", WorkersFailed(1))
    for agent in ("a0", "a1", "a2"):
        assert job.last(agent, RoundOver).round == 1
    job.join(0, 2)
    assert job.state.phase is Phase.RESTARTING, "the failed one comes back too"
    job.join(1)
    assert job.members() == ["a0", "a1", "a2"]


def test_a_round_that_waiting_workers_do_not_enter_is_ended() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(1, recovers=True, last_run=1))
    job.say("a0", WorkersFailed(1))
    job.say("a0", Join(5000, live=True))
    job.say("a1", Join(5001, live=True))
    assert job.state.phase is Phase.RUNNING and job.state.last_round == 2
    job.say("a0", Linked(2, recovers=True, last_run=1))
    job.pass_time(59.0)
    assert job.state.phase is Phase.RUNNING, "a large state takes its time"
    job.pass_time(2.0)
    assert job.last("a0", RoundOver) == RoundOver(2, "worker 1 did not take its place in time")


def test_joining_again_means_the_workers_failed() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    job.say("a0", Join(1))
    assert job.last("a1", RoundOver).round == 1


def test_a_silent_agent_is_lost_after_the_timeout_and_its_stream_is_closed() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    effects: list[Effect] = []
    for _ in range(25):
        job.now += 0.05
        job.say("a0", Heartbeat())
        job.state, more = step(job.state, Tick(), job.now)
        effects += more
    assert Drop("a1") in effects
    assert any(isinstance(e, Send) and isinstance(e.message, RoundOver) for e in effects)


def test_our_own_pause_is_not_held_against_the_agents() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.now += 5.0
    job.feed(Tick())
    assert job.state.phase is Phase.RUNNING


def test_below_the_minimum_the_rest_wait_for_a_replacement() -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1)
    job.feed(Lost("a1"))
    job.join(0)
    job.pass_time(60)
    assert job.state.phase is Phase.FORMING
    job.join(1)
    job.pass_time(0.4)
    assert job.members() == ["a0", "a1"]


def test_the_reason_names_the_node_of_a_lost_worker_that_told_it() -> None:
    job = Job(min_nodes=1, max_nodes=3)
    job.say("a2", Hello(agent="a2", pod_index=2, address="10.0.0.2", node="gpu-7"), Join(5002))
    job.running(0, 1)
    job.feed(Lost("a2"))
    assert job.last("a0", RoundOver).reason == "worker 2 on gpu-7 lost (its connection ended)"
    job.join(0, 1)
    job.pass_time(0.5)
    job.feed(Lost("a1"))
    assert job.last("a0", RoundOver).reason == "worker 1 lost (its connection ended)"


def test_the_reason_names_all_workers_that_a_node_took_along() -> None:
    job = Job(min_nodes=1, max_nodes=6)
    for index, node in ((1, "gpu-7"), (2, "gpu-8"), (4, "gpu-7"), (5, "gpu-7")):
        hello = Hello(agent=f"a{index}", pod_index=index, address="10.0.0.2", node=node)
        job.say(f"a{index}", hello, Join(5000 + index))
    job.running(0, 3)
    job.feed(Lost("a4"))
    assert job.state.reason == "worker 4 on gpu-7 lost (its connection ended)"
    for name in ("a1", "a5", "a2"):
        job.feed(Lost(name, "silent for 3.0 s"))
    job.join(0, 3)
    job.pass_time(0.5)
    why = "workers 1, 4 and 5 on gpu-7; worker 2 on gpu-8 lost (its connection ended)"
    ended, made = status(job.state, "ns/job", job.now, 0.0)["rounds"]
    assert (ended["end"], ended["lost"], made["reason"], made["lost"]) == (why, 4, why, 0)
    job.feed(Lost("a3"))
    assert job.state.reason == "worker 3 lost (its connection ended)"


def test_of_many_lost_nodes_the_first_are_named_and_the_others_counted() -> None:
    job = Job(min_nodes=1, max_nodes=100)
    for index in range(1, 60):
        hello = Hello(f"a{index}", pod_index=index, address="10.0.0.2", node=f"gpu-{index // 2}")
        job.say(f"a{index}", hello, Join(5000 + index))
    job.running(0)
    for index in (*range(1, 60, 2), *range(2, 60, 2)):
        job.feed(Lost(f"a{index}"))
    job.join(0)
    job.pass_time(0.5)
    ended, made = status(job.state, "ns/job", job.now, 0.0)["rounds"]
    assert (
        ended["end"]
        == made["reason"]
        == (
            "worker 1 on gpu-0; workers 2 and 3 on gpu-1; workers 4 and 5 on gpu-2; "
            "workers 6 and 7 on gpu-3; workers 8 and 9 on gpu-4; workers 10 and 11 on gpu-5; "
            "workers 12 and 13 on gpu-6; workers 14 and 15 on gpu-7; 44 more on other nodes "
            "lost (its connection ended)"
        )
    )
    assert ended["lost"] == 59


def test_who_goes_after_another_end_of_the_round_is_not_its_reason() -> None:
    job = Job(min_nodes=1, max_nodes=3).running(0, 1, 2)
    job.feed(Lost("a2"))
    job.say("a1", Goodbye())  # its torchrun gave up
    assert job.state.reason == "worker 2 lost (its connection ended)"
    job.join(0)
    job.pass_time(0.5)
    job.say("a0", WorkersFailed(2))
    job.feed(Lost("a0"))
    assert job.state.reason == "workers of worker 0 failed"


def test_spares_that_make_no_whole_node_unit_disturb_nobody() -> None:
    job = Job(min_nodes=2, max_nodes=4, node_unit=2).running(0, 1)
    job.join(2)
    job.pass_time(5)
    assert job.state.phase is Phase.RUNNING
    job.join(3)
    job.pass_time(1.1)
    assert job.state.phase is Phase.FENCING


def test_a_complete_job_sends_joiners_home() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    job.say("a0", Finished(1), WorkersSucceeded(1))
    job.join(1)
    job.last("a1", Completed)
